"""Parse and write MiniMax M3's wire format: model output to and from reasoning, text and tool calls.

The model writes `<mm:think>reasoning</mm:think>text` and then a block of calls. In that block, the namespace
token `]<]minimax[>[` precedes every tag. Servers parse this format too, with known faults. So this module
parses again everything that arrives as text. It tolerates:

- around calls: a block that is not closed, not opened, opened twice, or opened without the namespace token;
  `<function_calls>` for `<tool_call>`; several blocks; one JSON object `{"name", "arguments"}` in a block;
- in the tags of a call: white space, upper case, single quotes or no quotes, a missing `<` in `<invoke
  name=`, white space between namespace token and tag, a closing `</invoke>` without its namespace token;
- in arguments: a parameter without its opening tag, without its closing tag, or with a misspelt one; a tag
  without its namespace token; hyphens in names; all arguments as one JSON object (see `arguments`);
- think tags that are missing, doubled or stray; calls before `</mm:think>`; reasoning between `<think>` and
  `</think>` at the very start, which is the default form of MiniMax's own API;
- M2's `<invoke name="x"><parameter name="y">v</parameter></invoke>`, for tools that the request offered.

A call without its `</invoke>` is never among the finished calls, and no event of `close()` completes one. The
calls that a prefix of the output yields are also calls of the whole output.

Markup never becomes text: the parser removes a namespace token and the tag right behind it, and the control
tokens that begin and end a turn, with their role. Like the model servers, it drops text between a call and the
next think tag.

Markup that opens a call and never becomes one does not swallow the answer: text behind an opened block is
released if the block is never closed. What can be nothing but a failed call (a closed block without a call, an
object in JSON that is no call, a call without its name) is reported as the partial call.

If text itself contains markup (a namespace token or a think tag), the writer adds a backslash and the reader
removes it: see `arguments.escape`. Text that M3 itself writes is not changed.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from m3agent.serving.wire.arguments import (
    ESCAPED,
    NAMESPACE,
    attribute,
    ends_with_closing_tag,
    escape,
    read_arguments,
    read_plain_arguments,
    write_arguments,
)
from m3agent.serving.wire.coerce import Coercer, json_object
from m3agent.serving.wire.json_calls import Call, call_of
from m3agent.serving.wire.think_tags import LeadingThink

ThinkingMode: TypeAlias = Literal["enabled", "disabled", "adaptive"]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Parsed:
    """One whole message of the model; `partial` is a call that was never closed, or that is malformed."""

    reasoning: str
    text: str
    calls: list[Call]
    partial: Call | None


@dataclass(frozen=True)
class ReasoningDelta:
    """The next piece of reasoning."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """The next piece of visible text."""

    text: str


@dataclass(frozen=True)
class TextWasReasoning:
    """All text so far was reasoning: a closing think tag came without an opening one."""


@dataclass(frozen=True)
class CallFinished:
    """A call was read completely, up to its `</invoke>`."""

    call: Call


@dataclass(frozen=True)
class CallPartial:
    """A call that was never closed, with its complete parameters; only `close()` returns it.

    It may also be markup that can be nothing but a failed call; the name is empty if the markup has none.
    """

    call: Call


WireEvent: TypeAlias = ReasoningDelta | TextDelta | TextWasReasoning | CallFinished | CallPartial

_THINK, _END_THINK = "<mm:think>", "</mm:think>"
_BLOCK, _END_BLOCK = NAMESPACE + "<tool_call>", NAMESPACE + "</tool_call>"
_INVOKE, _END_INVOKE = NAMESPACE + "<invoke", NAMESPACE + "</invoke>"
_PLAIN_BLOCK, _PLAIN_END_BLOCK = "<minimax:tool_call>", "</minimax:tool_call>"
_PLAIN_INVOKE, _PLAIN_END_INVOKE = "<invoke name=", "</invoke>"
# Blocks without the namespace token. Prose may mention these tags, so they count only if a call follows
# directly.
_WRAPPERS = ("<tool_call>", "<function_calls>")
_END_WRAPPERS = ("</tool_call>", "</function_calls>")
# Control tokens of MiniMax's chat format: the end of a turn, the beginning of a conversation, and the beginning
# of a turn, which the role follows. A server that knows them never sends them.
_BEGIN_TURN = "]~b]"
_CONTROLS = ("[e~[", "]~!b[", _BEGIN_TURN)
_ROLES = ("ai", "assistant", "developer", "root", "system", "tool", "user")
# Prose is escaped like values: a stem gets a backslash if the next characters would make it markup, or are a
# backslash.
_STEMS = (
    "<mm:think",
    "</mm:think",
    "<minimax:tool_call",
    "</minimax:tool_call",
    "<invoke",
    "<tool_call",
    "<function_calls",
)
_CONTROL_STEMS = tuple(token[:-1] for token in _CONTROLS)
_ESCAPES = (ESCAPED, *(stem + "\\" for stem in (*_STEMS, *_CONTROL_STEMS)))
# At the end of the text, the namespace token that follows could complete a control token.
_NEEDS_ESCAPE = re.compile(
    rf"((?:{'|'.join(_STEMS)})(?=>|\\| name=)|(?:{'|'.join(map(re.escape, _CONTROL_STEMS))})(?=[\[\]\\]|\Z))"
)

# Longest tag content that the parser searches, so that hostile output cannot make it hold back text forever.
_INSIDE = "[^<>]{0,1000}"
_SPACE = r"\s{0,20}"
# Text that may follow a namespace token: a tag of a call; any tag; the beginning of a tag. The third pattern
# must match every beginning of a match of the first two. Otherwise the result would depend on how the text is
# split into chunks.
_STRUCTURE = re.compile(
    rf"(?:{_SPACE}<(?P<close>/?)(?P<tag>tool_call|invoke)(?P<attributes>(?:\s{_INSIDE}|/)?)"
    rf"|(?P<bare_close>/)(?P<bare_tag>tool_call|invoke)"
    rf"|invoke(?P<bare_attributes>\s{_SPACE}name{_SPACE}={_INSIDE}))>",
    re.IGNORECASE,
)
_ANY_TAG = re.compile(rf"{_SPACE}</?[^<>\s/]{_INSIDE}>")
_TAG_ARRIVING = re.compile(
    rf"{_SPACE}(?:<[^<>]{{0,1100}}|/?[a-z_]{{0,9}}|invoke\s[^<>]{{0,1100}})?\Z", re.IGNORECASE
)
# A namespace token and tag at the end of the output: of a call; any tag that was cut before its `>`.
_CALL_CUT = re.compile(rf"{re.escape(NAMESPACE)}{_SPACE}<invoke", re.IGNORECASE)
_TAG_CUT = re.compile(rf"{re.escape(NAMESPACE)}{_SPACE}</?[^\s<>]*(?:\s+[^\s<>=]+\s*=\s*\S*)?\s*\Z")
_TAG_NAME = re.compile(rf"{re.escape(NAMESPACE)}(?:{_SPACE}</?[\w:.-]+)?")
_CLOSING_TAG = re.compile(rf"{_SPACE}</")
# The opening tag of a call in M2's form, and the first character of the call's content.
_PLAIN_HEADER = re.compile(rf"<invoke( name={_INSIDE})>(?={_SPACE}(\S))")
_PLAIN_HEADER_ARRIVING = re.compile(rf"<invoke( name={_INSIDE})(?:>{_SPACE})?\Z")
_CALL_BEHIND = re.compile(rf"{_SPACE}(?:{re.escape(NAMESPACE)}|{_PLAIN_INVOKE})")
_ROLE = re.compile(rf"(?:{'|'.join(_ROLES)})(?!\w)")
# The last of the tokens has a role.
_CONTROL = re.compile(rf"{'|'.join(map(re.escape, _CONTROLS))}(?:{_ROLE.pattern})?")
_NAME_IN_JSON = re.compile(r"\"name\"\s*:\s*\"([^\"\\]+)\"")
_NAME = re.compile(r"\sname\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|(\S+?)(?=\s|/?\Z))", re.IGNORECASE)
# Number of characters at the end of an open call that are checked for a parameter's closing tag.
_TAIL = 400


class _Markers:
    """A set of literal markers to find in text that arrives in pieces."""

    def __init__(self, *markers: str) -> None:
        self._pattern = re.compile("|".join(map(re.escape, markers)))
        self._prefixes = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._first = {marker[0] for marker in markers}
        self._longest = max(map(len, markers)) - 1

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def undecided(self, text: str, start: int) -> int:
        """Return where the end of `text` begins that further text could turn into a marker."""
        for position in range(max(start, len(text) - self._longest), len(text)):
            if text[position] in self._first and text[position:] in self._prefixes:
                return position
        return len(text)


_PROSE = _Markers(
    NAMESPACE,
    _THINK,
    _END_THINK,
    *_ESCAPES,
    *_CONTROLS,
    _PLAIN_BLOCK,
    _PLAIN_END_BLOCK,
    _PLAIN_INVOKE,
    *_WRAPPERS,
    *_END_WRAPPERS,
)
_BODY = _Markers(NAMESPACE)
_PLAIN_BODY = _Markers(_PLAIN_END_INVOKE, _PLAIN_INVOKE, _PLAIN_END_BLOCK, _BLOCK, _END_BLOCK, _INVOKE)


class _OpenCall:
    """A call whose opening tag was read, but not its end; `plain` is M2's form, without namespace tokens."""

    def __init__(self, header: str, name: str, coercer: Coercer, *, plain: bool, as_json: bool) -> None:
        self.plain = plain
        self.in_value = False  # its last namespaced tag opened a value
        self._header = header
        self._name = name
        self._coercer = coercer
        self._as_json = as_json  # its arguments are one JSON object
        self._quoted = 0  # number of open calls that a value quotes; -1 after an `</invoke>` that closes none
        self._body: list[str] = []

    def add(self, text: str) -> None:
        """Append text of the call."""
        self._body.append(text)

    def finished(self, end: str) -> Call | None:
        """Return the call that `end` closes.

        Return None if it has no name, or if it is plain and a parameter is not closed.
        """
        body = "".join(self._body)
        if self.plain:
            arguments = read_plain_arguments(body, self._coercer)
        else:
            arguments = read_arguments(body, self._coercer, finished=True)
        if arguments is None or not self._name:
            return None
        return Call(self._name, arguments, f"{self._header}{body}{end}")

    def unclosed(self) -> Call:
        """Return the call with its complete parameters."""
        body = "".join(self._body)
        arguments = read_arguments(body, self._coercer, finished=False)
        return Call(self._name, arguments, f"{self._header}{body}")

    def takes_plain_end(self) -> bool:
        """Return whether the next `</invoke>` closes this plain call; otherwise it is text of a value."""
        if self._quoted > 0:
            self._quoted -= 1
            return False
        if self._as_json or ends_with_closing_tag(self._tail(), self._coercer):
            return True
        self._quoted = -1
        return False

    def is_left_open_by(self, marker: str) -> bool:
        """Return whether the next marker ends this plain call unclosed; otherwise it is text of a value."""
        tail = self._tail()
        if (
            marker == _INVOKE
            or ends_with_closing_tag(tail, self._coercer)
            or (self._quoted < 0 and tail.rstrip().endswith(_PLAIN_END_INVOKE))
        ):
            return True
        if marker == _PLAIN_INVOKE:
            self._quoted = max(self._quoted, 0) + 1
        return False

    def take_end_from_body(self) -> str:
        """Cut an `</invoke>` without namespace token from the end of the body, if a parameter precedes it.

        Returns:
            The removed text, or an empty string.
        """
        tail = self._tail().rstrip()
        parameters = tail.removesuffix(_PLAIN_END_INVOKE)
        if parameters == tail or not ends_with_closing_tag(parameters, self._coercer):
            return ""
        body = "".join(self._body)
        end = body.rindex(_PLAIN_END_INVOKE)
        self._body = [body[:end]]
        return body[end:]

    def _tail(self) -> str:
        size = 0
        pieces: list[str] = []
        for piece in reversed(self._body):
            pieces.append(piece[-_TAIL:])
            size += len(piece)
            if size >= _TAIL:
                break
        tail = "".join(reversed(pieces))
        return tail if size < _TAIL or tail.strip() else "..."  # only the end is blank, not the whole body


