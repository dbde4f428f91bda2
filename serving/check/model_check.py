"""Check whether a model answers sensibly without a grammar: a call with given values, and a round trip.

Random weights fail both, and so do weights that were quantised or loaded wrongly. Nothing else distinguishes
such a server, because it answers fast and without errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from m3agent.serving.check.check import Check
from m3agent.serving.check.script import tool
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import Turn
from m3agent.serving.client.parameters import Sampling
from m3agent.serving.errors import ModelServerError, shorten
from m3agent.serving.wire import ThinkingMode

TRIES = 3
LIMIT = 60.0
"""Time limit of one answer, in seconds."""

_MOST_TOKENS = 768  # of an answer, with its thinking
# The first try takes the likeliest answer. Later tries use a higher temperature, or they would repeat the first.
_TEMPERATURES = (0.0, 0.4, 0.8)
_NONSENSE = "the model does not answer sensibly: its weights are random or were loaded wrongly"
_STATION, _VALUE, _READING = "quay-7", 48_213, 73_914


_NOTE = tool("note_reading", "Write down what a gauge reads.", station="string", value="integer")
_READ = tool("read_gauge", "Read the gauge at a station.", station="string")


async def model_check(
    endpoint: Endpoint,
    *,
    api_key: str | None,
    listen: Callable[[str], None] = lambda _: None,
    limit: float = LIMIT,
) -> list[Check]:
    """Request a call, then a call after some thinking whose result the next answer must use.

    The function never raises because of the server's answers.

    Args:
        limit: Time limit of one answer in seconds. There are at most nine answers.
    """
    async with Client(endpoint, api_key=api_key, attempts=1) as client:
        model = _Model(client, limit)
        listen("a tool call")
        first = await model.calls_a_tool()
        if not model.called:
            return [first, Check("thinking round trip", None, "not tried: no tool was called")]
        listen("a thinking round trip")
        return [first, await model.goes_round()]


class _Model:
    """Queries one model; `called` says whether it has called a tool so far."""

    def __init__(self, client: Client, limit: float) -> None:
        self.called = False
        self._client = client
        self._limit = limit

    async def calls_a_tool(self) -> Check:
        """Check a call whose arguments the request names."""
        name = "tool call"
        wanted = {"station": _STATION, "value": _VALUE}
        asked = (
            f"Call note_reading once, with station {_STATION!r} and value {_VALUE}. Nothing else is needed."
        )
        answer = ""
        for number in range(TRIES):
            try:
                turn = await self._ask([{"role": "user", "content": asked}], _NOTE, number, "adaptive")
            except ModelServerError as error:
                return Check(name, False, str(error))
            calls = [call for call in turn.message.calls if call.arguments is not None]
            self.called = self.called or any(call.name == "note_reading" for call in calls)
            if any(call.name == "note_reading" and call.arguments == wanted for call in calls):
                return Check(name, True, f"called with the given values, try {number + 1}")
            answer = calls[0].arguments_text if calls else turn.message.text or turn.message.reasoning
        if self.called:
            return Check(
                name, False, f"called with {shorten(answer)[:80]} instead of {wanted} in {TRIES} tries"
            )
        return Check(name, False, f"no call in {TRIES} tries, but {shorten(answer)[:60]!r}: {_NONSENSE}")

    async def goes_round(self) -> Check:
        """Check a call after thinking: reasoning and result go back, and the answer must contain the result."""
        name = "thinking round trip"
        asked = f"What does the gauge at station {_STATION!r} read? Find out with read_gauge, then tell me the number."
        history: list[Mapping[str, Any]] = [{"role": "user", "content": asked}]
        failure = ""
        for number in range(TRIES):
            try:
                turn = await self._ask(history, _READ, number, "enabled")
                message = turn.message
                if not any(call.name == "read_gauge" and call.arguments for call in message.calls):
                    failure = "the model did not call read_gauge"
                    continue
                if not message.reasoning.strip():
                    failure = "the answer has no reasoning although thinking is enabled"
                    continue
                results = [
                    {"role": "tool", "tool_call_id": call.id, "content": f"{_READING} hPa"}
                    for call in message.calls
                ]
                back = [message.to_request(self._client.reasoning_field), *results]
                answer = await self._ask([*history, *back], _READ, number, "enabled")
            except ModelServerError as error:
                return Check(name, False, str(error))
            if str(_READING) in answer.message.text.replace(",", "").replace("\u202f", ""):
                return Check(name, True, "the reasoning was sent back, and the answer has the tool's result")
            failure = (
                f"the answer lacks the tool's result ({_READING}): {shorten(answer.message.text)[:60]!r}"
            )
        return Check(name, False, f"{failure}, in {TRIES} tries")

    async def _ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tool: Mapping[str, Any],
        number: int,
        thinking: ThinkingMode,
    ) -> Turn:
        answer = self._client.complete(
            messages,
            [tool],
            max_tokens=_MOST_TOKENS,
            thinking=thinking,
            sampling=Sampling(temperature=_TEMPERATURES[number]),
            deadline=time.monotonic() + self._limit,
        )
        async with aclosing(answer):
            async for item in answer:
                if isinstance(item, Turn):
                    return item
        raise AssertionError("an answer ends in a turn or an error")
