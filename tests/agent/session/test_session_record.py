"""Test the record of a session's log: the turn and call of each event, and what ends or reopens a session."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.session import events
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.record import SessionRecord, read_session, record_of
from m3agent.agent.session.session import Session
from m3agent.util.errors import UsageError
from tests.agent.report.test_report_model import (
    a_fix,
    call_finished,
    call_started,
    finished,
    message,
    started,
    suite,
    turn_finished,
    turn_started,
)

RESUMED = events.SessionResumed(m3agent="0", messages=4, tree="", interrupted=[])
FORKED = events.SessionForked(source="20260101-000000-abcdef", turn=1)
VERDICT = events.Verify("failed", "1 broken", [], ["x"], [], [], [], 2.1)


def lines(*written: Event) -> list[Line]:
    """Return the events as log lines, one second apart."""
    return [
        {"v": 1, "seq": seq, "ts": f"2026-01-01T00:00:{seq:02}.000Z", "type": event.type, **vars(event)}
        for seq, event in enumerate(written, 1)
    ]


def record(*written: Event) -> SessionRecord:
    return record_of(lines(*written))


def asks(turn: int, *ids: str) -> events.Message:
    return events.Message(turn, "", "", [{"id": i, "name": "code_exec", "arguments": {}} for i in ids])


def begins(turn: int, number: int, ident: str, name: str = "code_exec") -> events.CallStarted:
    return events.CallStarted(turn, number, ident, name, {}, "t")


def ends(turn: int, number: int, ident: str, content: str = "", status: Any = "done") -> events.CallFinished:
    return events.CallFinished(
        turn, number, ident, "code_exec", status, content, False, 0, "", False, None, {}, 0.1, "t"
    )


def test_a_whole_fix(tmp_path: Path) -> None:
    session = Session.create(tmp_path, [])
    for event in a_fix():
        session.write(event)
    session.close()
    found = read_session(session.folder)
    assert found.started["issue"]["title"] == "The last van stays on the quay"
    assert [line["type"] for line in found.prepared] == [
        "environment.ready",
        "context.packed",
        "endpoint.probed",
    ]
    assert [turn.number for turn in found.turns] == [1, 2, 3, 4, 5, 6]
    assert found.answered == found.turns == found.own_turns
    assert [line["type"] for line in found.turns[0].before] == ["retry"]
    assert [line["type"] for line in found.turns[2].events] == ["network.request"] * 2
    assert [line["type"] for line in found.turns[2].calls[0].events] == ["stall"]
    assert [line["type"] for line in found.turns[3].calls[0].events] == ["file.changed"]
    assert found.turns[4].of_type("gate")[0]["missing"] == "no test was run since the last edit"
    assert set(found.tests) == {"before", "after"}
    assert (found.verdict["verdict"], found.ended["status"]) == ("verified", "verified")
    assert (found.is_whole, found.unread, found.unknown) == (True, 0, {})
    assert len(found.of_type("test.finished")) == 2
    raw = (session.folder / "events.jsonl").read_bytes()
    (session.folder / "events.jsonl").write_bytes(raw[:-3])
    assert read_session(session.folder).ended == {}, "a line without its end does not count"


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the log cannot be read"):
        read_session(tmp_path)


def test_the_record_of_an_empty_log_is_empty() -> None:
    found = record_of([])
    assert found == SessionRecord()
    assert (found.total("turns"), found.total("price")) == (0, None)


# -- calls -----------------------------------------------------------------------------------------------------------


def test_each_call_has_its_own_lines() -> None:
    """Even if the model used an id twice, or gave none."""
    found = record(
        turn_started(1),
        asks(1, "a", "a", ""),
        *itertools.chain.from_iterable(
            (begins(1, n, ident), ends(1, n, ident, f"result {n}"))
            for n, ident in enumerate(("a", "a", ""), 1)
        ),
    )
    [turn] = found.turns
    assert [call.finished["content"] for call in turn.calls] == ["result 1", "result 2", "result 3"]
    assert [call.started["call"] for call in turn.calls] == [1, 2, 3]
    assert [call.id for call in turn.calls] == ["a", "a", ""]
    assert [call.key for call in turn.calls] == ["a", "call_1_1", "call_1_2"]
    assert [(call.line, call.result_line) for call in turn.calls] == [(3, 4), (5, 6), (7, 8)]


def test_a_call_that_a_resumed_session_carries_out_is_of_its_turn() -> None:
    found = record(
        turn_started(1), asks(1, "a", "b"), begins(1, 1, "a"), RESUMED, ends(1, 1, "a", status="interrupted"),
        begins(1, 2, "b"), ends(1, 2, "b"), turn_started(2), asks(2),
    )  # fmt: skip
    first, second = found.turns
    assert [call.is_interrupted for call in first.calls] == [True, False]
    assert [line["type"] for line in second.before] == ["session.resumed"]


def test_a_call_that_never_began_has_no_lines() -> None:
    [turn] = record(turn_started(1), asks(1, "a", "b"), begins(1, 1, "a"), ends(1, 1, "a")).turns
    [_, waits] = turn.calls
    assert (waits.asked, waits.started, waits.finished, waits.line) == (True, {}, {}, 0)


def test_a_call_that_the_answer_lacks_is_kept_apart() -> None:
    [turn] = record(turn_started(1), asks(1, "a"), begins(1, 1, "z", "file_edit"), ends(1, 1, "z")).turns
    assert [call.id for call in turn.asked] == ["a"]
    [_, more] = turn.calls
    assert (more.id, more.asked, more.finished["id"]) == ("z", False, "z")


def test_a_result_without_a_start() -> None:
    [turn] = record(turn_started(1), asks(1, "a"), ends(1, 1, "a", "done")).turns
    [call] = turn.calls
    assert (call.started, call.finished["content"]) == ({}, "done")


def test_stall_note_belongs_to_the_result_before_it() -> None:
    def stall(turn: int, action: Any, count: int = 1) -> events.Stall:
        return events.Stall(turn, "rule", count, action, "again")

    first, second, third = record(
        turn_started(1), asks(1, "a", "b"), stall(1, "told"), begins(1, 1, "a"), ends(1, 1, "a"),
        begins(1, 2, "b"), ends(1, 2, "b"), stall(1, "forced"), stall(1, "stopped"),
        turn_started(2), stall(2, "told"),
        turn_started(3), asks(3, "c"), begins(3, 3, "c"), ends(3, 3, "c"), stall(3, "told"),
    ).turns  # fmt: skip
    assert [[line["action"] for line in call.events] for call in first.calls] == [["told"], ["forced"]]
    assert [line["action"] for line in first.events] == ["stopped"]
    assert (second.answer, len(second.events)) == ({}, 1)
    assert len(third.calls[0].events) == 1


# -- turns -----------------------------------------------------------------------------------------------------------


def test_a_request_without_an_answer_is_a_turn() -> None:
    found = record(turn_started(1), turn_started(2), message(2), turn_finished(2))
    assert [bool(turn.answer) for turn in found.turns] == [False, True]
    assert [turn.number for turn in found.answered] == [2]
    assert [turn.sent for turn in found.turns] == [2, 4]


def test_two_answers_of_one_number_are_two_turns() -> None:
    found = record(turn_started(1), message(1, "one"), message(1, "two"))
    assert [(turn.number, turn.text) for turn in found.turns] == [(1, "one"), (1, "two")]


# -- the session -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [[RESUMED], [turn_started(2)]], ids=["resumed", "a turn"])
def test_resumed_session_has_no_end(more: list[Event]) -> None:
    found = record(started(), turn_started(1), message(1), finished("limit"), *more)
    assert found.ended == {}


def test_resumed_session_has_no_verdict() -> None:
    before = [started(), turn_started(1), message(1), suite("before", [], []), VERDICT, finished("limit")]
    assert record(*before).verdict["verdict"] == "failed"
    found = record(*before, RESUMED, finished("limit"))
    assert (found.verdict, found.tests, found.ended["status"]) == ({}, {}, "limit")


def test_the_turns_of_the_session_that_one_was_forked_from_are_not_its_own() -> None:
    found = record(
        started(), turn_started(1), message(1), turn_finished(1, completion_tokens=100),
        FORKED, turn_started(2), message(2), turn_finished(2, completion_tokens=7, price=None),
    )  # fmt: skip
    assert [turn.number for turn in found.own_turns] == [2]
    assert [line["type"] for line in found.turns[1].before] == ["session.forked"]
    assert (found.total("completion_tokens"), found.total("price"), found.total("turns")) == (7, None, 2)
    assert found.total("cached_share") is None, "shares are not to be added"


def test_totals_are_those_of_the_end() -> None:
    found = record(started(), turn_started(1), message(1), turn_finished(1), finished("failed", price=None))
    assert (found.total("turns"), found.total("prompt_tokens"), found.total("price")) == (6, 2_490_900, None)


def test_the_time_of_each_process_counts_from_the_last_fork_on() -> None:
    def seconds(found: SessionRecord) -> list[tuple[str, str]]:
        return [(begin[17:19], end[17:19]) for begin, end in found.stretches]

    work = [started(), turn_started(1), message(1)]
    assert seconds(record(*work, RESUMED, turn_started(2))) == [("01", "03"), ("04", "05")]
    assert seconds(record(*work, FORKED, turn_started(2), RESUMED)) == [("04", "05"), ("06", "06")]


def test_what_is_not_understood_is_counted() -> None:
    known = lines(started(), call_started(1, 1, "code_exec", {}), call_finished(1, 1, ""))
    odd: list[Any] = [
        None,
        {"v": 2, "type": "message"},
        {"v": 1, "seq": 6, "type": "dream"},
        {"v": 1, "seq": 7},
    ]
    found = record_of([*known, *odd])
    assert (found.unread, found.unknown, found.is_whole) == (2, {"dream": 1, "": 1}, False)
    assert len(found.turns) == 1
    assert record_of([known[0], known[2]]).is_whole is False, "a line is missing"