class StreamParser:
    """Parse M3's wire text in pieces of any size; each piece is scanned once.

    Args:
        tools: The tool list of the request in OpenAI's format; a bare `{"name", "parameters"}` per tool is
            enough.
        thinking_mode: With "enabled", the prompt already ends inside the reasoning, so the output begins
            there.
    """

    def __init__(self, tools: Tools | None, thinking_mode: ThinkingMode = "adaptive") -> None:
        self._parameters = dict(_signatures(tools or ()))
        self._pending = ""  # end of the last piece, still undecided
        self._reasoning = thinking_mode == "enabled"
        self._leading = None if self._reasoning else LeadingThink()
        self._think_seen = False
        self._any_text = False
        self._blank = True  # only white space since the last think tag
        self._dropping = False  # inside a block of calls, or after one
        self._in_block = False
        self._block_text: list[str] | None = None  # in a block, until its first call
        self._any_call = False
        self._call: _OpenCall | None = None
        self._unclosed: Call | None = None

    def reasoning_is_elsewhere(self) -> None:
        """Note that the server sent the reasoning separately: a closing think tag here ends no reasoning."""
        self._think_seen = True

    def feed(self, chunk: str) -> list[WireEvent]:
        """Take the next piece of output; return the events that it completes."""
        if self._leading is not None:
            chunk = self._leading.feed(chunk)
            if self._leading.over:
                self._leading = None
        return self._read(chunk)

    def _read(self, chunk: str) -> list[WireEvent]:
        events: list[WireEvent] = []
        text, position = self._pending + chunk, 0
        while position < len(text):
            call = self._call
            if call is None:
                position = self._prose(text, position, events)
            elif call.plain:
                position = self._plain_body(call, text, position, events)
            else:
                position = self._call_body(call, text, position, events)
            if call is self._call:  # it has read all that is decidable
                break
        self._pending = text[position:]
        return events

    def close(self) -> list[WireEvent]:
        """End the output: return the text that was held back, and an open call as partial."""
        events = [] if self._leading is None else self._read(self._leading.close())
        rest, self._pending = self._pending, ""
        if self._call is not None:
            self._call.add(rest)
            self._leave_unclosed(self._call)
        elif (
            ">" in rest
            and (header := _PLAIN_HEADER_ARRIVING.match(rest))
            and self._is_plain_call(_name(header[1]), "<")
        ):
            self._leave_malformed(_name(header[1]), rest)
        elif _CALL_CUT.match(rest):
            self._leave_malformed("", rest)
        elif not _TAG_CUT.match(rest) and not rest.startswith(_BEGIN_TURN) and not self._block_is_blank():
            # An unfinished tag is no text, but words behind it are.
            self._say(_TAG_NAME.sub("", rest, count=1) if rest.startswith(NAMESPACE) else rest, events)
        self._abandon_block(events)
        if self._unclosed is not None:
            events.append(CallPartial(self._unclosed))
        return events

    # `_prose`, `_call_body` and `_plain_body` read from `position` and append their events. They return the
    # position up to which the text is processed: its end, or where the rest must wait for more text, or where a
    # call is opened or closed.

    def _prose(self, text: str, position: int, events: list[WireEvent]) -> int:
        """Read text and reasoning outside of calls."""
        while match := _PROSE.search(text, position):
            self._say(text[position : match.start()], events)
            end = self._marker(match, text, events)
            if end is None:
                return match.start()
            position = end
            if self._call is not None:
                return position
        undecided = _PROSE.undecided(text, position)
        self._say(text[position:undecided], events)
        return undecided

    def _marker(self, match: re.Match[str], text: str, events: list[WireEvent]) -> int | None:
        """Process a marker and what belongs to it. Return the position behind; None if that has not arrived."""
        marker, start, end = match[0], match.start(), match.end()
        if marker == NAMESPACE:
            return self._namespaced(text, end, events)
        if marker == _PLAIN_INVOKE:
            return self._plain_invoke(text, start, events)
        if marker in _CONTROLS:
            role_end = _control_end(marker, text, end)
            # it may be inside a string of a call in JSON
            if role_end is not None and self._block_text is not None:
                self._block_text.append(text[start:role_end])
            return role_end
        if marker in _WRAPPERS and _CALL_BEHIND.match(text, end):
            self._open_block(events)
        elif marker in _WRAPPERS and _may_open_call(text, end):
            return None
        else:
            self._take_marker(marker, events)
        return end

    def _namespaced(self, text: str, position: int, events: list[WireEvent]) -> int | None:
        """Process a namespace token that ends at `position`, with the tag behind it."""
        if structure := _STRUCTURE.match(text, position):
            self._take_structure(structure, NAMESPACE + structure[0], events)
            return structure.end()
        if _TAG_ARRIVING.match(text, position):
            return None
        tag = _ANY_TAG.match(text, position)
        return tag.end() if tag else position

    def _plain_invoke(self, text: str, start: int, events: list[WireEvent]) -> int | None:
        """Process a tag that begins at `start` and may open a call in M2's form."""
        header = _PLAIN_HEADER.match(text, start)
        if header is None and _PLAIN_HEADER_ARRIVING.match(text, start):
            return None
        if header and self._is_plain_call(name := _name(header[1]), header[2]):
            self._open_call(header[0], name, plain=True, as_json=header[2] == "{")
            return header.end()
        self._say(_PLAIN_INVOKE, events)
        return start + len(_PLAIN_INVOKE)

    def _call_body(self, call: _OpenCall, text: str, position: int, events: list[WireEvent]) -> int:
        """Read the body of an open call with namespace tokens."""
        start = position
        while match := _BODY.search(text, position):
            at, position = match.start(), match.end()
            structure = _STRUCTURE.match(text, position)
            if structure is None and _TAG_ARRIVING.match(text, position):
                call.add(text[start:at])
                return at
            kind, attributes = _structure(structure)
            if kind.startswith("/") or (kind == "invoke" and _name(attributes)):
                call.add(text[start:at])
                start = at
                if kind == "/invoke" and structure is not None:
                    self._finish(call, text[at : structure.end()], events)
                    return structure.end()
                if end := call.take_end_from_body():
                    self._finish(call, end, events)
                    return at
                # Inside an unclosed value, the end of the block is text. Another call ends the value.
                if kind == "invoke" or not call.in_value:
                    self._leave_unclosed(call)
                    return at
            call.in_value = _CLOSING_TAG.match(text, position) is None
        undecided = _BODY.undecided(text, position)
        call.add(text[start:undecided])
        return undecided

    def _plain_body(self, call: _OpenCall, text: str, position: int, events: list[WireEvent]) -> int:
        """Read the body of an open call in M2's form."""
        start = position
        while match := _PLAIN_BODY.search(text, position):
            at, position = match.start(), match.end()
            call.add(text[start:at])
            start = at
            if match[0] == _PLAIN_END_INVOKE:
                if call.takes_plain_end():
                    self._finish(call, match[0], events)
                    return position
            elif call.is_left_open_by(match[0]):
                self._leave_unclosed(call)
                return at
        undecided = _PLAIN_BODY.undecided(text, position)
        call.add(text[start:undecided])
        return undecided

    def _say(self, text: str, events: list[WireEvent]) -> None:
        if self._block_text is not None:
            self._block_text.append(text)
        if not text or self._dropping:
            return
        self._blank = self._blank and text.isspace()
        if self._reasoning:
            events.append(ReasoningDelta(text))
        else:
            self._any_text = True
            events.append(TextDelta(text))

    def _take_marker(self, marker: str, events: list[WireEvent]) -> None:
        """Process a marker that needs no text behind it."""
        if marker in _ESCAPES:
            # In a call in JSON, the backslash belongs to an escape sequence.
            self._say(marker if self._in_block else marker[:-1], events)
        elif marker == _THINK:
            self._open_think(events)
        elif marker == _END_THINK:
            self._close_think(events)
        elif marker == _PLAIN_BLOCK:
            self._open_block(events)
        elif marker == _PLAIN_END_BLOCK or (marker in _END_WRAPPERS and self._dropping):
            self._close_block(events)
        else:
            self._say(marker, events)

    def _open_think(self, events: list[WireEvent]) -> None:
        self._think_seen = True
        if self._reasoning:
            self._leave_block()
        else:
            self._abandon_block(events)
        if not self._reasoning:
            self._reasoning = self._blank = True
        elif not self._blank:  # in mode `enabled` the model may repeat the tag
            self._say(_THINK, events)

    def _close_think(self, events: list[WireEvent]) -> None:
        if not self._reasoning and not self._dropping and self._think_seen and not self._blank:
            self._say(_END_THINK, events)  # visible text that mentions the tag
            return
        if not self._reasoning:
            self._abandon_block(events)
        if not self._reasoning and not self._think_seen and self._any_text:
            self._any_text = False
            events.append(TextWasReasoning())
        self._think_seen = self._blank = True
        self._reasoning = False
        self._leave_block()

    def _take_structure(self, structure: re.Match[str], raw: str, events: list[WireEvent]) -> None:
        """Process a namespaced tag outside of calls."""
        kind, attributes = _structure(structure)
        if kind == "tool_call":
            self._open_block(events)
        elif kind == "/tool_call":
            self._close_block(events)
        elif kind == "invoke":
            call = self._open_call(raw, _name(attributes))
            if attributes.endswith("/"):  # `<invoke name="x"/>`
                self._finish(call, "", events)

    def _open_block(self, events: list[WireEvent]) -> None:
        self._abandon_block(events)
        self._dropping = self._in_block = True
        self._block_text = []

    def _close_block(self, events: list[WireEvent]) -> None:
        text = "".join(self._block_text or ()).strip()
        if call := call_of(json_object(text), text, self._parameters):
            self._any_call = True
            events.append(CallFinished(call))
        elif text.startswith("{") or (text and not self._reasoning):  # thoughts may mention a block
            self._leave_malformed(_name_in_json(text), text)
        dropping = self._any_call and not self._reasoning and self._dropping
        self._leave_block()
        self._dropping = dropping

    def _abandon_block(self, events: list[WireEvent]) -> None:
        """Leave a block that was not closed: release its words, unless they begin a call in JSON."""
        text = "".join(self._block_text or ())
        self._leave_block()
        if text.lstrip().startswith("{"):
            self._leave_malformed(_name_in_json(text), text)
        elif text.strip() and not self._any_call:  # after a call, text is dropped
            self._say(_CONTROL.sub("", text), events)

    def _block_is_blank(self) -> bool:
        """Return whether a block is open that contains nothing yet."""
        return self._block_text is not None and not "".join(self._block_text).strip()

    def _leave_block(self) -> None:
        self._dropping = self._in_block = False
        self._block_text = None

    def _is_plain_call(self, name: str, first: str) -> bool:
        """Return whether a tag in M2's form opens a call.

        Outside of a block it does so only for offered tools and outside of reasoning.
        """
        return self._in_block or (not self._reasoning and name in self._parameters and first in "<{")

    def _open_call(self, header: str, name: str, *, plain: bool = False, as_json: bool = False) -> _OpenCall:
        self._dropping = self._any_call = True
        self._block_text = None
        coercer = Coercer(self._parameters.get(name))
        self._call = _OpenCall(header, name, coercer, plain=plain, as_json=as_json)
        return self._call

    def _finish(self, call: _OpenCall, end: str, events: list[WireEvent]) -> None:
        """Close the open call with `end`."""
        self._call = None
        if finished := call.finished(end):
            events.append(CallFinished(finished))
        else:
            call.add(end)
            self._unclosed = call.unclosed()

    def _leave_malformed(self, name: str, raw: str) -> None:
        """Report markup that opened a call but is none as the partial call, unless another one follows."""
        self._block_text = None
        self._unclosed = Call(name, {}, raw)

    def _leave_unclosed(self, call: _OpenCall) -> None:
        """Abandon the open call; it becomes the partial call, unless another one follows."""
        self._call = None
        self._unclosed = call.unclosed()


