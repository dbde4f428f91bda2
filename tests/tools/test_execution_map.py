"""`ExecutionMap`: numbers as text, hostile lines, and the search for tests."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from m3agent.tools.execution_map import MOST_FUNCTIONS, ExecutionMap, MapReader, pack, unpack
from m3agent.tools.report_reader import read_report
from m3agent.tools.test_report import TestReport, joined
from tests.tools.report_lines import KEY, report_of

REPORT = TestReport(("a.py::x",), (), (), (), {}, True, False, 1.0, 0, "", False)


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@given(st.sets(st.integers(0, MOST_FUNCTIONS - 1) | st.integers(0, 300)))
def test_numbers_survive_as_text(numbers: set[int]) -> None:
    assert unpack(pack(numbers)) == numbers


@pytest.mark.parametrize(
    "numbers", [set(), {0}, {127}, {128}, {MOST_FUNCTIONS - 1}, set(range(MOST_FUNCTIONS))]
)
def test_bounds_of_numbers(numbers: set[int]) -> None:
    assert unpack(pack(numbers)) == numbers


GOOD = pack({1, 5, 700})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "ü",
        GOOD[:-4],
        GOOD + GOOD,
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(base64.b64decode(GOOD) + b"more").decode(),
        packed(b"\x01\x00"),
        packed(b"\x80\x01\x00"),
        packed(b"\x01\x80"),
        packed(b"\xff\xff\xff\xff\xff\x01"),
        pack({MOST_FUNCTIONS}),
        packed(b"\x01" * (MOST_FUNCTIONS + 1)),
        packed(bytes(1 << 26)),
    ],
    ids=[
        "empty",
        "no base64",
        "no ASCII",
        "cut off",
        "twice",
        "no zlib",
        "more after the end",
        "twice the same",
        "twice the same, long",
        "number cut off",
        "number too long",
        "number too large",
        "too many",
        "bomb",
    ],
)
def test_damaged_texts(text: str) -> None:
    with pytest.raises(ValueError):
        unpack(text)
    reader = MapReader()
    for line in range(1000):
        reader.add_function(["a.py", line, "f"])
    reader.add_test("bad", text, False)
    reader.add_test("good", GOOD, False)
    found = reader.map({})
    assert found is not None
    assert found.executed == {"good": GOOD}


def executed(*entries: Sequence[str]) -> ExecutionMap | None:
    return read_report(report_of(entries), KEY).executed


def code(name: str) -> Sequence[str]:
    return "code", "a.py", "1", name


def ran(ident: str, *numbers: int, elsewhere: str = "") -> Sequence[str]:
    return "ran", ident, pack(numbers), elsewhere


def test_map_of_a_report() -> None:
    found = executed(
        code("f"), ran("a", 0), code("g"), ran("b", 0, 1, elsewhere="1"), ran("c"), ("end", "0", "")
    )
    assert found == ExecutionMap(
        (("a.py", 1, "f"), ("a.py", 1, "g")), {"a": pack([0]), "b": pack([0, 1]), "c": pack([])}, ("b",)
    )
    assert found is not None
    assert found.tests_that_execute(lambda path, line, name: (path, line, name) == ("a.py", 1, "g")) == {"b"}
    assert found.tests_that_execute(lambda *_: True) == {"a", "b"}
    assert found.tests_that_execute(lambda *_: False) == set()


def test_tests_whose_ids_differ_in_addresses_only_are_joined() -> None:
    one, two = "t[0xaaaaaa1]", "t[0xbbbbbb2]"
    known = [code("f"), code("g"), ("start", one), ran(one, 0), ("start", two), ran(two, 1, elsewhere="1")]
    found = executed(*known)
    assert found is not None
    assert (found.executed, found.elsewhere) == ({"t[0x]": pack([0, 1])}, ("t[0x]",))
    assert executed(*known, ("start", one)) is None, "the third of them is unknown"
    assert executed(*known, ("ran", one, "3", "")) is None


@pytest.mark.parametrize(
    "bad",
    [
        ("code", "a.py", "", "f"),
        ("code", "a.py", "True", "f"),
        ("code", "a.py", "1.0", "f"),
        ("code", "a.py", "-1", "f"),
        ("code", "a.py", str(1 << 40), "f"),
    ],
)
def test_after_a_damaged_line_numbers_are_unknown(bad: Sequence[str]) -> None:
    found = executed(code("f"), ran("a", 0), bad, code("g"), ran("b", 0))
    assert found is not None
    assert found.executed == {"a": pack([0])}


@pytest.mark.parametrize("bad", [("ran", "b", "", ""), ("ran", "b", "?", ""), ("ran", "b", pack([1]), "")])
def test_a_damaged_record_is_dropped(bad: Sequence[str]) -> None:
    found = executed(code("f"), bad, ran("a", 0))
    assert found is not None
    assert (found.executed, found.elsewhere) == ({"a": pack([0])}, ())


def test_many_bombs_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost is counted, and in the end no more of them are unpacked."""
    unpacked: list[str] = []

    def count(text: str) -> set[int]:
        unpacked.append(text)
        raise ValueError

    monkeypatch.setattr("m3agent.tools.execution_map.unpack", count)
    reader = MapReader()
    for number in range(1000):
        reader.add_test(str(number), "bomb", False)
    assert len(unpacked) < 200


def test_names_that_are_not_utf_8() -> None:
    found = executed(("code", "a\udce4.py", "1", "f"), ran("t\udce4", 0))
    report = replace(REPORT, executed=found, stopped=True)
    assert found is not None
    assert found.functions == (("a\\udce4.py", 1, "f"),)
    assert TypeAdapter(TestReport).validate_json(json.dumps(asdict(report))) == report


def test_joined_reports_have_the_first_map() -> None:
    known = replace(REPORT, executed=executed(code("f"), ran("a", 0)))
    other = replace(REPORT, executed=executed(code("g"), ran("b", 0)), stopped=True)
    both = joined(known, other)
    assert (both.executed, both.stopped) == (known.executed, True)
    assert joined(other, known).stopped
    assert not joined(known, known).stopped


def test_search_in_many_tests() -> None:
    functions = tuple(("a.py", line, f"f{line}") for line in range(1_000))
    many = ExecutionMap(
        functions, {f"t{test}": pack(range(test % 977, 1_000, 4)) for test in range(13_000)}, ()
    )
    began = time.process_time()
    assert many.tests_that_execute(lambda path, line, name: line == 5) == {
        f"t{test}" for test in range(13_000) if (5 - test % 977) % 4 == 0 and test % 977 <= 5
    }
    assert time.process_time() - began < 10
