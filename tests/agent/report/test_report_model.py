"""Test the report of a session's log, whichever version wrote the log and however the session ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.report.model import SessionReport
from m3agent.agent.report.page import render
from m3agent.agent.report.reader import report_of
from m3agent.agent.session import events
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import LOG, SessionLog, read_log
from m3agent.agent.session.session import Session
from tests.agent.session.an_event import an_event

PATCH = """diff --git a/src/deck.py b/src/deck.py
index 1111111..2222222 100644
--- a/src/deck.py
+++ b/src/deck.py
@@ -36,3 +36,3 @@ class Lane:
             return False
-        return vehicle.length < self.free
+        return vehicle.length <= self.free
"""
RED, GREEN = "tests/test_deck.py::test_a_full_lane", "tests/test_deck.py::test_free"

Write = Callable[..., Path]


def started(title: str = "The last van stays on the quay", **changes: Any) -> events.SessionStarted:
    values: dict[str, Any] = {
        "repository": {
            "root": "/home/dev/ferry", "head": "84f9a84a73ecc5ed7b1a53b6b1d9d5fef227ea1c", "branch": "main", "bare": False,
            "shallow": False, "dirty": 2,
        },
        "issue": {
            "title": title, "source": "https://github.com/example/ferry/issues/12", "digest": "0" * 64,
            "text": f"{title}\n\nThree vans of 6 m are on a lane of 24 m. The fourth waits, with 6 m free.", "images": [],
        },
        "endpoint": {"url": "http://127.0.0.1:8000/v1", "description": "http://127.0.0.1:8000/v1 (named)"},
        "sandbox": {"backend": "docker", "image": None, "memory": "4g"},
        "settings": {"thinking": "adaptive", "max_turns": 100, "max_cost": None},
        "tree": "1" * 40,
        **changes,
    }  # fmt: skip
    return an_event(events.SessionStarted, **values)


def turn_started(turn: int) -> events.TurnStarted:
    return events.TurnStarted(turn=turn, messages=2 * turn, digest="0" * 64)


def message(turn: int, text: str = "", reasoning: str = "", calls: int = 1) -> events.Message:
    return events.Message(
        turn, reasoning, text, [{"id": f"c{turn}", "name": "code_exec", "arguments": {}}] * calls
    )


def turn_finished(turn: int, **changes: Any) -> events.TurnFinished:
    values: dict[str, Any] = {
        "turn": turn, "finish": "tool_calls", "prompt_tokens": 412_000 + 900 * turn,
        "cached_tokens": 0 if turn == 1 else 411_500 + 900 * (turn - 1), "completion_tokens": 160 + 431 * turn % 700,
        "reasoning_tokens": 80, "cached_share": 0.0 if turn == 1 else 0.997, "tokens_per_second": 61.4,
        "first_token_seconds": 21.5 if turn == 1 else 0.6, "seconds": 24.2 if turn == 1 else 7.9, "price": 0.0125, **changes,
    }  # fmt: skip
    return events.TurnFinished(**values)


def call_started(turn: int, call: int, name: str, arguments: dict[str, Any] | None) -> events.CallStarted:
    return events.CallStarted(turn, call, f"c{call}", name, arguments, "1" * 40)


def call_finished(
    turn: int, call: int, content: str, name: str = "code_exec", **changes: Any
) -> events.CallFinished:
    values = {"name": name, "content": content, "exit_code": 0, "seconds": 0.31, **changes}
    return an_event(events.CallFinished, turn=turn, call=call, id=f"c{call}", **values)


def suite(where: str, red: list[str], green: list[str], call: int | None = None) -> events.TestFinished:
    return events.TestFinished(where, call, green, red, [], [], True, "")  # type: ignore[arg-type]


def finished(status: str = "verified", **changes: Any) -> events.SessionFinished:
    values: dict[str, Any] = {
        "exit": 0 if status == "verified" else 1, "reason": "1 test red before, green after", "patch": "/nowhere/patch.diff",
        "paths": ["src/deck.py"], "notes": ["applied to the work tree: src/deck.py"], "turns": 6, "calls": 5,
        "prompt_tokens": 2_490_900, "cached_tokens": 2_070_000, "completion_tokens": 2_400, "reasoning_tokens": 480,
        "cached_share": 0.831, "tokens_per_second": 61.4, "price": 0.0731, "seconds": 96.3, **changes,
    }  # fmt: skip
    return an_event(events.SessionFinished, status=status, **values)


def a_fix() -> list[Event]:
    """Return the events of a successful session with a bit of everything."""
    again = call_finished(3, 3, "exit code: 0\nstdout:\nlane 1: 18.0 of 24.0 m")
    return [
        started(),
        events.EnvironmentReady(image="m3agent-env:3f1c", seconds=3.2),
        events.ContextPacked(212, 411_620, True, {"binary": 9, "too large": 2}, ["conf/dev.env"], "0" * 64, 0.21),
        events.EndpointProbed(
            "http://127.0.0.1:8000/v1", "MiniMax-M3", "vllm", "0.11.2", 1_048_576, "reasoning", True, True, True, 1.8, 0.4
        ),
        turn_started(1),
        events.Retry(attempt=1, wait=1.5, reason="the server cut the stream off after 1,204 characters"),
        message(1, reasoning="The manifest shows 6.0 m free and the van is 6.0 m long.\nSo `<` may have to be `<=`."),
        turn_finished(1),
        call_started(1, 1, "test_runner", {"test_file": "."}),
        call_finished(1, 1, f"23 passed, 1 failed, 0 errors, 0 skipped\nFAILED {RED}\n    E  assert 3 == 4",
                      "test_runner", is_error=True, exit_code=1, data={"passed": [GREEN], "failed": [RED]}),
        suite("session", [RED], [GREEN], 1),
        turn_started(2),
        message(2, "The boundary is compared with `<`. I look at how a lane is filled."),
        turn_finished(2),
        events.CacheLost(2, 411_900, 128, 411_772, 61.4, "it answers 502"),
        call_started(2, 2, "code_exec", {"code": "from ferry.deck import Lane\nprint(Lane(24).fill([6] * 4))"}),
        call_finished(2, 2, "exit code: 0\nstdout:\nlane 1: 18.0 of 24.0 m"),
        turn_started(3),
        message(3, reasoning="Let me look once more."),
        turn_finished(3),
        call_started(3, 3, "code_exec", {"code": "from ferry.deck import Lane\nprint(Lane(24).fill([6] * 4))"}),
        again,
        events.Stall(3, "same-call-same-result", 3, "told", "code_exec was called 3 times with the same result"),
        events.NetworkRequest("session", "CONNECT", "pypi.example", 443, "refused", "not listed", 0, 0, 0.1),
        events.NetworkRequest("session", "CONNECT", "pypi.example", 443, "refused", "not listed", 0, 0, 0.1),
        turn_started(4),
        message(4, reasoning="It is line 37."),
        turn_finished(4),
        call_started(4, 4, "file_edit", {"path": "src/deck.py", "old": "length < self", "new": "length <= self"}),
        call_finished(4, 4, "edited src/deck.py from line 37", "file_edit", exit_code=None),
        events.FileChanged(4, 4, [("M", "src/deck.py")], "2" * 40),
        turn_started(5),
        message(5, "A van that fits exactly is taken now.", calls=0),
        turn_finished(5, finish="stop"),
        events.Gate(5, "no test was run since the last edit", 0),
        turn_started(6),
        message(6, "All tests pass."),
        turn_finished(6),
        call_started(6, 5, "test_runner", {"test_file": "."}),
        call_finished(6, 5, "24 passed, 0 failed, 0 errors, 0 skipped", "test_runner"),
        suite("session", [], [RED, GREEN], 5),
        events.Gate(6, "", 1),
        suite("before", [RED], [GREEN]),
        suite("after", [], [RED, GREEN]),
        events.Verify("verified", "1 test red before, green after", [RED], [], [], [], [], 2.1),
        finished(),
    ]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a session's folder as a fix does, and returns the folder."""

    def write(*written: Event, patch: str = PATCH, state: Path | None = None) -> Path:
        session = Session.create(state or tmp_path, [])
        for event in written:
            session.write(event)
        if patch:
            session.write_file("patch.diff", patch.encode())
        session.close()
        return session.folder

    return write