def _structure(match: re.Match[str] | None) -> tuple[str, str]:
    """Return the kind of a call's tag (`invoke`, `/invoke`, `tool_call`, `/tool_call`) and its attributes."""
    if match is None:
        return "", ""
    if match["bare_attributes"]:
        return "invoke", match["bare_attributes"]
    tag = match["tag"] or match["bare_tag"]
    return (match["close"] or match["bare_close"] or "") + tag.lower(), match["attributes"] or ""


def _name(attributes: str) -> str:
    named = _NAME.search(attributes)
    return html.unescape(named[1] or named[2] or named[3] or "").strip() if named else ""


def _name_in_json(text: str) -> str:
    """Return the name of the call that a block tried to write in JSON; an empty string if there is none."""
    named = _NAME_IN_JSON.search(text) if text.lstrip().startswith("{") else None
    return named[1] if named else ""


def _control_end(token: str, text: str, position: int) -> int | None:
    """Return the end of a control token and its role; None if the role may still arrive."""
    if token != _BEGIN_TURN:
        return position
    rest = text[position : position + max(map(len, _ROLES)) + 1]
    if any(role.startswith(rest) for role in _ROLES):
        return None
    role = _ROLE.match(text, position)
    return role.end() if role else position


def _may_open_call(text: str, position: int) -> bool:
    """Return whether the rest of `text` may become a call right behind a wrapper."""
    rest = text[position:].lstrip() if len(text) - position < 60 else "."
    return NAMESPACE.startswith(rest) or _PLAIN_INVOKE.startswith(rest)


def parse(text: str, tools: Tools | None, thinking_mode: ThinkingMode = "adaptive") -> Parsed:
    """Parse one whole output of the model; never raises, whatever the text is."""
    parser = StreamParser(tools, thinking_mode)
    return collect([*parser.feed(text), *parser.close()])


def collect(events: Iterable[WireEvent]) -> Parsed:
    """Combine the events of one message."""
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

    Arguments are JSON values. Their types survive only if the tool's schema determines them. Example: if a
    parameter may be an integer or a string, the string "5" comes back as 5.
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
    """Yield the name and the parameter schema of each tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            yield name, parameters if isinstance(parameters, Mapping) else None
