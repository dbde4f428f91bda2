"""The loop: ask the model, carry out its calls, again, until it is done, stuck or at a limit.

The history only ever grows: each request's messages are the last one's plus what came since. Every call gets exactly
one result. Nothing here knows which model or sandbox it drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from m3agent.agent import events, gate, prompt
from m3agent.agent.accounting import cached_share, tokens_per_second
from m3agent.agent.context.output import shown, writes_marker
from m3agent.agent.limits import Limits
from m3agent.agent.session import Session
from m3agent.agent.stall import StallDetector, Verdict
from m3agent.sandbox.base import Sandbox
from m3agent.serving.chat import Delta, ToolCall, Turn
from m3agent.serving.client import Client
from m3agent.serving.errors import DeadlineExceeded, ModelServerError
from m3agent.serving.prices import Prices
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.registry import Toolset

MOST_CUT_OFF = 3
"""Answers in a row that may be cut off at the length limit before that counts as a stall."""
SUMMARY_TOKENS = 2000
SUMMARY_SECONDS = 120.0
READ_ONLY = frozenset({"file_read"})
"""Tools that cannot change the work tree: no checkpoint is taken after them."""


@dataclass(frozen=True)
class Outcome:
    """Why the loop ended: `done` (the model said so and the gate let it through), `limit` or `stalled`.

    reason: one sentence. text: the model's last words.
    """

    kind: Literal["done", "limit", "stalled"]
    reason: str
    text: str


@dataclass
class Loop:
    """One session's conversation with a model."""

    client: Client
    sandbox: Sandbox
    tools: Toolset
    session: Session
    limits: Limits
    messages: list[dict[str, Any]]
    prices: Prices | None = None
    thinking: Literal["enabled", "disabled", "adaptive"] = "adaptive"
    on_delta: Callable[[Delta], None] = lambda _: None
    calls: int = 0
    turn: int = 0
    stall: StallDetector = field(default_factory=StallDetector)
    tested_tree: str | None = None
    """The state of the work tree that the last test run saw."""
    _digest: Any = field(default_factory=hashlib.sha256)
    _digested: int = 0

    async def run(self) -> Outcome:
        """Turns until an outcome.

        Raises:
            SandboxError, ModelServerError, M3AgentError: what ends a session early; the caller reports it.
        """
        asked = cut_off = 0
        while True:
            if limit := self.limits.reached():
                return await self._at_limit(limit)
            try:
                answer = await self._ask("auto")
            except DeadlineExceeded:
                return await self._at_limit(f"{self.limits.minutes:g} minutes")
            message = answer.message
            if message.calls:
                cut_off = 0
                if verdict := await self._carry_out(message.calls):
                    return Outcome("stalled", verdict.text, message.text)
                continue
            if answer.finish == "length":
                cut_off += 1
                if cut_off >= MOST_CUT_OFF:
                    return Outcome(
                        "stalled", f"the answer was cut off {cut_off} times in a row", message.text
                    )
                self._tell(prompt.CUT_OFF)
                continue
            tree = await self.sandbox.checkpoint()
            changed = tree != self.sandbox.workspace.base
            missing = gate.missing(
                text=message.text, changed=changed, tested_since_change=self.tested_tree == tree
            )
            self.session.write(events.Gate(turn=self.turn, missing=missing, asked=asked))
            if not missing or asked >= gate.MOST_ASKED:
                return Outcome("done", "the model says it is done", message.text)
            asked += 1
            self._tell(missing)

    async def _ask(
        self,
        tool_choice: Literal["auto", "none"],
        max_tokens: int | None = None,
        deadline: float | None = None,
    ) -> Turn:
        """One request; its answer is in the history and the log when this returns."""
        self.turn += 1
        for new in self.messages[self._digested :]:
            self._digest.update(json.dumps(new).encode())
        self._digested = len(self.messages)
        self.session.write(
            events.TurnStarted(turn=self.turn, messages=self._digested, digest=self._digest.hexdigest())
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
                else:
                    self.on_delta(item)
        assert answer is not None, "a client's stream ends in a Turn"
        message, usage = answer.message, answer.usage
        price = self.prices.of(usage, answer.seconds) if self.prices is not None else None
        self.limits.used.add(answer, price)
        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.calls]
        self.session.write(
            events.Message(turn=self.turn, reasoning=message.reasoning, text=message.text, calls=calls)
        )
        self.session.write(
            events.TurnFinished(
                turn=self.turn,
                finish=answer.finish,
                prompt_tokens=usage.prompt,
                cached_tokens=usage.cached,
                completion_tokens=usage.completion,
                reasoning_tokens=usage.reasoning,
                cached_share=cached_share(usage),
                tokens_per_second=tokens_per_second(answer),
                first_token_seconds=answer.first_token_seconds,
                seconds=answer.seconds,
                price=price,
            )
        )
        self.messages.append(message.to_request(self.client.reasoning_field))
        return answer

    async def _carry_out(self, calls: tuple[ToolCall, ...]) -> Verdict | None:
        """Run a turn's calls in order; returns the verdict that stops the loop, if one does."""
        stop: Verdict | None = None
        for call in calls:
            result = await self._call(call)
            content = shown(result.content)
            verdict = self.stall.see(call.name, call.arguments, result.digest or result.content)
            if verdict is not None:
                action: Literal["told", "stopped"] = "stopped" if verdict.action == "stop" else "told"
                self.session.write(
                    events.Stall(
                        turn=self.turn,
                        rule=verdict.rule,
                        count=verdict.count,
                        action=action,
                        text=verdict.text,
                    )
                )
                # inside the result, never as a new user message: templates may drop earlier reasoning then
                content += f"\n\n[note: {verdict.text}]" if verdict.action == "tell" else ""
                stop = verdict if verdict.action == "stop" else stop
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        return stop

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
        try:
            if problem := writes_marker(call.name, call.arguments):
                result = refusal(problem)
            else:
                result = await self.tools.call(call.name, call.arguments, number, call.error)
            after = before if call.name in READ_ONLY else await self.sandbox.checkpoint()
        except asyncio.CancelledError:
            interrupted = ToolResult("interrupted", is_error=True)
            self._finish(call, number, interrupted, "interrupted", started, before)
            raise
        refused = result.is_error and result.content.startswith("error: ")
        self._finish(call, number, result, "refused" if refused else "done", started, after)
        if after != before:
            changes = self.sandbox.workspace.store.changed_paths(before, after)
            self.session.write(events.FileChanged(turn=self.turn, call=number, changes=changes, tree=after))
        if "passed" in result.data:
            self.tested_tree = after
            sets = {
                name: result.data[name] for name in ("passed", "failed", "errored", "skipped", "complete")
            }
            self.session.write(events.TestFinished(where="session", call=number, tree=after, **sets))
        elif call.name == "code_exec" and not refused:
            # a model may well run its tests by hand; what it runs sees the tree as it is now
            self.tested_tree = (
                after if "test" in str((call.arguments or {}).get("code")) else self.tested_tree
            )
        return result

    def _finish(
        self,
        call: ToolCall,
        number: int,
        result: ToolResult,
        status: Literal["done", "refused", "interrupted"],
        started: float,
        tree: str,
    ) -> None:
        self.session.write(
            events.CallFinished(
                turn=self.turn,
                call=number,
                id=call.id,
                name=call.name,
                status=status,
                content=result.content,
                is_error=result.is_error,
                exit_code=result.exit_code,
                digest=result.digest,
                truncated=result.truncated,
                full_path=result.full_path,
                data=result.data,
                seconds=round(time.monotonic() - started, 4),
                tree=tree,
            )
        )

    async def _at_limit(self, limit: str) -> Outcome:
        """One last request without tools (they stay in the prompt, so that its prefix does) for a summary."""
        self._tell(prompt.LIMIT_REACHED.format(limit=limit))
        reason = f"the limit of {limit} was reached"
        try:
            answer = await self._ask("none", SUMMARY_TOKENS, time.monotonic() + SUMMARY_SECONDS)
        except ModelServerError:
            return Outcome("limit", reason, "")  # the work counts, not the summary of it
        return Outcome("limit", reason, answer.message.text)

    def _tell(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