def read(folder: Path) -> SessionReport:
    return report_of(read_log(folder / LOG), folder)


@pytest.mark.parametrize(
    ("status", "part", "marks"),
    [
        ("empty", "the session ends without a change", ["gate"]),
        ("answered", "answered", []),
        ("failed", "nothing missing", []),
    ],
)
def test_an_end_without_a_change_is_no_success(
    write: Write, status: str, part: str, marks: list[str]
) -> None:
    answers = [each for n in (1, 2) for each in (turn_started(n), message(n, calls=0), events.Gate(n, "", 0))]
    first, last = read(write(started(), *answers, finished(status))).turns
    assert part in last.incidents[0].text
    assert last.marks == marks
    assert ("nothing missing" in first.incidents[0].text, first.marks) == (True, []), (
        "its change was verified"
    )


def test_a_fix_is_put_together_from_its_events(write: Write) -> None:
    folder = write(*a_fix())
    report = read(folder)
    assert (report.id, report.status) == (folder.name, "verified")
    assert report.title == "The last van stays on the quay"
    facts = dict(report.facts)
    assert facts["Commit"] == "84f9a84a73ecc5ed7b1a53b6b1d9d5fef227ea1c (main), 2 uncommitted files included"
    assert facts["Context"] == (
        "212 files, 411,620 tokens, 11 left out, secrets redacted in 1, 39.3% of the model's window"
    )
    assert facts["Model"] == "MiniMax-M3 (vllm 0.11.2), window of 1,048,576 tokens"
    assert dict(report.settings) == {"thinking": "adaptive", "max_turns": "100"}
    assert [turn.anchor for turn in report.turns] == [f"turn-{n}" for n in range(1, 7)]
    assert [turn.marks for turn in report.turns] == [["retry"], ["cache"], ["stall"], [], ["gate"], []]
    one = report.turns[0].calls[0]
    assert (one.title, one.outcome) == ("test everything", "1 passed, 1 failed")
    assert one.bad
    assert one.runs[0].failed == (RED,)
    assert report.turns[3].calls[0].changes == [("M", "src/deck.py")]
    (request,) = report.turns[2].requests
    assert (request.what, request.times) == ("CONNECT pypi.example:443", 2)
    assert report.evidence == [("good", "red before, green after", [RED])]
    assert report.before is not None
    assert report.after is not None
    assert (report.before.passed, report.after.passed) == (1, 2)
    assert [file.path for file in report.patch] == ["src/deck.py"]
    assert report.notes == ["applied to the work tree: src/deck.py"]
    assert report.value("prompt_tokens") == 2_490_900


