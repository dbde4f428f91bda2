"""Records of a reporter: what is authentic counts, up to the first record that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.tools.runners.base import Command, Output, Result, Suite, ident_of
from m3agent.tools.runners.records import MISSING, PASSED, path_of, read_records
from tests.ecosystems.records import KEY, signed

SUITE = Suite("jest", "web")
ENDED = [
    ["plan", "a.test.js"],
    ["start", "a.test.js", ["adds"]],
    ["result", "a.test.js", ["adds"], "passed", ""],
]


def lines(records: Sequence[Any], key: bytes = KEY, first: int = 1) -> bytes:
    return signed(*records, key=key, first=first) if records else b""


def output(report: bytes) -> Output:
    return Output(Command(("run",), report="/tmp/report"), 0, report, key=KEY)


def test_a_complete_report() -> None:
    records = [*ENDED, ["unit", "a.test.js"], ["tampering", "a canary passed"], ["end"]]
    reading = read_records(SUITE, [output(lines(records))])
    assert reading.ended
    assert reading.results == [Result("web/a.test.js::adds", "passed")]
    assert reading.started == ["web/a.test.js::adds"]
    assert (reading.planned, reading.reported) == ({"web/a.test.js"}, {"web/a.test.js"})
    assert reading.tampering == ["a canary passed"]


def test_a_run_ends_only_if_each_of_its_commands_does() -> None:
    whole, cut = output(lines([*ENDED, ["end"]])), output(lines(ENDED))
    assert read_records(SUITE, [whole, whole]).ended
    assert not read_records(SUITE, [whole, cut]).ended
    assert not read_records(SUITE, []).ended


def test_lines_without_the_key_do_not_count() -> None:
    """Code that finds the report can add lines, or change and repeat authentic ones."""
    forged = ["result", "a.test.js", ["adds"], "passed", ""]
    real = lines(
        [["start", "a.test.js", ["adds"]], ["result", "a.test.js", ["adds"], "failed", "1 != 2"], ["end"]]
    )
    expected = read_records(SUITE, [output(real)])
    assert expected.results == [Result("web/a.test.js::adds", "failed", "1 != 2")]
    first, second, third, _ = real.split(b"\n")
    for report in (
        lines([forged], key=b"x" * 32) + real,
        real + lines([forged], first=4)[:-40],
        b"\n".join([b"noise", first, b"3\t[]\tff", first, second, second, third, b""]),
    ):
        assert read_records(SUITE, [output(report)]) == expected


def test_a_missing_line_ends_the_report() -> None:
    first, _, third, _ = lines(
        [["start", "a.js", ["adds"]], ["result", "a.js", ["adds"], "failed", ""], ["end"]]
    ).split(b"\n")
    reading = read_records(SUITE, [output(b"\n".join([first, third]))])
    assert (reading.ended, reading.results, reading.started) == (False, [], ["web/a.js::adds"])


def test_unknown_outcomes_and_records() -> None:
    records = [
        ["result", "a.js", ["x"], "splendid", ""],
        ["future", 1],
        {"no": "array"},
        ["result", 1],
        ["end"],
    ]
    reading = read_records(SUITE, [output(lines(records))])
    assert reading.ended
    assert reading.results == [Result("web/a.js::x", "error")]


@given(st.binary(max_size=200), st.lists(st.sampled_from(ENDED), max_size=5))
def test_no_bytes_end_the_reader(noise: bytes, records: list[Any]) -> None:
    reading = read_records(SUITE, [output(lines(records) + noise)])
    assert not reading.ended
    assert len(reading.results) == sum(record[0] == "result" for record in records)


def test_ids_are_one_line_and_the_same_in_every_run() -> None:
    assert (
        ident_of("a.js", ["group\n one", "at 0x7f00aa12bb in /tmp/tmpab12/x"])
        == "a.js::group one > at * in /tmp/*/x"
    )
    assert len(ident_of("a.js", ["x" * 10_000])) < 600


def test_files_are_paths_of_the_repository() -> None:
    for given_path in (
        "src/a.js",
        "./src/a.js",
        "/ws/web/src/a.js",
        "file:///ws/web/src/a.js",
        "lib/../src/a.js",
    ):
        assert path_of(SUITE, given_path) == "web/src/a.js"
    assert path_of(SUITE, "/usr/lib/x.js") == "/usr/lib/x.js"
    assert path_of(Suite("go"), "a_test.go") == "a_test.go"


@pytest.mark.parametrize(
    ("counts", "signs"),
    [
        ([(1, 1, 0)], []),
        ([(1, 1, 0), (2, 2, 0)], []),
        ([(1, 1, 0), (1, 1, 1)], [PASSED]),
        ([(1, 0, 0)], [MISSING]),
        ([], [MISSING]),  # a passed test, but nothing tells of canaries
    ],
)
def test_canaries_must_run_and_must_not_pass(counts: list[tuple[int, int, int]], signs: list[str]) -> None:
    records = [*ENDED, *(["canaries", *each] for each in counts), ["end"]]
    report = output(lines(records))
    assert read_records(SUITE, [report], canaries=True).tampering == signs
    assert read_records(SUITE, [report]).tampering == []
