"""MiniMax M3's wire format: what the model writes, to and from reasoning, text and tool calls.

The model writes `<mm:think>reasoning</mm:think>text` and then a block of calls whose every tag follows the
namespace token `]<]minimax[>[`. Servers parse this too, and get it wrong in known ways, so everything that
arrives as text is read again here. What is tolerated:

- a missing `</tool_call>`, a missing `<tool_call>`, several blocks;
- a parameter without its opening tag, parameter names with hyphens;
- think tags that are missing, doubled or stray, and calls written before `</mm:think>`;
- M2's `<invoke name="x"><parameter name="y">v</parameter></invoke>`, for tools that were offered.

A call without its `</invoke>` is never among the calls. Text after a call, until a think tag, is dropped, as
the model servers do. Text that itself contains markup (a namespace token, a think tag) is written with a
backslash in it and read back without: see `arguments.escape`; text that M3 writes by itself is not touched.
"""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from m3agent.serving.arguments import (
    ESCAPED,
    NAMESPACE,
    attribute,
    escape,
    read_arguments,
    read_plain_arguments,
    write_arguments,
)
from m3agent.serving.coerce import Coercer

ThinkingMode: TypeAlias = Literal["enabled", "disabled", "adaptive"]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Call:
    """A tool call: the tool's name, its arguments as JSON values, and the markup it was read from."""

    name: str
    arguments: dict[str, Any]
    raw: str = field(default="", compare=False)


@dataclass(frozen=True)
class Parsed:
    """One whole message of the model; `partial` is a call that was never closed."""

    reasoning: str
    text: str
    calls: list[Call]
    partial: Call | None


@dataclass(frozen=True)
class ReasoningDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """More visible text."""

    text: str


@dataclass(frozen=True)
class TextWasReasoning:
    """All text so far was reasoning: its closing tag came, the opening tag never did."""


@dataclass(frozen=True)
class CallFinished:
    """A call was read up to its `</invoke>`."""

    call: Call


@dataclass(frozen=True)
class CallPartial:
    """A call that was never closed, with the parameters it had complete; comes only from `close()`."""

    call: Call


WireEvent: TypeAlias = ReasoningDelta | TextDelta | TextWasReasoning | CallFinished | CallPartial

_THINK, _END_THINK = "<mm:think>", "</mm:think>"
_BLOCK, _END_BLOCK = NAMESPACE + "<tool_call>", NAMESPACE + "</tool_call>"
_INVOKE, _END_INVOKE = NAMESPACE + "<invoke", NAMESPACE + "</invoke>"
_PLAIN_BLOCK, _PLAIN_END_BLOCK = "<minimax:tool_call>", "</minimax:tool_call>"
_PLAIN_INVOKE, _PLAIN_END_INVOKE = "<invoke name=", "</invoke>"
# Prose is escaped as values are: `stem` followed by what would make it markup, or by a backslash, gets one.
_STEMS = ("<mm:think", "</mm:think", "<minimax:tool_call", "</minimax:tool_call", "<invoke")
_ESCAPES = (ESCAPED, *(stem + "\\" for stem in _STEMS))
_NEEDS_ESCAPE = re.compile(f"({'|'.join(_STEMS)})(?=>|\\\\| name=)")
_NAME = re.compile(r"\s+name\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))")


class _Markers:
    """A set of literal markers to look for in text that arrives in pieces."""

    def __init__(self, *markers: str) -> None:
        self._pattern = re.compile("|".join(map(re.escape, markers)))
        self._prefixes = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max(map(len, markers)) - 1

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def undecided(self, text: str, start: int) -> int:
        """Where the end of `text` begins that more text could turn into a marker."""
        for position in range(max(start, len(text) - self._longest), len(text)):
            if text[position:] in self._prefixes:
                return position
        return len(text)


_PROSE = _Markers(
    _THINK,
    _END_THINK,
    *_ESCAPES,
    _BLOCK,
    _END_BLOCK,
    _INVOKE,
    _END_INVOKE,
    _PLAIN_BLOCK,
    _PLAIN_END_BLOCK,
    _PLAIN_INVOKE,
)
_BODY = _Markers(_END_INVOKE, _END_BLOCK, _INVOKE + " name=")
_PLAIN_BODY = _Markers(_PLAIN_END_INVOKE)


