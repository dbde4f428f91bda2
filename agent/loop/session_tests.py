"""Remember the outcomes of the session's test runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from m3agent.agent.verify.flaky import members
from m3agent.tools.runners.suites import file_of, without_suite
from m3agent.tools.test_report import NO_TESTS, TestReport

RAN = ("passed", "failed", "errored")
"""Outcomes of tests that show anything."""


@dataclass
class SessionTests:
    """The outcomes of test runs on one state of the work tree, the last one that tests ran on."""

    last: Mapping[str, Any] | None = None
    """Result of the last run of the test tool: lists of test ids under `passed`, `failed`, `errored`, `skipped`."""
    tree: str | None = None
    """The state of the work tree; None before the first run with a result."""
    outcomes: dict[str, bool] = field(default_factory=dict)
    """Whether each test passed in its last run on this state."""
    unclear: tuple[int | None, str] | None = None
    """The last command that runs tests, if it failed: its exit code and the state after it."""

    not_counted: str | None = None
    """The state after the last program that counts as no test run."""

    @property
    def passing(self) -> int:
        """How many tests passed in the last run of the test tool."""
        return len(self.last["passed"]) if self.last is not None else 0

    def add_run(self, result: Mapping[str, Any], tree: str) -> None:
        """Add a run of the test tool. A run in which no test ran shows nothing.

        Args:
            result: Lists of test ids by outcome.
            tree: State of the work tree after the run.
        """
        self.last = result
        if any(result[outcome] for outcome in RAN):
            self._move_to(tree)
            self.outcomes |= {ident: outcome == "passed" for outcome in RAN for ident in result[outcome]}

    def add_program(self, runs_tests: bool, exit_code: int | None, tree: str) -> None:
        """Add a program that the model ran. The outcome of tests in it is known only if it succeeded."""
        if not runs_tests:
            self.not_counted = tree
        elif exit_code == 0:
            self._move_to(tree)
        else:
            self.unclear = exit_code, tree

    def why_unclear(self, tree: str) -> str:
        """Return why the outcome of tests on a state is not known, in a clause; empty if no test ran on it."""
        if self.unclear is None or self.unclear[1] != tree:
            return ""
        code = self.unclear[0]
        meaning = " (in pytest: no test ran)" if code == NO_TESTS else ""
        return f"Your last command with tests ended with exit code {code}{meaning}, so their results are not known"

    def red_on(self, tree: str) -> set[str]:
        """Return the tests that are red on a state of the work tree, as far as the session knows."""
        return (
            {ident for ident, passed in self.outcomes.items() if not passed} if tree == self.tree else set()
        )

    def _move_to(self, tree: str) -> None:
        if tree != self.tree:
            self.tree, self.outcomes = tree, {}


def broken_and_added(red: set[str], baseline: TestReport) -> tuple[list[str], list[str]]:
    """Return the red tests that a change is responsible for.

    Args:
        red: Ids of red tests or files.
        baseline: The complete result of the tests without the change.

    Returns:
        The sorted ids that passed without the change, or whose file has a test that passed; and those that the baseline
        does not have. Ids of unittest, which differ from pytest's, are left out.
    """
    passed, others = set(baseline.passed), {*baseline.red, *baseline.skipped}
    inside_passed, inside_others = members(passed), members(others)
    broken = sorted(ident for ident in red if ident in passed or ident in inside_passed)
    known = {*broken, *others, *inside_others}
    files_red_before = {file_of(ident) for ident in baseline.red if "::" not in without_suite(ident)}
    added = sorted(
        ident
        for ident in red - known
        if ("::" in ident or "/" in ident or ident.endswith(".py")) and file_of(ident) not in files_red_before
    )
    return broken, added
