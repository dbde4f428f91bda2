"""Read one answer of a server in two ways: strictly as documented, and with m3agent's own client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from m3agent.serving.check.script import TOOLS, ScriptedMessage
from m3agent.serving.client.client import Client
from m3agent.serving.client.parameters import Sampling, request_parameters
from m3agent.serving.client.request_body import RequestBody
from m3agent.serving.client.stream.accumulator import Accumulator
from m3agent.serving.client.stream.chunk import call_pieces, content_of, first_choice, reasoning_pieces
from m3agent.serving.errors import StreamCut
from m3agent.serving.wire import ThinkingMode
from m3agent.serving.wire.arguments import NAMESPACE
from m3agent.util.json_value import mapping


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


async def hear(
    client: Client,
    text: str,
    thinking: ThinkingMode,
    *,
    max_tokens: int,
    seconds: float,
    stream: bool = True,
    **more: object,
) -> DualReading:
    """Send one message of a user with `TOOLS`, and read the answer.

    Args:
        seconds: Time limit of the answer.
        more: Further parameters of the request.

    Raises:
        ModelServerError: There was no complete answer.
    """
    parameters = request_parameters(
        client.endpoint,
        TOOLS,
        tool_choice="auto",
        max_tokens=max_tokens,
        thinking=thinking,
        sampling=Sampling(temperature=0.0),
        stream=stream,
    )
    body = RequestBody().encode([{"role": "user", "content": text}], parameters | more)
    plain, ours = _Plain(), Accumulator(TOOLS, 1)
    async with aclosing(client.chunks(body, ours, time.monotonic() + seconds)) as chunks:
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
            function = mapping(call.get("function"))
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


_SHOWN = 24  # characters to quote on each side of a difference


def faults(said: ScriptedMessage, wanted: ScriptedMessage) -> list[str]:
    """Return what is wrong with a message that should equal `wanted`; empty if nothing is."""
    wrong: list[str] = []
    within = bool(wanted.reasoning) and wanted.reasoning in said.text
    if within:
        wrong.append("the reasoning is inside the text")
    elif "mm:think>" in said.text:
        wrong.append("think tags are inside the text")
    elif difference := _difference(wanted.reasoning, said.reasoning, "the reasoning"):
        wrong.append(difference)
    for place, text in (("text", said.text), ("reasoning", said.reasoning)):
        if NAMESPACE in text:
            wrong.append(f"calls are inside the {place} as markup")
    if not wrong and (difference := _difference(wanted.text, said.text, "the text")):
        wrong.append(difference)
    if len(said.calls) == len(wanted.calls):
        return [*wrong, *_faults_of_calls(said, wanted)]
    if not any("markup" in fault for fault in wrong) or said.calls:
        wrong.append(f"{_count(len(said.calls))} received, not {len(wanted.calls)}")
    return wrong


def _faults_of_calls(said: ScriptedMessage, wanted: ScriptedMessage) -> Iterator[str]:
    for number, (call, right) in enumerate(zip(said.calls, wanted.calls, strict=True), start=1):
        if call[0] != right[0]:
            yield f"call {number} is to {call[0]!r}, not to {right[0]!r}"
        elif difference := _difference(right[1], call[1], f"call {number}"):
            yield difference


def _count(number: int) -> str:
    return {0: "no call", 1: "1 call"}.get(number, f"{number} calls")


def _difference(wanted: Any, got: Any, where: str) -> str | None:
    """Return the first difference between two JSON values, or None.

    Numbers compare as in JSON, but a truth value never equals a number.
    """
    match wanted, got:
        case dict(), dict():
            differences = (
                _difference_at(key, wanted, got, f"{key!r} of {where}") for key in {**wanted, **got}
            )
            return next(filter(None, differences), None)
        case list(), list() if len(wanted) == len(got):
            entries = enumerate(zip(wanted, got, strict=True), start=1)
            differences = (
                _difference(right, entry, f"entry {at} of {where}") for at, (right, entry) in entries
            )
            return next(filter(None, differences), None)
        case list(), list():
            return f"{where} has {len(got)} entries, not {len(wanted)}"
        case str(), str():
            return _difference_of_texts(wanted, got, where)
    if wanted == got and isinstance(wanted, bool) == isinstance(got, bool):
        return None
    return f"{where} is {_short(got)}, not {_short(wanted)}"


def _difference_at(key: str, wanted: Mapping[str, Any], got: Mapping[str, Any], where: str) -> str | None:
    if key not in got:
        return f"{where} is missing"
    return _difference(wanted[key], got[key], where) if key in wanted else f"{where} was added"


def _difference_of_texts(wanted: str, got: str, where: str) -> str | None:
    if wanted == got:
        return None
    if not got:
        return f"{where} is missing"
    if wanted.rstrip("\n") == got:
        return f"{where} lost the newline at its end"
    pairs = enumerate(zip(wanted, got, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(wanted), len(got)))
    start = max(0, at - _SHOWN)
    return f"{where} has {got[start : at + _SHOWN]!r} where {wanted[start : at + _SHOWN]!r} was written"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "…"
