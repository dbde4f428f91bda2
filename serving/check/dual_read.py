"""Read one answer of a server in two ways: strictly as documented, and with m3agent's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from m3agent.serving.check.script import TOOLS, ScriptedMessage
from m3agent.serving.client.client import Client
from m3agent.serving.client.stream.accumulator import Accumulator
from m3agent.serving.client.stream.chunk import call_pieces, content_of, first_choice, reasoning_pieces
from m3agent.serving.errors import StreamCut


@dataclass(frozen=True)
class DualReading:
    """An answer, read in two ways."""

    plain: ScriptedMessage
    """Message by the server's own parsers, without repairs."""
    ours: ScriptedMessage
    """Message by m3agent's client, which repairs known faults."""
    finish: str | None
    beginning: str
    """First characters of the answer: reasoning, text or call, whichever came first."""


async def hear(client: Client, body: bytes, deadline: float) -> DualReading:
    """Send one chat request that offers `TOOLS`, and read the answer.

    Args:
        deadline: Instant of `time.monotonic()`.

    Raises:
        ModelServerError: There was no complete answer.
    """
    plain, ours = _Plain(), Accumulator(TOOLS, 1)
    async with aclosing(client.chunks(body, ours, deadline)) as chunks:
        async for chunk in chunks:
            plain.add(chunk)
            ours.add(chunk)
    ours.close()
    if ours.finish_reason is None:
        raise StreamCut(client.endpoint.host, "the stream ended without a finish reason")
    message, _ = ours.finish(token_limit_reached=False)
    calls = tuple(
        (call.name, call.arguments_text if call.arguments is None else call.arguments)
        for call in message.calls
    )
    return DualReading(
        plain.said(client.endpoint.reasoning_field),
        ScriptedMessage(message.reasoning, message.text, calls),
        ours.finish_reason,
        plain.beginning,
    )


class _Plain:
    """Adds up deltas as OpenAI's API documents it: joins text, and joins calls by their index."""

    def __init__(self) -> None:
        self.beginning = ""
        self._reasoning: dict[str, str] = {}  # by the name of its field
        self._text = ""
        self._calls: dict[int, tuple[str, str]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add the JSON of one event, or of a whole answer."""
        choice = first_choice(chunk.get("choices")) or {}
        part = choice.get("delta") or choice.get("message")
        if not isinstance(part, dict):
            return
        pieces = list(self._take(part))
        if len(self.beginning) < _BEGINNING:
            self.beginning = (self.beginning + "".join(pieces))[:_BEGINNING]

    def said(self, reasoning_field: str) -> ScriptedMessage:
        """Return the message.

        If reasoning came in several fields, the result has the field that this kind of server uses.
        """
        reasoning = self._reasoning.get(reasoning_field) or next(iter(self._reasoning.values()), "")
        calls = tuple((name, _value(arguments)) for _, (name, arguments) in sorted(self._calls.items()))
        return ScriptedMessage(reasoning, self._text, calls)

    def _take(self, part: Mapping[str, Any]) -> Iterator[str]:
        for field, _, piece in reasoning_pieces(part):
            self._reasoning[field] = self._reasoning.get(field, "") + piece
            yield piece
        text = content_of(part)
        self._text += text
        yield text
        for place, call in enumerate(call_pieces(part)):
            index = call.get("index")
            number = index if isinstance(index, int) else place
            given = call.get("function")
            function: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
            name, arguments = self._calls.get(number, ("", ""))
            more = function.get("arguments") or ""
            more = more if isinstance(more, str) else json.dumps(more, ensure_ascii=False)
            self._calls[number] = (name + (function.get("name") or ""), arguments + more)
            yield more


_BEGINNING = 200  # characters


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
