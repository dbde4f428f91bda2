"""Convert a session's log into a record: its start, its turns with their calls and results, its verdict, its end.

Only this module decides which event belongs to which turn and call, and which events reopen an ended session. The list
of sessions, reports, trajectories and resume use the record. Every log can be converted, even one that is cut off, has
gaps, or was written by another version. Missing lines are empty, and unknown events are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.agent.session.events import VERSION
from m3agent.agent.session.log_reader import LOG, Line, number, read_log, text, whole
from m3agent.util.json_value import items

SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "price")
"""Fields of `turn.finished` that add up to the field of the same name in `session.finished`."""

STRETCHES = frozenset({"session.resumed", "session.forked"})
"""Events with which another process continues the session."""

KEPT = {"verify": "verdict", "attempt.chosen": "choice", "session.finished": "ended"}
"""Events of which the last one counts, with the field of the record that has it."""
LISTED = {"error": "errors"} | dict.fromkeys(
    ("environment.ready", "tests.collected", "context.packed", "endpoint.probed", "baseline"), "prepared"
)
"""Events that all count, with the field of the record that lists them."""
OF_TURN = frozenset(
    {"gate", "cache.lost", "price.step", "context.summarised", "feedback", "proposal", "proposal.answered"}
)
"""Events of a turn that belong to no call."""


class _WithEvents:
    events: list[Line]

    def of_type(self, kind: str) -> list[Line]:
        """Its events of one type."""
        return [line for line in self.events if line["type"] == kind]


@dataclass
class CallRecord(_WithEvents):
    """A tool call. Lines that are missing in the log are empty."""

    id: str
    """Id that the model gave the call; several calls may have the same id."""
    key: str
    """The id, made unique among the calls of its turn."""
    name: str
    """Name of the tool."""
    arguments: dict[str, Any] | None
    """Arguments of the call; None if they were not a JSON object."""
    asked: bool = True
    """Whether the model's answer contains the call. If the log has a gap, only other lines may mention it."""
    started: Line = field(default_factory=dict)
    """Its `call.started`."""
    finished: Line = field(default_factory=dict)
    """Its `call.finished`."""
    line: int = 0
    """Line number of `started` in the log, from 1; 0 if it is missing."""
    result_line: int = 0
    """Line number of `finished`, likewise."""
    events: list[Line] = field(default_factory=list)
    """Its `file.changed`, `test.finished` and `stall` events, in order."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the call was cut off, so that its result says only that."""
        return text(self.finished, "status") == "interrupted"


@dataclass
class TurnRecord(_WithEvents):
    """A request to the model, its answer, and the answer's calls. Lines that are missing in the log are empty."""

    number: int
    """Number of the turn in the log. Two turns have the same number if an old version resumed the session in the
    middle of a turn."""
    line: int
    """Line number of `answer` in the log, or of the turn's first line if there is no answer."""
    request: Line = field(default_factory=dict)
    """Its `turn.started`."""
    answer: Line = field(default_factory=dict)
    """Its `message`."""
    finished: Line = field(default_factory=dict)
    """Its `turn.finished`."""
    calls: list[CallRecord] = field(default_factory=list)
    """The calls of the answer, in order, then calls that only other lines mention."""
    before: list[Line] = field(default_factory=list)
    """`session.resumed`, `session.forked`, `pull.followed` and `person.message` since the previous turn, and each `retry` of the
    request."""
    events: list[Line] = field(default_factory=list)
    """All other events of the turn that belong to no call, in order."""

    @property
    def asked(self) -> list[CallRecord]:
        """The calls of the answer."""
        return [call for call in self.calls if call.asked]

    @property
    def sent(self) -> int | None:
        """Number of messages in the request; None if unknown."""
        return whole(self.request, "messages")

    @property
    def reasoning(self) -> str:
        """The reasoning in the answer."""
        return text(self.answer, "reasoning")

    @property
    def text(self) -> str:
        """The text of the answer."""
        return text(self.answer, "text")


