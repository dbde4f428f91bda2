"""The loop: ask the model, carry out its calls, again, until it is done, stuck or at a limit.

The history only ever grows: each request's messages are the last one's plus what came since. Every call gets exactly
one result. Nothing here knows which model or sandbox it drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from m3agent.agent import events, gate, prompt, turn_events
from m3agent.agent.context.output import shown, writes_marker
from m3agent.agent.conversation import Conversation, Digest
from m3agent.agent.limits import Limits
from m3agent.agent.resume import Outstanding, ResumePoint
from m3agent.agent.session import Session
from m3agent.agent.stall import StallDetector, Verdict, as_seen
from m3agent.sandbox.base import Sandbox
from m3agent.serving.chat import Delta, ToolCall, Turn
from m3agent.serving.client import Client
from m3agent.serving.errors import DeadlineExceeded, ModelServerError
from m3agent.serving.prices import Prices
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.registry import Toolset

SUMMARY_TOKENS = 2000
SUMMARY_SECONDS = 120.0
READ_ONLY = frozenset({"file_read"})
"""Tools that cannot change the work tree: no checkpoint is taken after them."""
SAID = frozenset({"reasoning", "text"})


@dataclass(frozen=True)
class Outcome:
    """Why the loop ended: `done` (the model said so and the gate let it through), `limit` or `stalled`.

    reason: one sentence. text: the model's last words.
    """

    kind: Literal["done", "limit", "stalled"]
    reason: str
    text: str


class Chanting(Exception):
    """An answer on its way says the same over and over, and was not waited for."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass
