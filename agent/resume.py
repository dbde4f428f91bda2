"""What a session had come to, read from its log: where an interrupted fix goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from m3agent.agent import turn_events
from m3agent.agent.accounting import Totals
from m3agent.agent.context.output import redact_text
from m3agent.agent.errors import Status, UsageError
from m3agent.agent.session_log import Line
from m3agent.agent.stall import StallDetector, as_seen
from m3agent.agent.variation import Variation
from m3agent.serving.chat import ToolCall
from m3agent.tools.base import ToolResult

GOES_ON = frozenset({Status.INTERRUPTED, Status.ERROR, Status.LIMIT})
"""Ends that are none: the model had not said that it was done."""

INTERRUPTED = "interrupted: it was begun and did not come to its end, and is not run again; the work tree is as before it"

WORK_TREE_CHANGED = "[the work tree is no longer as you left it, but as it is on the user's disk now: read files again before you edit them]"


_EMBEDDED = "embedded: search-based repair judged by the tests, no language model"
"""`endpoint.description` of a session with the embedded engine, in logs from before `endpoint.source` was added."""


@dataclass
class ResumePoint:
    """started: the first line. tree: the work tree's last state. turn, calls: the last numbers given out.

    answers: what the model said, by turn. results: of calls that ended, by their number; begun: those that did not.
    order: number and id of all calls of each turn. asked: times the gate refused. seconds: worked before. tell: words of
    the user's for the model.
    """

    started: Line
    tree: str
    turn: int = 0
    calls: int = 0
    asked: int = 0
    seconds: float = 0.0
    tell: str = ""
    tested_tree: str | None = None
    used: Totals = field(default_factory=Totals)
    tests: dict[str, Any] | None = None
    variation: Variation = Variation()  # noqa: RUF009  # it is frozen
    tools: list[dict[str, Any]] = field(default_factory=list)
    """What is offered besides our own tools."""
    stall: StallDetector = field(default_factory=StallDetector)
    """Fed with the answers and the calls that ended."""
    _answers: dict[int, list[ToolCall]] = field(default_factory=dict)
    _begun: dict[tuple[int, str], Line] = field(default_factory=dict)
    _ended: dict[tuple[int, str], Line] = field(default_factory=dict)

    def outstanding(self, messages: Sequence[dict[str, Any]]) -> list[Outstanding]:
        """The calls of the last message that have no result in the conversation, with what is known of each."""
        answered = {message.get("tool_call_id") for message in messages}
        turns = [turn for turn in self._answers if self._answers[turn]]
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        if last is None or not last.get("tool_calls") or not turns:
            return []
        ids = [call["id"] for call in last["tool_calls"]]
        turn = max(turn for turn in turns if [call.id for call in self._answers[turn]] == ids)
        return [
            Outstanding(call, self._begun.get((turn, call.id)), self._ended.get((turn, call.id)))
            for call in self._answers[turn]
            if call.id not in answered or self._is_later(call.id, messages)
        ]

    @staticmethod
    def _is_later(identity: str, messages: Sequence[dict[str, Any]]) -> bool:
        """Whether an id that was used before is asked for again by the last message and not answered since."""
        for message in reversed(messages):
            if message.get("tool_call_id") == identity:
                return False
            if message["role"] == "assistant":
                return True
        return False


@dataclass(frozen=True)
class Outstanding:
    """A call whose result the model has not been told; begun and ended are its lines in the log, where it has them."""

    call: ToolCall
    begun: Line | None = None
    ended: Line | None = None

    @property
    def result(self) -> ToolResult | None:
        """What to tell the model; None for a call that was never begun, which is run now."""
        if self.ended is not None and self.ended["status"] != "interrupted":
            return _result(self.ended)
        return ToolResult(INTERRUPTED, is_error=True) if self.begun is not None else None


def resume_point(lines: Sequence[Line]) -> ResumePoint:
    """Where a session stands, by its log.

    Raises UsageError for one that has nothing to go on with: not begun, or done.
    """
    if not lines or lines[0]["type"] != "session.started":
        raise UsageError("the session ended before it had begun, so start it anew")
    if lines[-1]["type"] == "session.finished" and lines[-1]["status"] not in GOES_ON:
        raise UsageError(f"the session is over ({lines[-1]['status']}): there is nothing to resume")
    own = max((n for n, line in enumerate(lines) if line["type"] == "session.forked"), default=0)
    point = ResumePoint(
        lines[0], lines[0]["tree"], seconds=sum(_worked(lines[own:])), variation=_variation(lines[0])
    )
    begun: dict[int, Line] = {}
    said: Line = {}
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        match line["type"]:
            case "tools.offered":
                point.tools = line["tools"]
            case "turn.started":
                point.turn = max(point.turn, line["turn"])
            case "message":
                point._answers[line["turn"]] = [_call(call) for call in line["calls"]]
                said = line
            case "turn.finished":
                point.used.add(turn_events.answer_of(line), line["price"])
                if (
                    after is None or after["type"] != "context.summarised"
                ):  # a summary is no move of the model's
                    calls, finish = len(said["calls"]), line["finish"]
                    point.stall.answered(
                        reasoning=said["reasoning"], text=said["text"], calls=calls, finish=finish
                    )
            case "call.started":
                point.calls = max(point.calls, line["call"])
                point._begun[line["turn"], line["id"]] = begun[line["call"]] = line
            case "call.finished":
                point._ended[line["turn"], line["id"]] = line
                point.tree = line["tree"]
                if line["status"] != "interrupted":
                    call, result = _call(begun[line["call"]]), _result(line)
                    point.stall.see(as_seen(call, result, redact_text(result.content), line["tree"]))
            case "test.finished" if line["where"] == "session":
                point.tested_tree, point.tests = line["tree"], line
            case "gate":
                point.asked += bool(line["missing"])
            case "session.forked":
                point.used = Totals()
    return point


def used_embedded_engine(started: Line) -> bool:
    """Whether a session talked to an embedded engine of its own, by its first line."""
    endpoint = started["endpoint"]
    if "source" in endpoint:
        return bool(endpoint["source"] == "embedded")
    return bool(endpoint["description"] == _EMBEDDED)


def rebased(point: ResumePoint, tree: str, tell: str) -> ResumePoint:
    """The point with another work tree to start from, which patches are then made against, and words for the model."""
    changed = f"{WORK_TREE_CHANGED}\n\n" if tree != point.tree else ""
    started = {**point.started, "tree": tree}
    return replace(point, started=started, tree=tree, tell=changed + tell)


def _call(call: dict[str, Any]) -> ToolCall:
    error = None if call["arguments"] is not None else "the arguments are not a JSON object"
    return ToolCall(call["id"], call["name"], call["arguments"], "", error)


def _variation(started: Line) -> Variation:
    """What set an attempt apart from others: it goes on alone, and just as it was."""
    attempt = started.get("attempt")
    if attempt is None:
        return Variation()
    return Variation(hint=attempt["hint"], temperature=attempt["temperature"], seed=attempt["seed"])


def _result(line: Line) -> ToolResult:
    return ToolResult(
        line["content"],
        is_error=line["is_error"],
        exit_code=line["exit_code"],
        digest=line["digest"],
        truncated=line["truncated"],
        full_path=line["full_path"],
        data=line["data"],
    )


def _worked(lines: Sequence[Line]) -> Iterator[float]:
    """Seconds of each stretch of work, from a start or a resumption to the last line before the next."""
    begin = lines[0]
    for before, line in zip(lines, [*lines[1:], None], strict=True):
        if line is None or line["type"] == "session.resumed":
            yield (datetime.fromisoformat(before["ts"]) - datetime.fromisoformat(begin["ts"])).total_seconds()
            begin = line or before