@dataclass
class SessionRecord:
    """A session, read from its log. Lines that are missing in the log are empty."""

    started: Line = field(default_factory=dict)
    """`session.started`."""
    prepared: list[Line] = field(default_factory=list)
    """`environment.ready`, `tests.collected`, `context.packed`, `endpoint.probed` and `baseline`, in order."""
    other_tools: list[Any] = field(default_factory=list)
    """Schemas of the MCP tools that were offered."""
    turns: list[TurnRecord] = field(default_factory=list)
    """The turns, in order. Those copied from another session with a fork are included."""
    own_from: int = 0
    """Index of the first turn that was not copied from another session."""
    network: list[Line] = field(default_factory=list)
    """Each `network.request` of a verification, or from before the first turn."""
    errors: list[Line] = field(default_factory=list)
    """Each `error`."""
    tests: dict[str, Line] = field(default_factory=dict)
    """The `test.finished` of that verification for each of `before` and `after`."""
    verdict: Line = field(default_factory=dict)
    """The last `verify` since the last turn."""
    choice: Line = field(default_factory=dict)
    """`attempt.chosen`."""
    ended: Line = field(default_factory=dict)
    """`session.finished`; empty if the session was resumed after it."""
    stretches: list[tuple[str, str]] = field(default_factory=list)
    """Times of the first and the last line of each process that worked on the session since its fork."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Number of events of each unknown type."""
    unread: int = 0
    """Number of lines that are not events of this version."""
    is_whole: bool = True
    """Whether no line is missing before the last one."""

    @property
    def answered(self) -> list[TurnRecord]:
        """The turns with an answer."""
        return [turn for turn in self.turns if turn.answer]

    @property
    def own_turns(self) -> list[TurnRecord]:
        """The turns that were not copied from another session."""
        return self.turns[self.own_from :]

    def of_type(self, kind: str) -> list[Line]:
        """Return all events of one type that belong to a turn or a call."""
        parts = (part for turn in self.turns for part in (turn, *turn.calls))
        return [line for part in parts for line in part.of_type(kind)]

    def last_prepared(self, kind: str) -> Line:
        """Return the last event of one type in `prepared`, or an empty one. A resumed session may have several."""
        return next((line for line in reversed(self.prepared) if line["type"] == kind), {})

    def total(self, name: str) -> int | float | None:
        """Return a field of `session.finished`, or compute it from the turns if the session has not ended.

        Only "turns" and the fields in `SUMS` can be computed. Turns with unknown usage are ignored. None means unknown.
        """
        if self.ended:
            return number(self.ended, name)
        if name == "turns":
            return len(self.turns)
        known = [used for turn in self.own_turns if (used := number(turn.finished, name)) is not None]
        return sum(known) if known and name in SUMS else None


def is_embedded(session_started: Line, prepared: Iterable[Line] = ()) -> bool:
    """Return whether the embedded engine answers.

    Args:
        prepared: The events before the first turn. They tell it if another process serves the engine.
    """
    return text(session_started, "endpoint", "source") == "embedded" or any(
        text(line, "flavour") == "embedded" for line in prepared
    )


def read_session(folder: Path) -> SessionRecord:
    """Return the record of the session in a folder. Raises UsageError: The log cannot be read or is damaged."""
    return record_of(read_log(folder / LOG).events)


def record_of(lines: Iterable[Any]) -> SessionRecord:
    """Convert the lines of a log, given in order, into a record."""
    reader = _Reader()
    for position, line in enumerate(lines, 1):
        reader.read(line, position)
    reader.end_stretch()
    return reader.record


