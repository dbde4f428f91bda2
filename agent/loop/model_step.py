"""Send the loop's requests to the model: log each request, count its usage, and watch each answer while it streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from m3agent.agent.loop import turn_events
from m3agent.agent.loop.compaction import MOST_STEP
from m3agent.agent.loop.limits import RunLimits
from m3agent.agent.session import events
from m3agent.agent.session.messages import Conversation
from m3agent.agent.session.session import Session
from m3agent.agent.session.token_log import TokenLog
from m3agent.agent.stall import StallDetector, StallVerdict
from m3agent.serving.client.client import Client
from m3agent.serving.client.messages import NO_ANSWER, Delta, Turn
from m3agent.serving.client.parameters import Sampling
from m3agent.serving.client.prices import Prices
from m3agent.serving.wire import ThinkingMode

SAID = frozenset({"reasoning", "text"})
LEAST_KEPT = 0.5
"""Share of the last prompt that a cache must still have. Blocks at its end are missing now and then, but not half of it."""
LONG_PROMPT = 10_000
"""Tokens of the last prompt from which it matters that it is read again: shorter ones take a second or less."""


class RepetitiveStream(Exception):
    """A streaming answer repeats itself over and over; it was aborted."""

    def __init__(self, verdict: StallVerdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass
class Model:
    """One session's conversation with a model server."""

    client: Client
    """Sends the requests."""
    session: Session
    """The session's event log."""
    limits: RunLimits
    """The limits of the session, and its usage so far."""
    messages: Conversation
    """The conversation."""
    stall: StallDetector
    """Watches the stream for repetition."""
    tools: Sequence[dict[str, Any]]
    """The `tools` list of every request."""
    prices: Prices | None = None
    """Prices of the server; None if unknown."""
    thinking: ThinkingMode = "enabled"
    """Thinking mode of every request."""
    sampling: Sampling = Sampling()  # noqa: RUF009  # it is frozen
    """Sampling parameters of every request."""
    on_delta: Callable[[Delta], None] = lambda _: None
    """Receives the stream's deltas."""
    turn: int = 0
    """Number of the last request, from 1; 0 before the first."""
    failure: str = ""
    """Why the present request had to be sent again; empty if it had not."""
    _read: int | None = None  # tokens of the last prompt, with which the next one begins
    _step_told: bool = False  # whether the person knows that requests are about to cost more
    tokens: TokenLog | None = None
    """Keeps the tokens of each turn; None if nobody needs them."""

    async def ask(
        self,
        tool_choice: Literal["auto", "none"] = "auto",
        max_tokens: int | None = None,
        deadline: float | None = None,
    ) -> Turn:
        """Send one request. Its answer is in the conversation and the log when this returns.

        Args:
            max_tokens: Most tokens of the answer; None means what the session's limit leaves, which is never exceeded.
            deadline: When to give up, on the monotonic clock; None means the session's time limit.

        Raises:
            RepetitiveStream: The answer repeated itself and was aborted; the conversation is unchanged.
            ModelServerError: There was no answer.
        """
        self.turn += 1
        self.failure = ""
        digest = self.messages.digest()
        self.session.write(events.TurnStarted(turn=self.turn, messages=len(self.messages), digest=digest))
        most = [number for number in (max_tokens, self.limits.left_tokens) if number is not None]
        stream = self.client.complete(
            self.messages,
            self.tools,
            tool_choice=tool_choice,
            max_tokens=min(most, default=None),
            thinking=self.thinking,
            sampling=self.sampling,
            deadline=deadline or self.limits.deadline,
        )
        answer = await self._watched(stream)
        self._record(answer)
        message = answer.message.to_request(self.client.reasoning_field)
        is_empty = not (answer.message.text.strip() or answer.message.calls)
        if is_empty and self.tokens is None:  # a conversation for training keeps the model's own tokens
            message["content"] = NO_ANSWER
        self.messages.append(message)
        return answer

    async def _watched(self, stream: AsyncGenerator[Delta | Turn, None]) -> Turn:
        """Pass an answer on while it streams; return it whole. Raises RepetitiveStream."""
        answer = None
        async with contextlib.aclosing(stream):
            async for item in stream:
                if isinstance(item, Turn):
                    answer = item
                    continue
                self.on_delta(item)
                if item.kind in SAID and (verdict := self.stall.hear(item.text)):
                    self.on_delta(Delta("reset", ""))
                    raise RepetitiveStream(verdict)
        assert answer is not None, "a client's stream ends in a Turn"
        return answer

    def _record(self, answer: Turn) -> None:
        """Count an answer, and write it to the log."""
        price = self.prices.of(answer.usage, answer.seconds) if self.prices is not None else None
        self.limits.add(answer, price)
        self.session.write(turn_events.message(self.turn, answer))
        self.session.write(turn_events.turn_finished(self.turn, answer, price))
        self._note_cache(answer)
        self._note_price_step(answer)
        if self.tokens is not None and answer.tokens is not None:
            kept, expected = self.tokens.add(self.turn, answer.tokens)
            if kept < expected:
                self.session.write(events.TokensDiffer(turn=self.turn, kept=kept, expected=expected))

    def _note_price_step(self, answer: Turn) -> None:
        """Log once that the next requests may be longer than the usual price allows."""
        prices, usage = self.prices, answer.usage
        if prices is None or prices.step is None or usage.prompt is None or self._step_told:
            return
        tokens = usage.prompt + (usage.completion or 0)
        if tokens + MOST_STEP > prices.step:
            self._step_told = True
            self.session.write(events.PriceStep(self.turn, tokens, prices.step, prices.times))

    def forget_prompt(self) -> None:
        """Forget the last prompt, because the next one does not begin with it."""
        self._read = None

    def _note_cache(self, answer: Turn) -> None:
        """Log what it cost if the cache no longer had the last prompt."""
        expected, self._read = self._read, answer.usage.prompt
        cached = answer.usage.cached
        if expected is None or cached is None or expected <= LONG_PROMPT or cached >= LEAST_KEPT * expected:
            return
        self.session.write(
            events.CacheLost(
                turn=self.turn,
                expected=expected,
                cached=cached,
                read_again=expected - cached,
                seconds=answer.first_token_seconds,
                reason=self.failure,
            )
        )
