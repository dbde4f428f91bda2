"""Find the point from which an interrupted fix can resume, from its session's log.

What happens to a call depends on how far it came:

- If it has a result that the model has not received, the model gets the result.
- If it had begun but not ended, it is reported as interrupted and never run again.
- If it had not begun, it is run.

The work tree is restored from its last checkpoint, and the stall detector gets the answers and calls of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.output import redact_text
from m3agent.agent.loop import turn_events
from m3agent.agent.loop.completion_gate import pinned_tests, was_accepted
from m3agent.agent.loop.limits import Variation
from m3agent.agent.loop.prompt import SAID
from m3agent.agent.loop.tool_executor import PendingCall, SessionTests
from m3agent.agent.session.events import SessionForked
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.record import CallRecord, SessionRecord, TurnRecord, record_of
from m3agent.agent.session.usage import Totals
from m3agent.agent.stall import StallDetector, as_seen
from m3agent.serving.client.messages import ToolCall
from m3agent.tools.registry import understood
from m3agent.util.errors import Status, UsageError

RESUMABLE = frozenset({Status.INTERRUPTED, Status.ERROR, Status.LIMIT, Status.PROPOSED})
"""Statuses of sessions that can be resumed: the model had not said that it was done."""

WORK_TREE_CHANGED = (
    "[the work tree is no longer as you left it; it now has the files of the user's disk: "
    "read files again before you edit them]"
)

_EMBEDDED = "embedded: search-based repair judged by the tests, no language model"
"""`endpoint.description` of a session with the embedded engine, in logs from before `endpoint.source` was added."""


@dataclass
class ResumePoint:
    """The state from which a session resumes."""

    started: Line
    """The session's `session.started`."""
    tree: str
    """Last state of the work tree."""
    turn: int = 0
    """Number of the last turn."""
    calls: int = 0
    """Number of the last call."""
    accepted_answer: str | None = None
    """The last answer, if the gate accepted it and its verdict did not go back to the model; else None."""
    rounds: int = 0
    """How often a verdict went back to the model."""
    returned: Line = field(default_factory=dict)
    """The last `feedback`; empty without one."""
    named_red: dict[str, str] = field(default_factory=dict)
    """Tests that earlier verdicts named red, each with the id of its tree."""
    pinned: frozenset[str] = frozenset()
    """Tests that reviewed answers pinned, those of which a summary took the place included."""
    seconds: float = 0.0
    """Time that earlier processes worked on the session."""
    tell: str = ""
    """The user's message to the model."""
    proposes: str = ""
    """What the person has not accepted yet: `plan` or `spec`; empty if nothing."""
    waits: bool = False
    """Whether a proposal waits for the person's answer."""
    answered: Line = field(default_factory=dict)
    """The person's answer to a proposal since the last request; empty without one."""
    spec_tree: str = ""
    """The base tree with the test that the person accepted; empty without one."""
    said: list[str] = field(default_factory=list)
    """What the person said since the last request."""
    used: Totals = field(default_factory=Totals)
    """Tokens and cost so far."""
    tests: SessionTests = field(default_factory=SessionTests)
    """The outcomes of the session's test runs."""
    group: str = ""
    """Id of the session whose prompt this session's begins with: that of the first attempt at the issue, or the one
    that it was forked from; empty if that is the session itself."""
    variation: Variation = Variation()  # noqa: RUF009  # it is frozen
    """What distinguishes this attempt from others."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Schemas of the MCP tools that the session offers."""
    stall: StallDetector = field(default_factory=StallDetector)
    """A detector that has received all earlier answers and finished calls."""
    turns: Sequence[TurnRecord] = ()
    """All turns of the log."""

    def pending(self, messages: Sequence[dict[str, Any]]) -> list[PendingCall]:
        """Return the calls of the model's last message that have no result in the conversation."""
        last = max(
            (at for at, message in enumerate(messages) if message["role"] == "assistant"), default=None
        )
        if last is None:
            return []
        ids = [call["id"] for call in messages[last].get("tool_calls") or ()]
        answered = {message.get("tool_call_id") for message in messages[last + 1 :]}
        asked = next(
            (turn.asked for turn in reversed(self.turns) if [call.id for call in turn.asked] == ids), ()
        )
        return [
            PendingCall(_tool_call(call), call.started, call.finished)
            for call in asked
            if call.id not in answered
        ]

    def unheard(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        """Return what the person said and the conversation does not have."""
        last = str(messages[-1]["content"])
        told = [SAID.format(harmless(text)) for text in self.said]
        sent = next(n for n in range(len(told), -1, -1) if last.endswith("\n\n".join(told[:n])))
        return self.said[sent:]


def resume_point(lines: Sequence[Line]) -> ResumePoint:
    """Return the point from which a session resumes, computed from the lines of its log.

    Raises UsageError: The session cannot be resumed: it ended before it began, or the model was done.
    """
    record = record_of(lines)
    started = record.started
    _check_resumable(record)
    point = ResumePoint(
        started,
        started["tree"],
        seconds=sum(_seconds(begin, end) for begin, end in record.stretches),
        group=_group(started, lines),
        variation=_variation(started),
        tools=record.other_tools,
        turns=record.turns,
    )
    restored = _replay_person(point, lines)
    for turn in record.own_turns:
        if turn.finished:
            point.used.add(turn_events.answer_of(turn.finished), turn.finished["price"])
    for turn in record.turns:
        _replay_turn(point, turn)
    point.tree = restored or point.tree
    reviewed = record.turns
    if reviewed and _was_accepted_last(reviewed[-1]):
        point.accepted_answer = reviewed[-1].text
        reviewed = reviewed[:-1]  # it is reviewed again
    point.pinned = frozenset().union(*(pinned_tests(turn.text) for turn in reviewed if not turn.asked))
    return point


def _check_resumable(record: SessionRecord) -> None:
    """Check that a session goes on. Raises UsageError."""
    if not record.started:
        raise UsageError("the session ended before it began; start the fix again")
    status = record.ended["status"] if record.ended else None
    if status is None or status in RESUMABLE:
        return
    further = (
        "add a test that fails for what is still wrong, and run the fix again"
        if used_embedded_engine(record.started)
        else "`m3agent sessions fork` goes on from its end in a new session"
    )
    raise UsageError(f"the session is over ({status}): there is nothing to resume; {further}")


def _was_accepted_last(turn: TurnRecord) -> bool:
    """Return whether the gate accepted a turn's answer, and its verdict did not go back to the model."""
    return not turn.of_type("feedback") and any(map(was_accepted, turn.of_type("gate")))


def _replay_person(point: ResumePoint, lines: Sequence[Line]) -> str:
    """Take what the person said and answered; return the tree of an accepted proposal, if no call ended since then."""
    point.proposes = point.started.get("proposes", "")
    proposed, restored = dict[str, Any](), ""
    for line in lines:
        match line["type"]:
            case "proposal":
                proposed, point.waits = line, True
            case "proposal.answered":
                point.waits, point.answered = False, line
                if line["accepted"]:
                    point.proposes, restored = "", proposed["tree"]
                    is_test_of_person = proposed["kind"] == "spec" and line.get("by", "person") == "person"
                    point.spec_tree = restored if is_test_of_person else ""
            case "person.message":
                point.said.append(line["text"])
            case "turn.started":
                point.said.clear()
                point.answered = {}
            case "call.finished":
                restored = ""
    return restored


def _replay_turn(point: ResumePoint, turn: TurnRecord) -> None:
    """Take a turn's answer, calls and feedback."""
    point.turn = max(point.turn, turn.number)
    if turn.finished and not turn.of_type("context.summarised"):  # a summary is not work on the issue
        finish, calls = turn.finished["finish"], len(turn.asked)
        point.stall.answered(reasoning=turn.reasoning, text=turn.text, calls=calls, finish=finish)
    for call in turn.calls:
        _count_call(point, call)
    for returned in turn.of_type("feedback"):
        point.rounds += 1
        point.returned = returned
        point.named_red |= dict.fromkeys(returned["tests"], returned["tree"])


def used_embedded_engine(started: Line) -> bool:
    """Return whether a session started its own embedded engine, from its `session.started`."""
    endpoint = started["endpoint"]
    if "source" in endpoint:
        return bool(endpoint["source"] == "embedded")
    return bool(endpoint["description"] == _EMBEDDED)


def _count_call(point: ResumePoint, call: CallRecord) -> None:
    """Update the point with what the log has of a call."""
    if call.started:
        point.calls = max(point.calls, call.started["call"])
    if call.finished:
        point.tree = call.finished["tree"]
        if not call.is_interrupted:
            result = turn_events.result_of(call.finished)
            point.stall.see(as_seen(_tool_call(call), result, redact_text(result.content), point.tree))
    runs = call.of_type("test.finished")
    for tests in runs:
        point.tests.add_run(tests, tests["tree"])
    is_done = bool(call.finished) and call.finished["status"] == "done"
    traits, arguments = understood(call.name, call.arguments)
    if is_done and not runs and traits.kind == "execute":
        is_run = traits.runs_tests(arguments)
        point.tests.add_program(is_run, call.finished["exit_code"], call.finished["tree"])


def rebased(point: ResumePoint, tree: str, tell: str) -> ResumePoint:
    """Return a copy of the point that starts from another work tree and has a message for the model.

    Patches are then differences from that tree.
    """
    changed = f"{WORK_TREE_CHANGED}\n\n" if tree != point.tree else ""
    started = {**point.started, "tree": tree}
    return replace(point, started=started, tree=tree, tell=changed + tell)


def _tool_call(call: CallRecord) -> ToolCall:
    error = None if call.arguments is not None else "the arguments are not a JSON object"
    return ToolCall(call.id, call.name, call.arguments, "", error)


def _variation(started: Line) -> Variation:
    """Return the variation of an attempt without its number: it is resumed alone, with the same parameters."""
    attempt = started.get("attempt")
    if attempt is None:
        return Variation()
    return Variation(hint=attempt["hint"], temperature=attempt["temperature"], seed=attempt["seed"])


def _group(started: Line, lines: Sequence[Line]) -> str:
    """Return the id of the first session with the same prompt, or an empty string."""
    if attempt := started.get("attempt"):
        return str(attempt["group"])
    return next((str(line["source"]) for line in lines if line["type"] == SessionForked.type), "")


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