class Loop:
    """One session's conversation with a model."""

    client: Client
    sandbox: Sandbox
    tools: Toolset
    session: Session
    limits: Limits
    messages: Conversation
    prices: Prices | None = None
    thinking: Literal["enabled", "disabled", "adaptive"] = "adaptive"
    on_delta: Callable[[Delta], None] = lambda _: None
    calls: int = 0
    turn: int = 0
    stall: StallDetector = field(default_factory=StallDetector)
    asked: int = 0
    """Times that the gate has told the model what is missing."""
    tested_tree: str | None = None
    """The state of the work tree that the last test run saw."""
    tests: Mapping[str, Any] | None = None
    """What the last run of `test_runner` gave: the lists passed, failed, errored, skipped of ids."""
    _digest: Digest = field(default_factory=Digest)
    _digested: int = 0

    def go_on_from(self, point: ResumePoint) -> None:
        """Take up what an earlier process of this session had come to."""
        self.turn, self.calls, self.asked = point.turn, point.calls, point.asked
        self.tested_tree, self.tests, self.stall = point.tested_tree, point.tests, point.stall

    async def run(self, outstanding: Sequence[Outstanding] = ()) -> Outcome:
        """Turns until an outcome; first, in a resumed session, the calls that the model has no results of.

        Raises:
            SandboxError, ModelServerError, M3AgentError: what ends a session early; the caller reports it.
        """
        if stop := await self._carry_out(outstanding):
            return Outcome("stalled", stop.text, "")
        if self.messages[-1]["role"] == "assistant":
            self._tell(prompt.RESUMED)
        while True:
            if limit := self.limits.reached():
                return await self._at_limit(limit)
            try:
                answer = await self._ask("auto")
            except DeadlineExceeded:
                return await self._at_limit(f"{self.limits.minutes:g} minutes")
            except Chanting as chanting:
                note, stop = await self._heed(chanting.verdict)
                if stop is not None:
                    return Outcome("stalled", stop.text, "")
                self._tell(note)
                continue
            message = answer.message
            verdict = self.stall.answered(
                reasoning=message.reasoning,
                text=message.text,
                calls=len(message.calls),
                finish=answer.finish,
            )
            note, stop = await self._heed(verdict)
            if message.calls:
                stop = await self._carry_out([Outstanding(call) for call in message.calls], note) or stop
            if stop is not None:
                return Outcome("stalled", stop.text, message.text)
            if message.calls:
                continue
            if answer.finish == "length":
                self._tell(prompt.CUT_OFF, note)
                continue
            tree = await self.sandbox.checkpoint()
            changed = tree != self.sandbox.workspace.base
            missing = gate.missing(
                text=message.text, changed=changed, tested_since_change=self.tested_tree == tree
            )
            self.session.write(events.Gate(turn=self.turn, missing=missing, asked=self.asked))
            if not missing or self.asked >= gate.MOST_ASKED:
                return Outcome("done", "the model says it is done", message.text)
            self.asked += 1
            self._tell(missing, note)

    async def _ask(
        self,
        tool_choice: Literal["auto", "none"],
        max_tokens: int | None = None,
        deadline: float | None = None,
    ) -> Turn:
        """One request; its answer is in the history and the log when this returns.

        Raises:
            Chanting: it was going round in circles; the history is as before.
        """
        self.turn += 1
        self._digest.add(self.messages[self._digested :])
        self._digested = len(self.messages)
        self.session.write(
            events.TurnStarted(turn=self.turn, messages=self._digested, digest=str(self._digest))
        )
        answer = None
        stream = self.client.complete(
            self.messages,
            self.tools.schemas(),
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            thinking=self.thinking,
            deadline=deadline or self.limits.deadline,
        )
        async with contextlib.aclosing(stream):
            async for item in stream:
                if isinstance(item, Turn):
                    answer = item
                    continue
                self.on_delta(item)
                if item.kind in SAID and (verdict := self.stall.hear(item.text)):
                    self.on_delta(Delta("reset", ""))
                    raise Chanting(verdict)
        assert answer is not None, "a client's stream ends in a Turn"
        price = self.prices.of(answer.usage, answer.seconds) if self.prices is not None else None
        self.limits.used.add(answer, price)
        self.session.write(turn_events.message(self.turn, answer))
        self.session.write(turn_events.turn_finished(self.turn, answer, price))
        self.messages.append(answer.message.to_request(self.client.reasoning_field))
        return answer

    async def _carry_out(self, calls: Sequence[Outstanding], note: str = "") -> Verdict | None:
        """Run a turn's calls in order; returns the verdict that stops the loop, if one does.

        Notes stand inside a result, never in a new user message: templates may drop earlier reasoning then.
        """
        stop: Verdict | None = None
        notes = [note]
        for outstanding in calls:
            call, result = outstanding.call, outstanding.result
            known = result is not None
            if result is None:
                result = await self._call(call)
            elif outstanding.begun is not None and outstanding.ended is None:
                number, tree = outstanding.begun["call"], self.sandbox.tree
                self.session.write(
                    turn_events.call_finished(self.turn, number, call, result, "interrupted", 0.0, tree)
                )
            content = shown(result.content)
            if not known:
                verdict = self.stall.see(as_seen(call, result, content, self.sandbox.tree))
                note, ends = await self._heed(verdict)
                notes.append(note)
                stop = ends or stop
            content += "".join(f"\n\n[note: {note}]" for note in filter(None, notes))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            notes = []
        return stop

    async def _heed(self, verdict: Verdict | None) -> tuple[str, Verdict | None]:
        """Log what the stall detector found: the words that tell the model of it, and the verdict if it ends the run."""
        if verdict is None:
            return "", None
        text = verdict.text
        if verdict.action == "force":
            diff = (await self.sandbox.patch()).text.decode(errors="replace")
            text += f"\n\n{prompt.where_it_stands(self.tests, shown(diff))}"
        self.session.write(turn_events.stall(self.turn, verdict, text))
        return ("", verdict) if verdict.action == "stop" else (text, None)

    async def _call(self, call: ToolCall) -> ToolResult:
        """One call: logged before and after its side effect, also when it is interrupted."""
        self.calls += 1
        number, before = self.calls, self.sandbox.tree
        self.session.write(
            events.CallStarted(
                turn=self.turn, call=number, id=call.id, name=call.name, arguments=call.arguments, tree=before
            )
        )
        started = time.monotonic()

        def finish(result: ToolResult, status: turn_events.CallStatus, tree: str) -> None:
            seconds = time.monotonic() - started
            self.session.write(
                turn_events.call_finished(self.turn, number, call, result, status, seconds, tree)
            )

        try:
            if problem := writes_marker(call.name, call.arguments):
                result = refusal(problem)
            else:
                result = await self.tools.call(call.name, call.arguments, number, call.error)
            after = before if call.name in READ_ONLY else await self.sandbox.checkpoint()
        except asyncio.CancelledError:
            finish(ToolResult("interrupted", is_error=True), "interrupted", before)
            raise
        refused = result.is_error and result.content.startswith("error: ")
        finish(result, "refused" if refused else "done", after)
        if after != before:
            changes = self.sandbox.workspace.store.changed_paths(before, after)
            self.session.write(events.FileChanged(turn=self.turn, call=number, changes=changes, tree=after))
        if "passed" in result.data:
            self.tested_tree, self.tests = after, result.data
            self.session.write(turn_events.tests_finished(number, result, after))
        elif call.name == "code_exec" and not refused:
            # a model may well run its tests by hand; what it runs sees the tree as it is now
            self.tested_tree = (
                after if "test" in str((call.arguments or {}).get("code")) else self.tested_tree
            )
        return result

    async def _at_limit(self, limit: str) -> Outcome:
        """One last request without tools (they stay in the prompt, so that its prefix does) for a summary."""
        self._tell(prompt.LIMIT_REACHED.format(limit=limit))
        reason = f"the limit of {limit} was reached"
        try:
            answer = await self._ask("none", SUMMARY_TOKENS, time.monotonic() + SUMMARY_SECONDS)
        except (ModelServerError, Chanting):
            return Outcome("limit", reason, "")  # the work counts, not the summary of it
        return Outcome("limit", reason, answer.message.text)

    def _tell(self, *texts: str) -> None:
        self.messages.append({"role": "user", "content": "\n\n".join(filter(None, texts))})