class StreamParser:
    """Reads M3's wire text in pieces of any size; each piece is looked at once.

    `tools` is the OpenAI tool list of the request; a bare `{"name", "parameters"}` per tool will do. With
    `thinking_mode` "enabled" the prompt already ends inside the reasoning, so the output begins there.
    """

    def __init__(self, tools: Tools | None, thinking_mode: ThinkingMode = "adaptive") -> None:
        self._parameters = dict(_signatures(tools or ()))
        self._state: Callable[[str, int, list[WireEvent]], int] = self._prose
        self._pending = ""  # the end of the last piece, not yet decided upon
        self._reasoning = thinking_mode == "enabled"
        self._dropping = False  # inside a block of calls, or after one
        self._plain_block = False
        self._think_seen = False
        self._any_text = False
        self._blank = True  # nothing but white space since the last think tag
        self._plain = False  # the open call is in M2's form, without namespace tokens
        self._name = ""
        self._raw: list[str] = []
        self._body: list[str] = []
        self._unclosed: Call | None = None

    def reasoning_is_elsewhere(self) -> None:
        """Say that reasoning came by another way, so a closing tag here does not end any."""
        self._think_seen = True

    def feed(self, chunk: str) -> list[WireEvent]:
        """Take the next piece of output and say what it completed."""
        events: list[WireEvent] = []
        text, position = self._pending + chunk, 0
        while position < len(text):
            state = self._state
            position = state(text, position, events)
            if state == self._state:  # it read all it could
                break
        self._pending = text[position:]
        return events

    def close(self) -> list[WireEvent]:
        """Say that the output is over: what was held back comes out, an open call comes as partial."""
        events: list[WireEvent] = []
        rest, self._pending = self._pending, ""
        if self._state == self._prose:
            if not rest.startswith(NAMESPACE):  # else the opening of a call, cut off
                self._say(rest, events)
        elif self._state == self._header and self._plain:
            self._say("".join(self._raw), events)
        else:
            self._raw.append(rest)
            self._body.append(rest)
            self._unclosed = self._call(finished=False)
        self._state = self._prose
        if self._unclosed is not None:
            events.append(CallPartial(self._unclosed))
        return events

    # Each state reads from `position`, appends its events, and returns up to where it is done with the text.

    def _prose(self, text: str, position: int, events: list[WireEvent]) -> int:
        while match := _PROSE.search(text, position):
            self._say(text[position : match.start()], events)
            position = match.end()
            marker = match[0]
            if marker in _ESCAPES:
                self._say(marker[:-1], events)
            elif marker == _THINK:
                self._open_think(events)
            elif marker == _END_THINK:
                self._close_think(events)
            elif marker in (_BLOCK, _PLAIN_BLOCK):
                self._dropping = True
                self._plain_block = marker == _PLAIN_BLOCK
            elif marker in (_END_BLOCK, _PLAIN_END_BLOCK):
                self._close_block()
            elif marker == _INVOKE or (marker == _PLAIN_INVOKE and self._reads_plain_calls()):
                self._open_call(marker)
                return position
            elif marker == _PLAIN_INVOKE:
                self._say(marker, events)
            # what is left is a stray `</invoke>`
        undecided = _PROSE.undecided(text, position)
        self._say(text[position:undecided], events)
        return undecided

    def _header(self, text: str, position: int, events: list[WireEvent]) -> int:
        end = text.find(">", position)
        if end < 0:
            self._raw.append(text[position:])
            return len(text)
        self._raw.append(text[position : end + 1])
        named = _NAME.search("".join(self._raw))
        self._name = html.unescape(named[1] or named[2] or named[3] or "").strip() if named else ""
        if self._plain and not self._plain_block and self._name not in self._parameters:
            self._state = self._prose
            self._say("".join(self._raw), events)  # prose that merely looks like a call
        else:
            self._dropping = True
            self._body = []
            self._state = self._call_body
        return end + 1

    def _call_body(self, text: str, position: int, events: list[WireEvent]) -> int:
        markers = _PLAIN_BODY if self._plain else _BODY
        match = markers.search(text, position)
        end = match.start() if match else markers.undecided(text, position)
        self._body.append(text[position:end])
        self._raw.append(text[position:end])
        if match is None:
            return end
        self._state = self._prose
        if match[0] not in (_END_INVOKE, _PLAIN_END_INVOKE):
            # The next call or the end of the block, where `</invoke>` should stand.
            self._unclosed = self._call(finished=False)
            return end
        self._raw.append(match[0])
        call = self._call(finished=True)
        if call.name:
            events.append(CallFinished(call))
        else:
            self._unclosed = call
        return match.end()

    def _say(self, text: str, events: list[WireEvent]) -> None:
        if not text or self._dropping:
            return
        self._blank = self._blank and text.isspace()
        if self._reasoning:
            events.append(ReasoningDelta(text))
        else:
            self._any_text = True
            events.append(TextDelta(text))

    def _open_think(self, events: list[WireEvent]) -> None:
        self._think_seen = True
        self._dropping = False
        if not self._reasoning:
            self._reasoning = self._blank = True
        elif not self._blank:  # a first one again is what `enabled` invites
            self._say(_THINK, events)

    def _close_think(self, events: list[WireEvent]) -> None:
        if not self._reasoning and not self._dropping and self._think_seen and not self._blank:
            self._say(_END_THINK, events)  # visible text that speaks of the tag
            return
        if not self._reasoning and not self._think_seen and self._any_text:
            self._any_text = False
            events.append(TextWasReasoning())
        self._think_seen = self._blank = True
        self._reasoning = self._dropping = False

    def _close_block(self) -> None:
        self._plain_block = False
        if self._reasoning:
            self._dropping = False

    def _reads_plain_calls(self) -> bool:
        """Without a block around it, M2's form is believed outside of reasoning only."""
        return self._plain_block or not self._reasoning

    def _open_call(self, marker: str) -> None:
        self._plain = marker == _PLAIN_INVOKE
        self._name = ""
        self._raw = [marker]
        self._body = []
        self._state = self._header

    def _call(self, *, finished: bool) -> Call:
        coercer = Coercer(self._parameters.get(self._name))
        body = "".join(self._body)
        if self._plain and finished:
            arguments = read_plain_arguments(body, coercer)
        else:
            arguments = read_arguments(body, coercer)
        return Call(self._name, arguments, "".join(self._raw))