def test_flaky_tests_are_evidence_of_neither_kind(write: Write) -> None:
    verdict = events.Verify("verified", "1 test red before, green after", [RED], [], [], [], [GREEN], 2.1)
    report = read(write(started(), verdict, finished()))
    assert report.evidence == [
        ("good", "red before, green after", [RED]),
        ("plain", "with changing outcomes", [GREEN]),
    ]
    assert "1 test with changing outcomes" in render([report])


def test_lines_named_for_what_is_cut_are_those_of_the_log(write: Write) -> None:
    folder = write(*a_fix())
    lines = (folder / LOG).read_text().splitlines()
    for turn in read(folder).turns:
        assert json.loads(lines[turn.line - 1])["type"] == "message"
        for call in turn.calls:
            assert call.result_line is not None
            assert (
                json.loads(lines[call.line - 1])["call"]
                == json.loads(lines[call.result_line - 1])["call"]
                == call.number
            )


def test_without_an_end_a_session_is_not_finished_and_its_turns_are_added_up(write: Write) -> None:
    report = read(write(*a_fix()[:-7], patch=""))
    assert report.status == "not finished"
    assert report.reason.startswith("the log has no end: the session is still running, or it was killed")
    assert report.value("turns") == 6
    assert report.value("completion_tokens") == sum(t.value("completion_tokens") or 0 for t in report.turns)
    assert report.value("cached_share") is None, "shares are not to be added"
    assert report.patch == []


def test_call_without_its_end_is_shown_as_cut_off(write: Write) -> None:
    call = read(write(*a_fix()[:9])).turns[0].calls[0]
    assert (call.result_line, call.bad, call.outcome) == (None, True, "cut off: there is no result")


def test_a_session_that_went_on_keeps_both_parts(write: Write) -> None:
    """A resumed session may have a turn of the same number again, and only its last end counts."""
    report = read(
        write(*a_fix()[:8], finished("interrupted"), turn_started(1), message(1, "again"), finished("limit"))
    )
    assert [turn.anchor for turn in report.turns] == ["turn-1", "turn-1.2"]
    assert report.turns[1].text == "again"
    assert report.status == "limit"
    assert read(write(*a_fix()[:8], finished("interrupted"), turn_started(2))).status == "not finished"


def test_a_resumed_session_says_so_where_it_went_on(write: Write) -> None:
    resumed = events.SessionResumed(m3agent="0", messages=4, tree="", interrupted=["c1"])
    report = read(write(*a_fix()[:9], finished("error"), resumed))
    assert report.status == "not finished"
    report = read(write(*a_fix()[:9], finished("error"), resumed, turn_started(2), finished("limit")))
    (incident,) = report.turns[1].before
    assert re.fullmatch(
        r"the session continued in another process at .* UTC; interrupted calls that were not run again: 1",
        incident.text,
    )
    assert (report.status, report.turns[1].marks) == ("limit", [])


