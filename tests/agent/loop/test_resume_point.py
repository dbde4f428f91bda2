"""Test at which point a session resumes, from its log alone."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.agent.loop.completion_gate import was_accepted
from m3agent.agent.loop.resume import ResumePoint, resume_point
from m3agent.agent.loop.tool_executor import INTERRUPTED
from m3agent.agent.session import events
from m3agent.agent.session.events import Event, Gate
from m3agent.util.errors import UsageError
from tests.agent.report.test_report_model import finished, started, suite, turn_finished, turn_started
from tests.agent.session.test_session_record import FORKED, RESUMED, asks, begins, lines

BASE = started(tree="base")


def ends(
    turn: int, number: int, ident: str, content: str, tree: str, status: Any = "done"
) -> events.CallFinished:
    return events.CallFinished(
        turn, number, ident, "code_exec", status, content, False, 0, "", False, None, {}, 0.1, tree
    )


def point_of(*written: Event) -> ResumePoint:
    return resume_point(lines(*written))


def asking(*ids: str) -> list[dict[str, Any]]:
    """Return a conversation that ends with an answer's calls."""
    calls = [{"id": ident} for ident in ids]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}]


def told(ident: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": "x"}


def test_state_of_an_interrupted_session() -> None:
    point = point_of(
        BASE,
        events.ToolsOffered(tools=[{"name": "other"}]),
        turn_started(1), asks(1, "a"), turn_finished(1, completion_tokens=10), begins(1, 1, "a"),
        ends(1, 1, "a", "one", "after a"), suite("session", ["red"], [], 1),
        turn_started(2), asks(2), turn_finished(2, completion_tokens=20), Gate(2, "Run the tests.", 0),
        turn_started(3), asks(3, "b", "c", "d"), turn_finished(3, completion_tokens=30), begins(3, 2, "b"),
        ends(3, 2, "b", "two", "after b"), begins(3, 3, "c"),
        finished("interrupted"),
    )  # fmt: skip
    assert (point.turn, point.calls, point.tree) == (3, 3, "after b")
    assert (point.used.turns, point.used.completion) == (3, 60)
    assert point.tools == [{"name": "other"}]
    assert point.tests.last is not None
    assert point.tests.last["failed"] == ["red"]
    assert point.seconds == 18.0
    ended, cut_off, waits = point.pending(asking("b", "c", "d"))
    assert ended.result is not None
    assert ended.result.content == "two"
    assert (cut_off.is_cut_off, cut_off.started["call"]) == (True, 3)
    assert cut_off.result is not None
    assert cut_off.result.content == INTERRUPTED
    assert (waits.call.name, waits.result) == ("code_exec", None)
    assert [each.call.id for each in point.pending([*asking("b", "c", "d"), told("b")])] == ["c", "d"]
    assert point.pending([*asking("b", "c", "d"), *map(told, ("b", "c", "d"))]) == []
    assert point.pending([{"role": "user", "content": "x"}]) == []


def test_a_call_that_was_reported_as_interrupted_is_reported_again() -> None:
    """The process ended after logging the report and before adding it to the conversation."""
    cut_off = [begins(1, 1, "a"), RESUMED, ends(1, 1, "a", INTERRUPTED, "base", "interrupted")]
    point = point_of(BASE, turn_started(1), asks(1, "a"), turn_finished(1), *cut_off)
    [pending] = point.pending(asking("a"))
    assert pending.result is not None
    assert (pending.is_cut_off, pending.result.content, point.tree) == (False, INTERRUPTED, "base")


def test_an_id_that_is_given_again_is_of_the_later_turn() -> None:
    point = point_of(
        BASE, turn_started(1), asks(1, "a"), turn_finished(1), begins(1, 1, "a"), ends(1, 1, "a", "one", "t"),
        turn_started(2), asks(2, "a"), turn_finished(2),
    )  # fmt: skip
    [pending] = point.pending([*asking("a"), told("a"), *asking("a")])
    assert (pending.started, pending.result) == ({}, None)


def test_a_fork_has_used_nothing_of_its_limits() -> None:
    point = point_of(
        BASE, turn_started(1), asks(1), turn_finished(1), FORKED, turn_started(2), asks(2),
        turn_finished(2, completion_tokens=5),
    )  # fmt: skip
    assert (point.turn, point.used.turns, point.used.completion, point.seconds) == (2, 1, 5, 3.0)


def test_pins_outlive_a_summary_and_are_not_those_of_an_answer_that_is_reviewed_again() -> None:
    def answers(turn: int, text: str, *, called: bool = False) -> list[Event]:
        calls = [{"id": "a", "name": "code_exec", "arguments": "{}"}] if called else []
        return [turn_started(turn), events.Message(turn, "", text, calls), turn_finished(turn)]

    summary = events.ContextSummarised(turn=2, messages=40, kept=4, own_words=True, text="notes")
    last = answers(3, "Pinned: test_c.py::test_c: it states it too.")
    reviewed = [
        *answers(1, "Pinned: test_a.py::test_a: it states the old sum."),
        *answers(2, "Pinned: test_b.py::test_b: a call follows.", called=True),
        summary,
    ]
    assert point_of(BASE, *reviewed, *last).pinned == {"test_a.py::test_a", "test_c.py::test_c"}
    again = point_of(BASE, *reviewed, *last, Gate(3, "", 0))
    assert again.accepted_answer is not None
    assert again.pinned == {"test_a.py::test_a"}


def test_which_answers_the_gate_let_pass() -> None:
    """Older logs have no cause; there, a third answer passed although something was missing."""
    turn = (turn_started(1), asks(1), turn_finished(1))
    for gate, passed in ((Gate(1, "", 0), True), (Gate(1, "Call the tool.", 3, "announced"), False)):
        assert (point_of(BASE, *turn, gate).accepted_answer is not None) == passed
    for asked in (1, 2):
        assert was_accepted({"missing": "Run the tests.", "asked": asked}) == (asked == 2)


def test_a_summary_is_no_move_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from m3agent.agent.stall import StallDetector

    seen: list[str] = []
    monkeypatch.setattr(StallDetector, "answered", lambda _, **values: seen.append(values["finish"]))
    summary = events.ContextSummarised(turn=2, messages=40, kept=4, own_words=True, text="notes")
    point_of(
        BASE, turn_started(1), asks(1), turn_finished(1, finish="one"),
        turn_started(2), asks(2), turn_finished(2, finish="two"), summary,
    )  # fmt: skip
    assert seen == ["one"]


@pytest.mark.parametrize("status", ["verified", "answered", "unverified", "failed", "empty", "stalled"])
def test_a_session_that_is_over_is_not_resumed(status: str) -> None:
    with pytest.raises(UsageError, match=rf"the session is over \({status}\): there is nothing to resume"):
        point_of(BASE, turn_started(1), asks(1), finished(status))


@pytest.mark.parametrize("status", ["interrupted", "error", "limit"])
def test_a_session_that_was_stopped_is_resumed(status: str) -> None:
    assert point_of(BASE, turn_started(1), asks(1), finished(status)).turn == 1


def test_a_session_that_had_not_begun_is_not_resumed() -> None:
    for written in ([], [events.Error("UsageError", "no", 2), finished("error")]):
        with pytest.raises(UsageError, match="ended before it began"):
            point_of(*written)


def test_a_session_shares_the_prompt_of_its_first_attempt_or_of_what_it_was_forked_from() -> None:
    attempt = {"number": 2, "of": 3, "hint": "", "temperature": 1.0, "seed": None, "group": "first"}
    assert point_of(BASE).group == ""
    assert point_of(BASE, FORKED, FORKED).group == FORKED.source
    assert point_of(started(tree="base", attempt=attempt), FORKED).group == "first"
