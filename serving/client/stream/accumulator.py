"""Build the message from the chunks of one streamed answer, in any server's dialect."""

import html
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from m3agent.serving import wire
from m3agent.serving.client.messages import (
    AssistantMessage,
    Delta,
    FinishReason,
    ReasoningField,
    ToolCall,
    TurnTokens,
    Usage,
)
from m3agent.serving.client.stream.chunk import (
    TokenCollector,
    call_pieces,
    content_of,
    first_choice,
    read_usage,
    reasoning_pieces,
)
from m3agent.serving.client.stream.dedup import Mirrors, Snapshots
from m3agent.serving.client.stream.server_calls import CallPieces, ServerCall

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
}
# Finish reasons of an answer that the server aborted.
BROKEN_REASONS = frozenset(
    {"abort", "error", "cancelled", "timeout", "timeout_error", "insufficient_system_resource"}
)
_NAMELESS = "unnamed"  # placeholder name of a call without a name

_Entry: TypeAlias = ServerCall | wire.Call


class Accumulator:
    """Combine the chunks of one answer.

    Our own wire parser reads again everything that the server left as text, including the reasoning: markup
    there is a fault of the server and must not be shown. Content that a server sends twice counts once,
    whether it comes under two names, with every chunk, or again at the end.

    Args:
        turn: Number of this answer, for the ids of calls that come without one.
        calls_allowed: False for `tool_choice: none`; calls are then dropped.
        tokens: Whether to collect the answer's tokens.
    """

    def __init__(
        self, tools: wire.Tools, turn: int, *, calls_allowed: bool = True, tokens: bool = False
    ) -> None:
        self._turn = turn
        self._offered = {tool.get("function", tool).get("name") for tool in tools}
        self._calls_allowed = calls_allowed
        # What the server sends: fields of reasoning, and content.
        self._fields: dict[
            tuple[ReasoningField, object], Snapshots
        ] = {}  # key: name, and the entry if the field is a list
        self._same_reasoning = Mirrors()
        self._whole_content = Snapshots()
        self._pieces = CallPieces()
        self._came: set[str] = set()  # which of reasoning, content and calls came as deltas
        # What the parsers make of it.
        self._thoughts = wire.StreamParser(tools, "enabled")
        self._content = wire.StreamParser(tools)
        self._same_thoughts = Mirrors()
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._calls: list[tuple[str, _Entry]] = []  # each with its channel, in the order of their beginnings
        self._partial: wire.Call | None = None
        self._tokens = TokenCollector() if tokens else None
        self.finish_reason: str | None = None
        self.usage = Usage()

    def add(self, chunk: Mapping[str, Any]) -> list[Delta]:
        """Take the next chunk (the JSON of one event); return the deltas that it brings."""
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = read_usage(usage, self.usage)
        choice = first_choice(chunk.get("choices"))
        if self._tokens is not None:
            self._tokens.add(chunk, choice)
        if choice is None:
            return []
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._ends(reason.lower())
        deltas: list[Delta] = []
        if isinstance(delta := choice.get("delta"), dict):
            deltas += self._take(delta, self._came)
        if isinstance(message := choice.get("message"), dict):
            # The server does not stream, or it is MiniMax's, which repeats the whole message at the end.
            deltas += self._take(message, set(), known=frozenset(self._came))
        return deltas

    @property
    def tokens(self) -> TurnTokens | None:
        """The tokens of the answer, if they are collected and the server reports them."""
        return self._tokens.found() if self._tokens is not None else None

    @property
    def reasoning_field(self) -> ReasoningField | None:
        """The key under which the server sends reasoning, details before text; None if it sent none yet."""
        names: list[ReasoningField] = [name for name, _ in self._fields]
        if "reasoning_details" in names:
            return "reasoning_details"
        return names[0] if names else None

    def close(self) -> list[Delta]:
        """End the stream; return deltas for the text that was held back as undecided."""
        deltas: list[Delta] = []
        for (name, _), whole in self._fields.items():
            deltas += self._take_reasoning(name, whole.close())
        deltas += self._take_content(self._whole_content.close())
        deltas += self._say("reasoning", self._thoughts.close())
        deltas += self._say("content", self._content.close())
        return deltas + self._take_json_calls()

    def _take_json_calls(self) -> list[Delta]:
        """Take the calls that the text has as JSON, if there is no other call and the answer was not cut."""
        reason = _FINISH_REASONS.get(self.finish_reason or "", "stop")
        if self._calls or self._partial or not self._calls_allowed or reason not in ("stop", "tool_calls"):
            return []
        text, calls = wire.calls_at_end("".join(self._text), self._offered)
        if not calls:
            return []
        self._text = [text]
        self._calls = [("content", call) for call in calls]
        said = [Delta("reset", ""), Delta("reasoning", "".join(self._reasoning)), Delta("text", text)]
        return [*said, *(Delta("call", call.name) for call in calls)]

    def finish(self, token_limit_reached: bool) -> tuple[AssistantMessage, FinishReason]:
        """Return the message and why it ended; call this after `close()`, if a finish reason came.

        A call that the token limit (or a filter) cut is left out. Then the last call that a server parsed
        counts as cut even if its arguments are valid JSON, because servers complete cut JSON as well as they
        can.

        Args:
            token_limit_reached: Whether the token counts show that the answer was cut; this overrides another
                finish reason.
        """
        reason = _FINISH_REASONS.get(self.finish_reason or "", "stop")
        if token_limit_reached and reason in ("stop", "tool_calls"):
            reason = "length"
        entries = list(self._without_doubles())
        cut = reason in ("length", "content_filter")
        if cut and entries and isinstance(entries[-1][1], ServerCall):
            entries.pop()
        calls = [self._call(identity, entry, number) for number, (identity, entry) in enumerate(entries)]
        if not cut and self._partial is not None and self._is_missing(self._partial.name, calls):
            calls.append(self._unclosed(self._partial, len(calls)))
        if not self._calls_allowed:
            calls = []
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if calls else "stop"
        message = AssistantMessage("".join(self._reasoning), "".join(self._text), _unique(calls, self._turn))
        return message, reason

    def _ends(self, reason: str) -> None:
        """Record why the answer ended; a later chunk cannot undo that it was cut or aborted."""
        if self.finish_reason not in BROKEN_REASONS and (
            reason in BROKEN_REASONS or _FINISH_REASONS.get(self.finish_reason or "") != "length"
        ):
            self.finish_reason = reason

    def _take(self, part: Mapping[str, Any], came: set[str], known: Collection[str] = ()) -> list[Delta]:
        """Process a delta or a whole message.

        Args:
            came: Set to which the kinds of content in `part` are added.
            known: Kinds of content to skip in a whole message, because deltas brought them already.
        """
        deltas: list[Delta] = []
        if "reasoning" not in known:
            for name, entry, piece in reasoning_pieces(part):
                came.add("reasoning")
                self._content.reasoning_is_elsewhere()
                whole = self._fields.get((name, entry))
                if whole is None:
                    whole = self._fields[name, entry] = Snapshots(items=entry is not None)
                deltas += self._take_reasoning(name, whole.add(piece))
        if "content" not in known and (content := content_of(part)):
            came.add("content")
            deltas += self._take_content(self._whole_content.add(content))
        if "calls" not in known:
            for call in call_pieces(part):
                came.add("calls")
                deltas += self._take_call(call)
        return deltas

    def _take_reasoning(self, name: str, text: str) -> list[Delta]:
        return self._say("reasoning", self._thoughts.feed(self._same_reasoning.add(name, text)))

    def _take_content(self, text: str) -> list[Delta]:
        return self._say("content", self._content.feed(text))

    def _say(self, channel: str, events: Iterable[wire.WireEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            match event:
                case wire.ReasoningDelta(text):
                    if new := self._same_thoughts.add(channel, text):
                        self._reasoning.append(new)
                        deltas.append(Delta("reasoning", new))
                case wire.TextDelta(text):
                    self._text.append(text)
                    deltas.append(Delta("text", text))
                case wire.TextWasReasoning():
                    self._reasoning.append(self._same_thoughts.add(channel, "".join(self._text)))
                    self._text = []
                    deltas += [Delta("reset", ""), Delta("reasoning", "".join(self._reasoning))]
                case wire.CallFinished(call):
                    self._calls.append((channel, call))
                    deltas.append(Delta("call", call.name))
                case wire.CallPartial(call):
                    self._partial = call
        return deltas

    def _take_call(self, piece: Mapping[str, Any]) -> list[Delta]:
        call, begins = self._pieces.take(piece)
        if begins:
            self._calls.append(("server", call))
        if not call.name or call.shown:
            return []
        call.shown = True
        return [Delta("call", call.name)]

    def _without_doubles(self) -> Iterator[tuple[str, _Entry]]:
        """Yield each call once, with its id.

        If a call was parsed by the server and also leaked as markup, the markup's arguments count.
        """
        leaked = self._leaked()
        parsed: dict[int, ServerCall] = {}  # key: id of the leaked call
        for _, entry in self._calls:
            if leaked and isinstance(entry, ServerCall):
                same = leaked.get(_likeness(entry.name, entry.arguments()[0]))
                if same:
                    parsed[id(same.pop(0))] = entry
        known = {id(entry) for entry in parsed.values()}
        alone = {id(call) for calls in leaked.values() for call in calls}
        for _, entry in self._calls:
            if isinstance(entry, wire.Call):
                if id(entry) in parsed:
                    yield parsed[id(entry)].id, entry
                elif id(entry) in alone:
                    yield "", entry
            elif id(entry) not in known and (entry.name or entry.text.strip()):
                yield entry.id, entry

    def _leaked(self) -> dict[str, list[wire.Call]]:
        """Return the calls in markup, grouped by equality.

        Reasoning and content may mirror each other, so the larger number of equal calls in one of them
        counts.
        """
        most: dict[str, list[wire.Call]] = {}
        for channel in ("reasoning", "content"):
            found: dict[str, list[wire.Call]] = {}
            for where, entry in self._calls:
                if where == channel and isinstance(entry, wire.Call):
                    found.setdefault(_likeness(entry.name, entry.arguments), []).append(entry)
            for likeness, calls in found.items():
                most[likeness] = max(most.get(likeness, []), calls, key=len)
        return most

    def _call(self, identity: str, entry: _Entry, number: int) -> ToolCall:
        identity = identity or f"call_{self._turn}_{number}"
        if isinstance(entry, wire.Call):
            text = json.dumps(entry.arguments, ensure_ascii=False)
            return ToolCall(identity, entry.name, entry.arguments, text)
        if not entry.name:
            error = "the call had no tool name, so it was not run"
            return ToolCall(identity, _NAMELESS, None, entry.text, error)
        arguments, problem = entry.arguments()
        return ToolCall(identity, entry.name, arguments, entry.text, problem)

    def _is_missing(self, name: str, calls: list[ToolCall]) -> bool:
        """Return whether an unclosed call in the markup is also missing among the server's parsed calls.

        Without a name it may be the same as any other call.
        """
        if not name:
            return not calls
        parsed = any(isinstance(entry, ServerCall) for _, entry in self._calls)
        return not (parsed and name in {call.name for call in calls})

    def _unclosed(self, call: wire.Call, number: int) -> ToolCall:
        error = "the call was not closed with </invoke>, so it was not run"
        if not call.name:
            error = "the markup of a call had no tool name or was not complete, so nothing was run; write the call again"
        return ToolCall(f"call_{self._turn}_{number}", call.name or _NAMELESS, None, call.raw, error)


def _unique(calls: list[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Make the ids of the calls unique, so that every result can be assigned to its call."""
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


def _likeness(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Return a key that is equal for two readings of one call.

    Readers differ in types, in entities and in white space at the ends.
    """

    def plain(value: object) -> object:
        match value:
            case Mapping():
                return {key: plain(inner) for key, inner in value.items()}
            case list():
                return [plain(inner) for inner in value]
            case str():
                return html.unescape(value).strip()
        return json.dumps(value)

    try:
        return json.dumps([name, plain(arguments)], sort_keys=True)
    except RecursionError:  # too deep to compare
        return f"{name} {id(arguments)}"
