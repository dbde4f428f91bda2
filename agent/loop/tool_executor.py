"""Run the model's tool calls one by one, and remember the outcomes of tests in them.

Each call is logged before and after it, and the work tree is saved after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from m3agent.agent.context.output import writes_marker
from m3agent.agent.loop import turn_events
from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.agent.verify.flaky import members
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.registry import Toolset, understood
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
        """Add a run of the test tool. A run in which no test ran shows nothing."""
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

    Returns the sorted ids that passed without the change, or whose file has a test that passed; and those
    that the baseline does not have. Ids of unittest, which differ from pytest's, are left out.
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


INTERRUPTED = (
    "interrupted: the call started and did not finish, and m3agent does not run it again; the work tree is as before it. "
    "Call it again if you need it"
)
OUT_OF_TIME = "the session's time limit was reached during this call, so it was ended"


@dataclass(frozen=True)
class PendingCall:
    """A tool call that has no result in the conversation yet."""

    call: ToolCall
    """The call that the model requested."""
    started: Line = field(default_factory=dict)
    """Its `call.started` in the log of a resumed session; empty if the call never started."""
    finished: Line = field(default_factory=dict)
    """Its `call.finished` in that log; empty if the call never ended."""

    @property
    def result(self) -> ToolResult | None:
        """The result for the model, from the log; None if the call still has to run."""
        if self.finished and self.finished["status"] != "interrupted":
            return turn_events.result_of(self.finished)
        return ToolResult(INTERRUPTED, is_error=True) if self.started else None

    @property
    def is_cut_off(self) -> bool:
        """Whether the call started and never ended."""
        return bool(self.started) and not self.finished


@dataclass
class Calls:
    """Runs the tool calls of a session."""

    sandbox: Sandbox
    tools: Toolset
    session: Session
    number: int = 0
    """Number of the last call."""
    tests: SessionTests = field(default_factory=SessionTests)
    deadline: float | None = None
    """When the session's time limit is reached, on the monotonic clock in seconds. A call that still runs is then ended."""

    async def run(self, call: ToolCall, turn: int) -> ToolResult:
        """Run one call and return its result. Log it before and after its side effect, even if it is interrupted.

        Raises SandboxError: The sandbox failed. A failed call is a result, not an error.
        """
        self.number += 1
        number, before = self.number, self.sandbox.tree
        self.session.write(
            events.CallStarted(
                turn=turn, call=number, id=call.id, name=call.name, arguments=call.arguments, tree=before
            )
        )
        started = time.monotonic()
        traits, arguments = understood(call.name, call.arguments)

        def finish(result: ToolResult, status: turn_events.CallStatus, tree: str) -> None:
            seconds = time.monotonic() - started
            self.session.write(turn_events.call_finished(turn, number, call, result, status, seconds, tree))

        try:
            if problem := writes_marker(call.name, call.arguments):
                result = refusal(problem)
            else:
                result = await self._call(call, number)
            # MCP tools work outside the sandbox
            may_change = traits.may_change_tree and call.name not in self.tools.other_names
            after = await self.sandbox.checkpoint() if may_change else before
        except asyncio.CancelledError:
            finish(ToolResult("interrupted", is_error=True), "interrupted", before)
            raise
        finish(result, "refused" if result.is_refused else "done", after)
        if after != before:
            changes = self.sandbox.workspace.store.changed_paths(before, after)
            self.session.write(events.FileChanged(turn=turn, call=number, changes=changes, tree=after))
        if "passed" in result.data:
            self.tests.add_run(result.data, after)
            self.session.write(turn_events.tests_finished(number, result, after))
        elif not result.is_refused and traits.kind == "execute":
            self.tests.add_program(traits.runs_tests(arguments), result.exit_code, after)
        return result

    async def _call(self, call: ToolCall, number: int) -> ToolResult:
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await self.tools.call(call.name, call.arguments, number, call.error)
        except TimeoutError:
            if not limit.expired():
                raise
            return ToolResult(OUT_OF_TIME, is_error=True)
