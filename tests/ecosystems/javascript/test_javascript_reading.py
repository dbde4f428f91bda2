"""What the records of a run mean, without a sandbox."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Command, Job, Output, Reading, Result, Suite, Tree
from m3agent.tools.runners.javascript import JAVASCRIPT
from m3agent.tools.runners.run import report_of
from tests.ecosystems.records import KEY, signed

SUITE = Suite("mocha", "app")
TREE = Tree([], lambda _: b"")


def read(text: bytes, **fields: object) -> tuple[Reading, Output]:
    output = Output(Command(("node",)), 0, text, key=KEY, **fields)  # type: ignore[arg-type]
    return JAVASCRIPT["mocha"].read(Job(SUITE, TREE), (), [output]), output


def test_paths_are_those_of_the_repository() -> None:
    reading, _ = read(
        signed(
            ["plan", "/ws/app/test/a.js"],
            ["start", "test/a.js", ["group", "a\n b"]],
            ["result", "file:///ws/app/test/a.js", ["group", "a\n b"], "passed", ""],
            ["result", "/ws/app/test/b.js", [], "error", "no such module"],
            ["unit", "/ws/app/test/a.js"],
            ["end"],
        )
    )
    assert reading.results == [
        Result("app/test/a.js::group > a b", "passed"),
        Result("app/test/b.js", "error", "no such module"),
    ]
    assert reading.started == ["app/test/a.js::group > a b"]
    assert (reading.planned, reading.reported, reading.ended) == ({"app/test/a.js"}, {"app/test/a.js"}, True)


def test_the_worst_of_equal_names_counts() -> None:
    file = "test/a.js"
    reading, output = read(
        signed(
            ["plan", file],
            ["start", file, ["twice"]],
            ["start", file, ["twice"]],
            ["result", file, ["twice"], "failed", "first"],
            ["result", file, ["twice"], "passed", ""],
            ["unit", file],
            ["end"],
        )
    )
    found = report_of(reading, (), [output])
    assert (found.failed, found.errors) == (("app/test/a.js::twice",), {"app/test/a.js::twice": "first"})
    assert found.complete


def test_a_file_without_an_end_is_red() -> None:
    reading, output = read(signed(["plan", "test/a.js"], ["end"]))
    found = report_of(reading, (), [output])
    assert found.red == {"app/test/a.js"}
    assert not found.complete


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", signed(["end"], key=b"another"), signed(["result"])[:40]])
def test_an_unreadable_report_is_a_run_that_did_not_end(text: bytes) -> None:
    reading, output = read(text)
    assert not reading.ended
    assert not report_of(reading, (), [output]).complete


def test_a_missing_package_is_named() -> None:
    reading, _ = read(b"", stderr=b"m3agent: the package mocha is not installed in node_modules\n")
    assert reading.problem == "the package mocha is not installed in node_modules"
    assert not reading.ended


def test_signs_of_tampering_are_reported() -> None:
    reading, output = read(signed(["tampering", "the code under test replaced it()"], ["end"]))
    assert report_of(reading, (), [output]).signs.forged == ("the code under test replaced it()",)
