"""From the pieces of one streamed answer, in any server's dialect, to the message they make."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from m3agent.serving import wire
from m3agent.serving.chat import AssistantMessage, Delta, FinishReason, ToolCall, Usage

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
# A server says these of an answer that it gave up on.
BROKEN_REASONS = frozenset({"abort", "error", "cancelled"})


@dataclass
class _ServerCall:
    """A call as the server parsed it, growing piece by piece."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Accumulator:
    """Adds up the chunks of one answer.

    Whatever the server left as text is read again by our own wire parser, its reasoning too: markup there
    is a server's fault, not something to show. `turn` numbers this answer, for calls that come without an id.
    Without `calls_allowed` (`tool_choice: none`) calls are dropped.
    """

    def __init__(self, tools: wire.Tools, turn: int, *, calls_allowed: bool = True) -> None:
        self._turn = turn
        self._calls_allowed = calls_allowed
        self._content = wire.StreamParser(tools)
        self._thoughts = wire.StreamParser(tools, "enabled")
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._calls: list[_ServerCall | wire.Call] = []  # in the order they began
        self._open: dict[int, _ServerCall] = {}
        self._partial: wire.Call | None = None
        self.finish_reason: str | None = None
        self.usage = Usage()

    def add(self, chunk: Mapping[str, Any]) -> list[Delta]:
        """Take the next chunk (the JSON of one event) and say what it brought."""
        if isinstance(usage := chunk.get("usage"), Mapping):
            self.usage = _usage(usage)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return []
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, Mapping):
            return []
        if reasoning := _reasoning(delta):
            self._content.reasoning_is_elsewhere()
        deltas = self._take(self._thoughts.feed(reasoning))
        deltas += self._take(self._content.feed(_plain_text(delta.get("content"))))
        pieces = delta.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, Mapping):
                deltas += self._take_call(piece)
        return deltas

    def close(self) -> list[Delta]:
        """Say that the stream is over; what was held back to see how it goes on comes out."""
        return self._take(self._thoughts.close()) + self._take(self._content.close())

    def finish(self, token_limit_reached: bool) -> tuple[AssistantMessage, FinishReason]:
        """The message and why it ended; call it after `close()`, when a finish reason came.

        A call that the limit cut is left out. The last call that a server parsed counts as cut even if its
        arguments are valid JSON: servers close them as well as they can. `token_limit_reached` unmasks an
        answer that was cut and labelled `tool_calls` all the same.
        """
        reason = _FINISH_REASONS.get(self.finish_reason or "", "stop")
        entries = self._without_doubles()
        if entries and token_limit_reached and reason in ("stop", "tool_calls"):
            reason = "length"
        if reason == "length" and entries and isinstance(entries[-1], _ServerCall):
            entries.pop()
        calls = [self._call(entry, number) for number, entry in enumerate(entries)]
        if reason != "length" and self._partial is not None and self._partial.name:
            calls.append(self._unclosed(self._partial, len(calls)))
        if not self._calls_allowed:
            calls = []
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if calls else "stop"
        message = AssistantMessage("".join(self._reasoning), "".join(self._text), _unique(calls, self._turn))
        return message, reason

    def _take(self, events: Iterable[wire.WireEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            match event:
                case wire.ReasoningDelta(text):
                    self._reasoning.append(text)
                    deltas.append(Delta("reasoning", text))
                case wire.TextDelta(text):
                    self._text.append(text)
                    deltas.append(Delta("text", text))
                case wire.TextWasReasoning():
                    self._reasoning += self._text
                    self._text = []
                    deltas += [Delta("reset", ""), Delta("reasoning", "".join(self._reasoning))]
                case wire.CallFinished(call):
                    self._calls.append(call)
                    deltas.append(Delta("call", call.name))
                case wire.CallPartial(call):
                    self._partial = call
        return deltas

    def _take_call(self, piece: Mapping[str, Any]) -> list[Delta]:
        given = piece.get("function")
        function: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        identity, name = str(piece.get("id") or ""), str(function.get("name") or "")
        index = piece.get("index")
        call = self._find(index if isinstance(index, int) else None, identity, name)
        deltas = [Delta("call", name)] if name and not call.name else []
        call.id = call.id or identity
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:  # some servers send the object itself
            call.arguments.append(json.dumps(arguments, ensure_ascii=False))
        return deltas

    def _find(self, index: int | None, identity: str, name: str) -> _ServerCall:
        """The call a piece belongs to; servers that number badly still give a new call a new id."""
        if index is None:
            starts = bool(name) or not self._open
            index = len(self._open) - (0 if starts else 1)
        known = self._open.get(index)
        if known is None or (name and identity and known.id and identity != known.id):
            known = self._open[index] = _ServerCall()
            self._calls.append(known)
        return known

    def _without_doubles(self) -> list[_ServerCall | wire.Call]:
        """The calls, less those in leaked markup that the server has parsed as well."""
        parsed = [(c.name, _object(c)[0]) for c in self._calls if isinstance(c, _ServerCall)]
        return [
            entry
            for entry in self._calls
            if isinstance(entry, _ServerCall) or (entry.name, entry.arguments) not in parsed
        ]

    def _call(self, entry: _ServerCall | wire.Call, number: int) -> ToolCall:
        made_up = f"call_{self._turn}_{number}"
        if isinstance(entry, wire.Call):
            text = json.dumps(entry.arguments, ensure_ascii=False)
            return ToolCall(made_up, entry.name, entry.arguments, text)
        arguments, error = _object(entry)
        return ToolCall(entry.id or made_up, entry.name, arguments, "".join(entry.arguments), error)

    def _unclosed(self, call: wire.Call, number: int) -> ToolCall:
        error = "the call was not closed with </invoke>, so it was not run"
        return ToolCall(f"call_{self._turn}_{number}", call.name, None, call.raw, error)


def _object(call: _ServerCall) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments as an object, or None and why they are not one."""
    text = "".join(call.arguments)
    try:
        value = json.loads(text, strict=False) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not valid JSON ({error})"
    if not isinstance(value, dict):
        return None, "the arguments are not a JSON object"
    return value, None


def _unique(calls: list[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """The calls with ids that differ, so that every result finds its call."""
    taken: set[str] = set()
    result: list[ToolCall] = []
    for number, call in enumerate(calls):
        identity = call.id
        while identity in taken:
            identity = f"call_{turn}_{number}" if identity == call.id else f"{identity}_"
        taken.add(identity)
        result.append(
            ToolCall(identity, call.name, call.arguments, call.arguments_text, call.error)
            if identity != call.id
            else call
        )
    return tuple(result)


def _reasoning(delta: Mapping[str, Any]) -> str:
    """Reasoning under any of its names; a proxy may send two of them with the same text."""
    for name in ("reasoning", "reasoning_content"):
        if isinstance(text := delta.get(name), str) and text:
            return text
    details = delta.get("reasoning_details")
    if not isinstance(details, list):
        return ""
    return "".join(str(part.get("text") or "") for part in details if isinstance(part, Mapping))


def _plain_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _usage(usage: Mapping[str, Any]) -> Usage:
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return Usage(
        prompt=_count(usage.get("prompt_tokens")),
        cached=_count(prompt.get("cached_tokens")) if isinstance(prompt, Mapping) else None,
        completion=_count(usage.get("completion_tokens")),
        reasoning=(
            _count(completion.get("reasoning_tokens"))
            if isinstance(completion, Mapping)
            else _count(usage.get("reasoning_tokens"))
        ),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
