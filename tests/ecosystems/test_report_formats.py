"""JUnit's XML, TAP, and XML from strangers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.tools.runners.report_formats import MOST_DEPTH, Case, Point, parse_xml, read_junit, read_tap

JUNIT = b"""<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="outer" file="a.q">
<testcase name="one" classname="c"/>
<testcase name="two"><failure message="why">more</failure></testcase>
<testcase name="three"><error message="broke"/><failure message="too"/></testcase>
<testcase name="four"><skipped message="not here"/></testcase>
<testsuite name="inner"><testcase name="five" file="b.q" status="fail"/></testsuite>
</testsuite></testsuites>"""


def test_junit() -> None:
    assert read_junit(JUNIT) == (
        [
            Case("c", "one", "a.q", "passed", ""),
            Case("outer", "two", "a.q", "failed", "why\nmore"),
            Case("outer", "three", "a.q", "error", "broke\ntoo"),
            Case("outer", "four", "a.q", "skipped", "not here"),
            Case("inner", "five", "b.q", "failed", ""),
        ],
        True,
    )


def test_junit_that_is_cut_off_is_not_complete() -> None:
    cases, ended = read_junit(b'<testsuite name="a"><testcase name="one"/><testcase name="two"><fai')
    assert [(case.name, case.outcome) for case in cases] == [("one", "passed"), ("two", "failed")]
    assert not ended


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no xml",
        b"<html><testcase name='a'/></html>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><testsuite><testcase name="&b;"/></testsuite>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><testsuite><testcase name="a"/></testsuite>',
        b"<testsuite>" * (MOST_DEPTH + 1),
        b'<?xml version="1.0" encoding="no-such"?><testsuite><testcase name="a"/></testsuite>',
    ],
)
def test_junit_that_no_runner_writes(text: bytes) -> None:
    cases, ended = read_junit(text)
    assert not cases
    assert not ended


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_reading_never_fails(content: bytes) -> None:
    parse_xml(content)
    read_junit(JUNIT[: len(content)] + content)
    read_tap(content.decode("utf-8", "replace"))


def test_tap() -> None:
    tap = read_tap(
        "TAP version 13\n1..6\nok 1 - one\nnot ok 2 two\n# why\n  ---\nok 3 # SKIP no\nnot ok 4 later # TODO soon\n"
        "    ok 1 - inner\n    1..1\nok - five \\# 5\nokay\nok 6\n"
    )
    assert tap.points == [
        Point(1, "one", "passed"),
        Point(2, "two", "failed", "why\n  ---"),
        Point(3, "", "skipped", "no"),
        Point(4, "later", "skipped", "soon"),
        Point(5, "five # 5", "passed", "okay"),
        Point(6, "", "passed"),
    ]
    assert tap.complete
    assert tap.disorder == []


@pytest.mark.parametrize(
    ("text", "complete", "disorder"),
    [
        ("ok 1\n", False, []),
        ("1..2\nok 1\n", False, []),
        ("1..1\nok 1\nok 2\n", False, []),
        ("ok 1\n1..1\n", True, []),
        ("1..2\nok 1\nok 3\n", True, []),
        ("1..0 # skip all\n", True, []),
        ("1..1\n1..1\nok 1\n", True, ["it has two plans"]),
        ("1..1\nok 1\nnot ok 1\n", True, ["test 1 has two results"]),
        ("1..2\nok 2\nok 1\n", True, ["test 1 is out of order"]),
        ("1..1\nok 1\nBail out! no disk\n", False, []),
    ],
)
def test_tap_that_is_incomplete_or_contradicts_itself(text: str, complete: bool, disorder: list[str]) -> None:
    tap = read_tap(text)
    assert (tap.complete, tap.disorder) == (complete, disorder)