def test_attempts_summaries_and_forks_are_shown(write: Write) -> None:
    attempt = {"number": 2, "of": 3, "hint": "Look <twice>.", "temperature": 0.7, "seed": 1, "group": "x"}
    forked = events.SessionForked(source="20260101-000000-abcdef", turn=1)
    ranks = [
        {"number": 2, "verdict": "verified", "regressions": 0},
        {"number": 1, "verdict": "failed", "regressions": 3},
    ]
    report = read(
        write(
            started(attempt=attempt),
            turn_started(1),
            message(1),
            turn_finished(1),
            forked,
            turn_started(2),
            message(2),
            events.ContextSummarised(turn=2, messages=40, kept=4, own_words=True, text="notes"),
            events.AttemptChosen(chosen=2, ranking=ranks),
            finished("verified"),
        )
    )
    facts = dict(report.facts)
    assert facts["Attempt"] == "2 of 3, temperature 0.7, told: Look <twice>."
    assert facts["Attempts"] == "2 chosen; best first: 2 verified; 1 failed, 3 broken"
    assert "session 20260101-000000-abcdef" in report.turns[1].before[0].text
    [incident] = report.turns[1].incidents
    assert "the model's notes replaced all but the last 4 messages" in incident.text
    assert not incident.bad
    assert "Look &lt;twice&gt;." in render([report])
    assert not any("left out" in note for note in report.notes)


def test_unknown_types_are_left_out_with_a_note(write: Write) -> None:
    folder = write(*a_fix())
    with (folder / LOG).open("a") as log:
        log.write('{"v":1,"type":"dream","of":"sheep"}\n' * 3)
    report = read(folder)
    assert report.status == "verified"
    assert report.notes[-1] == "3 events of the type 'dream' are left out: this version does not know it"


def test_a_path_in_the_log_is_never_followed(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("+the key\n")
    folder = write(started(), finished(patch=str(secret)), patch="")
    report = read(folder)
    assert report.patch == []
    assert report.notes[-1] == f"the patch is not here; the session wrote it to {secret}"
    (folder / "patch.diff").symlink_to(secret)
    assert "the key" not in render([read(folder)])


def test_a_log_may_lack_every_field_but_its_type(tmp_path: Path, write: Write) -> None:
    """An old version's log lacks fields; this one lacks all that it can."""
    types = [event.type for event in a_fix()]
    log = tmp_path / "old.jsonl"
    log.write_text("".join(json.dumps({"v": 1, "type": kind}) + "\n" for kind in types))
    report = report_of(read_log(log), None)
    assert report.id == "old"
    assert len(report.turns) == 6
    assert "A session without a title" in render([report])


def test_fields_that_came_later_are_unknown_in_old_logs(tmp_path: Path, write: Write) -> None:
    folder = write(*a_fix())
    late = {
        "cached_share",
        "tokens_per_second",
        "first_token_seconds",
        "reasoning_tokens",
        "price",
        "prefix_caching",
        "flaky",
    }
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    old = [{name: value for name, value in line.items() if name not in late} for line in lines]
    (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in old))
    page = render([read(folder)])
    row = page[page.index("<tfoot>") : page.index("</tfoot>")]
    assert "2,490,900" in row
    assert row.count("–") == 5  # noqa: RUF001


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted({name for event in Event.__subclasses__() for name in event.__dataclass_fields__})
LINE = st.builds(
    lambda fields, kind: {"v": 1, "type": kind, **fields},
    st.dictionaries(st.sampled_from([*NAMES, "ts", "session"]), JSON, max_size=12),
    st.sampled_from([event.type for event in Event.__subclasses__()]),
)


@given(st.lists(LINE, max_size=12))
def test_any_values_in_any_order_make_a_page(lines: list[dict[str, Any]]) -> None:
    page = render([report_of(SessionLog(Path("x.jsonl"), tuple(lines), ()), None)])
    assert page.count("<article>") == page.count("</article>") == 1
    page.encode()


def test_a_verdict_without_isolation_says_so(write: Write) -> None:
    here = {"backend": "here", "image": None, "memory": "4g"}
    verdict = events.Verify("verified", "1 test red before, green after", [RED], [], [], [], [], 2.1)
    runs = suite("before", [RED], []), suite("after", [], [RED])
    report = read(write(started(sandbox=here), *runs, verdict, finished()))
    assert (report.status, report.shown_status) == ("verified", "verified (not isolated)")
    assert "verified (not isolated)" in render([report])
    assert render([report]).count("in fresh copies") == 2 and "fresh sandboxes" not in render([report])
