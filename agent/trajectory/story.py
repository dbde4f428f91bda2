"""A session's log as a story: what was asked, each turn with its calls and their results, how it ended.

Any log can be told, also one that is cut off, has gaps or was written by a newer version: what is missing stays unknown,
what is not understood is counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from m3agent.agent import session_log as log
from m3agent.agent.context.output import redact_text
from m3agent.agent.events import VERSION
from m3agent.agent.session_log import Line
from m3agent.tools.registry import own_schemas


@dataclass
class Call:
    """One call that a message asks for; `id` is its own within the message. arguments: None when they were no object."""

    id: str
    name: str
    arguments: Line | None
    started: Line | None = None
    finished: Line | None = None
    tests: Line | None = None
    changes: list[Any] = field(default_factory=list)
    stalls: list[Line] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether it was cut off: it has a result, but not its own."""
        return self.finished is not None and self.finished.get("status") == "interrupted"

    @property
    def result(self) -> str | None:
        """What the model read: the result as tools may show it, and what it was told of a repetition. None: no result."""
        if self.finished is None:
            return None
        told = [log.text(stall, "text") for stall in self.stalls]
        return redact_text(log.text(self.finished, "content")) + "".join(
            f"\n\n[note: {text}]" for text in told
        )


@dataclass
class Turn:
    """An answer of the model and what came of it. request: its `turn.started`, empty when the log has none."""

    message: Line
    request: Line
    retries: list[Line]
    calls: list[Call] = field(default_factory=list)
    finished: Line | None = None
    gate: Line | None = None
    summary: Line | None = None
    """What took the place of the conversation's tail after this turn."""
    stops: list[Line] = field(default_factory=list)

    @property
    def sent(self) -> int | None:
        """Messages in the request; None when the log does not say."""
        return log.whole(self.request, "messages")

    @property
    def reasoning(self) -> str:
        """What it thought."""
        return log.text(self.message, "reasoning")

    @property
    def text(self) -> str:
        """What it said."""
        return log.text(self.message, "text")


@dataclass
class Story:
    """The whole session. unread: lines of other types, versions or places; whole: no line is missing before the end."""

    started: Line = field(default_factory=dict)
    environment: Line = field(default_factory=dict)
    other_tools: list[Any] = field(default_factory=list)
    """What was offered besides our own tools."""
    context: Line = field(default_factory=dict)
    endpoint: Line = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    verify: Line = field(default_factory=dict)
    finished: Line = field(default_factory=dict)
    summaries: list[Line] = field(default_factory=list)
    """What took the place of a conversation's tail."""
    asked: list[Line] = field(default_factory=list)
    """Every `turn.started`, answered or not."""
    unread: int = 0
    whole: bool = True

    @property
    def tools(self) -> list[Any]:
        """What was offered, if this version of m3agent offered it: ours, and those of others."""
        return [*own_schemas(), *self.other_tools]

    def told(self, index: int) -> str:
        """What the gate told the model after a turn; empty when nothing, or when no request came after it."""
        gate = self.turns[index].gate
        sent = gate is not None and index + 1 < len(self.turns)
        return log.text(gate, "missing") if gate is not None and sent else ""


def tell(lines: Iterable[Line]) -> Story:
    """Read a log's lines, in their order."""
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or line.get("v") != VERSION:
            reader.story.unread += 1
            reader.story.whole = False
            continue
        if line.get("seq") != number:
            reader.story.whole = False
        reader.read(line)
    return reader.story


class _Reader:
    def __init__(self) -> None:
        self.story = Story()
        self._request: Line = {}
        self._retries: list[Line] = []
        self._last: Call | None = None

    def read(self, line: Line) -> None:
        story, kind = self.story, line.get("type")
        match kind:
            case "session.started":
                story.started = line
            case "environment.ready":
                story.environment = line
            case "context.packed":
                story.context = line
            case "tools.offered":
                story.other_tools = log.items(line, "tools")
            case "endpoint.probed":
                story.endpoint = line
            case "turn.started":
                self._request, self._retries = line, []
                story.asked.append(line)
            case "retry":
                self._retries.append(line)
            case "message":
                self._message(line)
            case "error":
                story.errors.append(line)
            case "verify":
                story.verify = line
            case "session.forked":
                pass
            case "session.resumed":
                story.finished, story.verify = {}, {}
            case "session.finished":
                story.finished = line
            case _:
                if not (story.turns and self._of_turn(story.turns[-1], line)):
                    story.unread += 1

    def _message(self, line: Line) -> None:
        turn = Turn(line, self._request, self._retries)
        taken: set[str] = set()
        for number, entry in enumerate(item for item in log.items(line, "calls") if isinstance(item, dict)):
            identity = log.text(entry, "id")
            if not identity or identity in taken:
                identity = f"call_{len(self.story.turns) + 1}_{number}"
            while identity in taken:
                identity += "_"
            taken.add(identity)
            arguments = entry.get("arguments")
            turn.calls.append(
                Call(identity, log.text(entry, "name"), arguments if isinstance(arguments, dict) else None)
            )
        self.story.turns.append(turn)
        self._request, self._retries, self._last = {}, [], None

    def _of_turn(self, turn: Turn, line: Line) -> bool:
        """Take a line that belongs to the last turn; False when it does not."""
        match line.get("type"):
            case "turn.finished":
                turn.finished = line
            case "gate":
                turn.gate = line
            case "context.summarised":
                turn.summary = line
                self.story.summaries.append(line)
            case "call.started":
                waiting = [call for call in turn.calls if call.started is None]
                self._last = _with_id(waiting, line)
                if self._last is None:
                    return False
                self._last.started = line
            case "call.finished":
                running = [call for call in turn.calls if call.started is not None and call.finished is None]
                waiting = [call for call in turn.calls if call.finished is None]
                self._last = _with_id(running, line) or _with_id(waiting, line)
                if self._last is None:
                    return False
                self._last.finished = line
            case "stall" if not turn.calls or line.get("action") == "stopped" or not self._is_of(turn, line):
                turn.stops.append(line)
            case "stall":
                (self._last or turn.calls[0]).stalls.append(line)
            case "file.changed" | "test.finished" as kind:
                if self._last is None or line.get("where") in ("before", "after"):
                    return line.get("where") in ("before", "after")  # their sets stand in `verify`
                if kind == "file.changed":
                    self._last.changes += log.items(line, "changes")
                else:
                    self._last.tests = line
            case _:
                return False
        return True

    @staticmethod
    def _is_of(turn: Turn, line: Line) -> bool:
        """Whether a line is of the turn, and not of one that came to no answer."""
        return log.whole(line, "turn") == log.whole(turn.message, "turn")


def _with_id(calls: list[Call], line: Line) -> Call | None:
    """The call that a line is about; calls run in order, so where a server gave an id twice it is the first of them."""
    same = [call for call in calls if call.id == line.get("id")]
    return next(iter(same or [call for call in calls if call.name == line.get("name")]), None)