def parse(text: str, tools: Tools | None, thinking_mode: ThinkingMode = "adaptive") -> Parsed:
    """Read one whole output of the model; never raises, whatever the text."""
    parser = StreamParser(tools, thinking_mode)
    return collect([*parser.feed(text), *parser.close()])


def collect(events: Iterable[WireEvent]) -> Parsed:
    """Add up the events of one message."""
    reasoning: list[str] = []
    visible: list[str] = []
    calls: list[Call] = []
    partial: Call | None = None
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case TextDelta(text):
                visible.append(text)
            case TextWasReasoning():
                reasoning += visible
                visible = []
            case CallFinished(call):
                calls.append(call)
            case CallPartial(call):
                partial = call
    return Parsed("".join(reasoning), "".join(visible), calls, partial)


def write(reasoning: str, text: str, calls: Sequence[Call]) -> str:
    """Write a message as M3 would; `parse` reads the same message back, in every thinking mode.

    Arguments are JSON values. Their types survive where the tool's schema tells them apart: a string "5" for
    a parameter that may be an integer or a string comes back as 5.
    """
    opening = f"{_THINK}{_escape_prose(reasoning)}" if reasoning else ""
    message = f"{opening}{_END_THINK}{_escape_prose(text)}"
    if not calls:
        return message
    invokes = "".join(
        f'{_INVOKE} name="{attribute(call.name)}">{write_arguments(call.arguments)}{_END_INVOKE}\n'
        for call in calls
    )
    return f"{message}{_BLOCK}\n{invokes}{_END_BLOCK}"


def _escape_prose(text: str) -> str:
    return escape(_NEEDS_ESCAPE.sub(r"\1\\", text))


def _signatures(tools: Tools) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    """The name and the parameter schema of each tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            yield name, parameters if isinstance(parameters, Mapping) else None


__all__ = [
    "Call",
    "CallFinished",
    "CallPartial",
    "Parsed",
    "ReasoningDelta",
    "StreamParser",
    "TextDelta",
    "TextWasReasoning",
    "ThinkingMode",
    "Tools",
    "WireEvent",
    "collect",
    "parse",
    "write",
]
