"""Run the model's tool calls one by one. Log each call before and after it, and save the work tree after it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from m3agent.agent.context.output import writes_marker
from m3agent.agent.loop import turn_events
from m3agent.agent.loop.session_tests import SessionTests
from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.registry import Toolset, understood

INTERRUPTED = (
    "interrupted: the call started and did not finish, and it is not run again; the work tree is as before it"
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

        Raises:
            SandboxError: The sandbox failed. A failed call is a result, not an error.
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
