"""The model as the loop asks it: each request logged and accounted for, each answer listened to while it comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from m3agent.agent import events, turn_events
from m3agent.agent.conversation import Conversation
from m3agent.agent.limits import RunLimits
from m3agent.agent.session import Session
from m3agent.agent.stall import StallDetector, Verdict
from m3agent.serving.chat import Delta, Turn
from m3agent.serving.client import Client
from m3agent.serving.parameters import Sampling
from m3agent.serving.prices import Prices
from m3agent.serving.wire import ThinkingMode

SAID = frozenset({"reasoning", "text"})


class Chanting(Exception):
    """An answer on its way says the same over and over, and was not waited for."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


@dataclass
class Model:
    """One session's conversation with a model server; `turn` is the number of the last request."""

    client: Client
    session: Session
    limits: RunLimits
    messages: Conversation
    stall: StallDetector
    tools: Sequence[dict[str, Any]]
    """The `tools` list of every request."""
    prices: Prices | None = None
    thinking: ThinkingMode = "adaptive"
    sampling: Sampling = Sampling()  # noqa: RUF009  # it is frozen
    on_delta: Callable[[Delta], None] = lambda _: None
    turn: int = 0

    async def ask(
        self,
        tool_choice: Literal["auto", "none"] = "auto",
        max_tokens: int | None = None,
        deadline: float | None = None,
    ) -> Turn:
        """One request; its answer is in the history and the log when this returns.

        Raises:
            Chanting: it was going round in circles; the history is as before.
            ModelServerError: there was no answer.
        """
        self.turn += 1
        digest = self.messages.digest()
        self.session.write(events.TurnStarted(turn=self.turn, messages=len(self.messages), digest=digest))
        answer = None
        stream = self.client.complete(
            self.messages,
            self.tools,
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            thinking=self.thinking,
            sampling=self.sampling,
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
        self.limits.add(answer, price)
        self.session.write(turn_events.message(self.turn, answer))
        self.session.write(turn_events.turn_finished(self.turn, answer, price))
        self.messages.append(answer.message.to_request(self.client.reasoning_field))
        return answer
