"""Test what the session remembers of its test runs."""

from __future__ import annotations

import pytest

from m3agent.agent.loop.tool_executor import SessionTests, broken_and_added
from m3agent.tools.test_report import TestReport

OTHER = "test_a.py::test_other"
NEW = "test_a.py::test_new"


def result(**outcomes: list[str]) -> dict[str, list[str]]:
    return {"passed": [], "failed": [], "errored": [], "skipped": []} | outcomes


def baseline(passed: str = "", failed: str = "", errored: str = "", skipped: str = "") -> TestReport:
    return TestReport(
        tuple(passed.split()),
        tuple(failed.split()),
        tuple(errored.split()),
        tuple(skipped.split()),
        {},
        complete=True,
        timed_out=False,
        seconds=1.0,
        exit=0,
        output="",
        truncated=False,
    )


def test_the_last_outcome_of_each_test_on_a_tree_counts() -> None:
    tests = SessionTests()
    tests.add_run(result(passed=["a::x"], failed=["a::y"], errored=["b"]), "one")
    assert tests.red_on("one") == {"a::y", "b"}
    tests.add_run(result(passed=["a::y"], failed=["a::x"]), "one")
    assert tests.red_on("one") == {"a::x", "b"}
    assert tests.red_on("two") == set()
    tests.add_run(result(failed=["a::z"]), "two")
    assert (tests.red_on("one"), tests.red_on("two")) == (set(), {"a::z"})


def test_a_run_without_a_result_and_a_failed_command_show_nothing() -> None:
    tests = SessionTests()
    tests.add_run(result(skipped=["a::x"]), "one")
    tests.add_program(True, 1, "one")
    assert (tests.tree, tests.why_unclear("two")) == (None, "")
    assert "exit code 1, so" in tests.why_unclear("one")
    tests.add_program(True, 5, "one")
    assert "exit code 5 (in pytest: no test ran), so" in tests.why_unclear("one")
    tests.add_program(True, 0, "one")
    assert (tests.tree, tests.red_on("one")) == ("one", set())


def test_a_program_that_runs_no_tests_shows_nothing() -> None:
    tests = SessionTests()
    tests.add_program(False, 0, "one")
    assert (tests.tree, tests.not_counted, tests.why_unclear("one")) == (None, "one", "")


@pytest.mark.parametrize(
    ("known", "red", "broken", "added"),
    [
        (baseline(passed=OTHER), OTHER, [OTHER], []),
        (baseline(failed=OTHER), OTHER, [], []),
        (baseline(skipped=OTHER), OTHER, [], []),
        (baseline(passed=OTHER), NEW, [], [NEW]),
        (baseline(), NEW, [], [NEW]),
        # a file that cannot be imported any more
        (baseline(passed=OTHER), "test_a.py", ["test_a.py"], []),
        (baseline(failed=OTHER), "test_a.py", [], []),
        (baseline(), "test_new.py", [], ["test_new.py"]),
        # a file that could not be imported before: its tests are not new
        (baseline(errored="test_a.py"), NEW, [], []),
        (baseline(errored="test_a.py"), "test_a.py", [], []),
        # ids of unittest are other ids
        (baseline(passed=OTHER), "test_a.Tests.test_other", [], []),
    ],
)
def test_red_tests_that_the_change_is_responsible_for(
    known: TestReport, red: str, broken: list[str], added: list[str]
) -> None:
    assert broken_and_added({red}, known) == (broken, added)