class _Reader:
    """Takes the lines of a log one by one and adds them to the record."""

    def __init__(self) -> None:
        self.record = SessionRecord()
        self._position = 0
        self._next: list[Line] = []
        """Lines for `before` of the next turn."""
        self._calls: dict[int, CallRecord] = {}
        """The calls by their number in the session."""
        self._last: CallRecord | None = None
        """The call of the current turn that started or ended last."""
        self._begin: Line = {}
        self._previous: Line = {}

    def read(self, line: Any, position: int) -> None:
        record = self.record
        if not isinstance(line, dict) or line.get("v") != VERSION:
            record.unread += 1
            record.is_whole = False
            return
        if line.get("seq") != position:
            record.is_whole = False
        self._position = position
        kind = text(line, "type")
        if kind in STRETCHES:
            self.end_stretch()
        self._begin = self._begin or line
        self._previous = line
        if kind in KEPT:
            setattr(record, KEPT[kind], line)
        elif kind in LISTED:
            getattr(record, LISTED[kind]).append(line)
        elif kind in OF_TURN:
            self._turn(line).events.append(line)
        elif (method := _METHODS.get(kind)) is not None:
            method(self, line)
        else:
            record.unknown[kind] += 1

    def end_stretch(self) -> None:
        """Record the times of the first and the last line since the last stretch, if there are any."""
        if self._begin and self._previous:
            self.record.stretches.append((text(self._begin, "ts"), text(self._previous, "ts")))
        self._begin = {}

    def _started(self, line: Line) -> None:
        self.record.started = self.record.started or line

    def _resumed(self, line: Line) -> None:
        self._reopen()
        self._next.append(line)

    def _forked(self, line: Line) -> None:
        self.record.own_from = len(self.record.turns)
        self.record.stretches.clear()
        self._next.append(line)

    def _offered(self, line: Line) -> None:
        self.record.other_tools = items(line, "tools")

    def _turn_started(self, line: Line) -> None:
        turn = self._new_turn(whole(line, "turn"))
        turn.request = line
        turn.before, self._next = self._next, []
        self._reopen()

    def _reopen(self) -> None:
        self.record.ended, self.record.verdict, self.record.tests = {}, {}, {}

    def _new_turn(self, number_: int | None) -> TurnRecord:
        turn = TurnRecord(number_ or len(self.record.turns) + 1, self._position)
        self.record.turns.append(turn)
        self._last = None
        return turn

    def _turn(self, line: Line) -> TurnRecord:
        """Return the last turn with the event's turn number; the last turn if the event has no such number."""
        number_ = whole(line, "turn")
        for turn in reversed(self.record.turns):
            if number_ is None or turn.number == number_:
                return turn
        return self._new_turn(number_)

    def _retry(self, line: Line) -> None:
        self._turn({}).before.append(line)

    def _message(self, line: Line) -> None:
        turn = self._turn(line)
        if turn.answer:
            turn = self._new_turn(whole(line, "turn"))
        turn.answer, turn.line = line, self._position
        turn.calls = [*_calls_in(line, turn), *turn.calls]
        self._last = None

    def _turn_finished(self, line: Line) -> None:
        self._turn(line).finished = line

    def _call_started(self, line: Line) -> None:
        turn = self._turn(line)
        waiting = [call for call in turn.calls if not call.started and not call.finished]
        call = _like(waiting, line) or _add_call(turn, line)
        call.started, call.line = line, self._position
        self._last = call
        if (number_ := whole(line, "call")) is not None:
            self._calls[number_] = call

    def _call_finished(self, line: Line) -> None:
        call = self._numbered(line)
        if call is None:
            turn = self._turn(line)
            open_calls = [call for call in turn.calls if not call.finished]
            running = [call for call in open_calls if call.started]
            call = _like(running, line) or _like(open_calls, line) or _add_call(turn, line)
        call.finished, call.result_line = line, self._position
        self._last = call

    def _numbered(self, line: Line) -> CallRecord | None:
        number_ = whole(line, "call")
        return None if number_ is None else self._calls.get(number_)

    def _of_call(self, line: Line) -> None:
        """Add the event to its call; if the event has no call number, to the last call."""
        call = self._numbered(line) if whole(line, "call") is not None else self._last
        (call or self._turn(line)).events.append(line)

    def _tests(self, line: Line) -> None:
        if (where := text(line, "where")) in ("before", "after"):
            self.record.tests[where] = line
        else:
            self._of_call(line)

    def _network(self, line: Line) -> None:
        outside = text(line, "where") == "verify" or not self.record.turns
        (self.record.network if outside else self.record.turns[-1].events).append(line)

    def _stall(self, line: Line) -> None:
        """Add a stall to the call whose result has its note (the last call, else the first one), or to the turn."""
        turn = self._turn(line)
        told = next((call for call in turn.calls if call is self._last), next(iter(turn.calls), None))
        if told is None or text(line, "action") == "stopped":
            turn.events.append(line)
        else:
            told.events.append(line)


_METHODS: dict[str, Callable[[_Reader, Line], None]] = {
    "session.started": _Reader._started,
    "session.resumed": _Reader._resumed,
    "session.forked": _Reader._forked,
    "pull.followed": lambda reader, line: reader._next.append(line),
    "person.message": lambda reader, line: reader._next.append(line),
    "tools.offered": _Reader._offered,
    "turn.started": _Reader._turn_started,
    "retry": _Reader._retry,
    "message": _Reader._message,
    "turn.finished": _Reader._turn_finished,
    "call.started": _Reader._call_started,
    "call.finished": _Reader._call_finished,
    "file.changed": _Reader._of_call,
    "test.finished": _Reader._tests,
    "network.request": _Reader._network,
    "stall": _Reader._stall,
}


def _calls_in(answer: Line, turn: TurnRecord) -> list[CallRecord]:
    found: list[CallRecord] = []
    keys: set[str] = set()
    for entry in items(answer, "calls"):
        if not isinstance(entry, dict):
            continue
        identity = text(entry, "id")
        key = identity if identity and identity not in keys else f"call_{turn.number}_{len(found)}"
        while key in keys:
            key += "_"
        keys.add(key)
        found.append(CallRecord(identity, key, text(entry, "name"), _arguments(entry)))
    return found


def _add_call(turn: TurnRecord, line: Line) -> CallRecord:
    """Add a call that is missing in the turn's answer."""
    identity = text(line, "id")
    call = CallRecord(identity, identity, text(line, "name"), _arguments(line), asked=False)
    turn.calls.append(call)
    return call


def _arguments(line: Line) -> dict[str, Any] | None:
    value = line.get("arguments")
    return value if isinstance(value, dict) else None


def _like(calls: list[CallRecord], line: Line) -> CallRecord | None:
    """Return the call that a line belongs to, by id or else by name. Calls run in order, so the first match counts."""
    same = [call for call in calls if call.id == text(line, "id")]
    return next(iter(same or [call for call in calls if call.name == text(line, "name")]), None)
