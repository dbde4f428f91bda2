"""Which lines of a report count."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.tools.report_reader import Reading, read_report
from m3agent.tools.test_report import NO_SIGNS, ORDINARY, Hook, Reached, Signs
from tests.tools.report_lines import KEY, told


def read(*lines: bytes) -> Reading:
    return read_report(b"".join(lines), KEY)


START, PASSED, END = told(1, "start", "a"), told(2, "result", "a", "passed", "0", ""), told(3, "end", "0", "")


CALL = Hook("a.py", "pytest_runtest_call", "pytest_runtest_call")


def test_lines_count_in_their_order() -> None:
    found = read(START, PASSED, END)
    assert (found.outcomes, found.running, found.ended, found.stopped) == ({"a": "passed"}, None, True, False)
    backwards = read(END, PASSED, START)
    assert (backwards.outcomes, backwards.running, backwards.ended) == ({}, "a", False)
    assert not read(START, END).ended
    again = read(START, PASSED, told(2, "result", "b", "passed", "0", ""), END)
    assert (again.outcomes, again.ended) == ({"a": "passed"}, True)


@pytest.mark.parametrize(
    ("status", "ended"), [("0", True), ("1", True), ("5", True), ("2", False), ("3", False)]
)
def test_an_interrupted_run_did_not_end(status: str, ended: bool) -> None:
    assert read(told(1, "end", status, "1")).ended is ended
    assert read(told(1, "end", status, "1")).stopped


def test_a_test_that_began_and_did_not_end_is_running() -> None:
    assert read(START).running == "a"


def test_a_failure_is_not_made_good_by_a_second_result() -> None:
    assert read(told(1, "result", "a", "failed", "0", "why"), PASSED).outcomes == {"a": "failed"}


def test_signs_of_tampering() -> None:
    lines = [
        ("forged", "\x1b[2Jx"),
        ("hook", "a.py", "pytest_runtest_call", "pytest_runtest_call"),
        ("forged", "y"),
        ("reached", "a.py", "7", "tb_frame"),
        ("canaries", "3", "2"),
        ("new", "kind"),
    ]
    found = read(*(told(number, *fields) for number, fields in enumerate(lines, 1)))
    place = Reached("a.py", 7, "tb_frame")
    assert found.signs == Signs(("x", "y"), (CALL,), (3, 2), (place,))
    assert found.signs.reached_beyond(NO_SIGNS, ["a.py"]) == [place]
    assert found.signs.reached_beyond(Signs(reached=(Reached("a.py", 3, "tb_frame"),)), ["a.py"]) == []
    assert found.signs.reached_beyond(NO_SIGNS, ["b.py"]) == []
    more = Signs(reached=(place, place, replace(place, line=9)))
    assert more.reached_beyond(found.signs, ["a.py"]) == [place, replace(place, line=9)]
    assert found.signs.beyond(Signs(("x",), (CALL,)), ["a.py"]) == ["y"]
    assert found.signs.beyond(Signs(("x", "y")), ["a.py"]) == [
        "pytest called a further function of a.py as the hook pytest_runtest_call"
    ]
    assert found.signs.beyond(Signs(("x", "y")), ["b.py"]) == []


@pytest.mark.parametrize(
    ("now", "counts"),
    [
        ((CALL,), []),
        ((CALL, CALL), []),  # the guard reports a hook twice: after the tests are collected, and at the end
        ((replace(CALL, place="Renamed.pytest_runtest_call"),), []),
        ((CALL, replace(CALL, place="Second.pytest_runtest_call")), ["pytest_runtest_call"]),
        ((CALL, replace(CALL, name="pytest_runtest_makereport", place="f")), ["pytest_runtest_makereport"]),
        ((CALL, replace(CALL, path="b.py")), []),  # the patch does not change this file
    ],
)
def test_hooks_are_compared_by_file_and_name(now: tuple[Hook, ...], counts: list[str]) -> None:
    """A further hook counts also in a file that had hooks."""
    signs = Signs(hooks=now).beyond(Signs(hooks=(CALL,)), ["a.py"])
    assert [sign.rpartition(" ")[2] for sign in signs] == counts


@pytest.mark.parametrize(
    ("canaries", "usual", "counts"),
    [
        ((3, 0), ORDINARY, True),
        ((0, 0), ORDINARY, True),
        ((3, 0), Signs(canaries=(3, 0)), False),  # such as a folder of tests that are all skipped
        ((3, 0), NO_SIGNS, False),
        (None, ORDINARY, False),  # the run did not come to its end, which counts by itself
        ((3, 1), ORDINARY, False),
    ],
)
def test_canaries_must_fail(canaries: tuple[int, int] | None, usual: Signs, counts: bool) -> None:
    found = Signs(canaries=canaries).beyond(usual, ())
    assert found == (["no test that must fail did fail"] if counts else [])


@pytest.mark.parametrize(
    ("outcome", "stopped", "canaries"),
    [
        ("passed", "", (0, 0)),
        ("xfailed", "", (0, 0)),
        ("error", "", None),  # a file that cannot be imported: no test claims to pass
        ("skipped", "", None),
        ("passed", "1", None),
    ],
)
def test_a_run_without_canaries(outcome: str, stopped: str, canaries: tuple[int, int] | None) -> None:
    lines = (
        told(1, "result", "a", outcome, "0", ""),
        told(2, "canaries", "0", "0"),
        told(3, "end", "1", stopped),
    )
    assert read(*lines).signs.canaries == canaries


@given(st.binary(max_size=200), st.integers(0, 200))
def test_nothing_counts_without_the_key(noise: bytes, cut: int) -> None:
    forged = told(1, "result", "a", "passed", "0", "", key=b"x" * 32) + told(2, "end", "0", "", key=b"x" * 32)
    found = read(noise[:cut], forged, noise[cut:], b"\n", forged)
    assert found == Reading()


@given(st.text(alphabet=string.printable + "äß漢\t\n\\", max_size=40))
def test_any_text_is_read_as_it_was(text: str) -> None:
    assert read(told(1, "result", text, "skipped", "0", text)).outcomes == {text: "skipped"}


@given(
    st.lists(st.lists(st.text(max_size=6) | st.sampled_from(["code", "ran", "end", "canaries"]), max_size=5))
)
def test_lines_with_the_key_may_hold_anything(lines: list[list[str]]) -> None:
    """Code under test may find the key."""
    read(*(told(number, *fields) for number, fields in enumerate(lines, 1)))
