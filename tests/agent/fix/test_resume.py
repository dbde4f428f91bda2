"""Test resuming fixes that were killed, interrupted or stopped: nothing is lost, rewritten or run twice."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    Fixes,
    calls,
    kill,
    one_sentence,
    run_there,
)
from tests.command_line import Process
from tests.servers.misbehaving import Silence, history_faults

LONG = calls("code_exec", code="open('half.txt', 'w').write('x')\nimport time\ntime.sleep(600)", timeout=600)


def assert_refused(word: str) -> None:
    """Check that the newest session is not resumed, and that one sentence with this word says why."""
    done = run_there("sessions", "resume", "last")
    assert done.returncode == 2, done.stderr
    assert word in one_sentence(done)


def history_of(fixes: Fixes) -> list[bytes]:
    return [request.body for request in fixes.chats]


def checked(fixes: Fixes, status: str = "verified") -> list[dict[str, Any]]:
    """Return the log after checking its order, how it ended, and that its requests form one conversation."""
    log = fixes.events()
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert log[-1]["status"] == status
    assert history_faults(history_of(fixes)) == []
    ended = [event["call"] for event in log if event["type"] == "call.finished"]
    begun = [event["call"] for event in log if event["type"] == "call.started"]
    assert begun == sorted(set(begun))
    assert sorted(ended) == begun
    moments = [datetime.fromisoformat(event["ts"]) for event in log]
    steps = zip(moments, moments[1:], log[1:], strict=False)
    worked = sum((to - at).total_seconds() for at, to, event in steps if event["type"] != "session.resumed")
    assert log[-1]["seconds"] >= worked - 0.5, "the time of all processes"
    return log


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_killed_while_the_model_thinks(fixes: Fixes) -> None:
    fixes.killed(BUGGY, [TEST, FIX])
    done = fixes.resume([TEST, DONE])
    assert "+    return a + b" in done.stdout
    log = checked(fixes)
    sent = history_of(fixes)
    assert sent[3] == sent[2], "the request that got no answer is sent again, byte for byte"
    [resumed] = [event for event in log if event["type"] == "session.resumed"]
    assert resumed["interrupted"] == []
    assert [event["name"] for event in log if event["type"] == "call.started"] == [
        "test_runner",
        "file_edit",
        "test_runner",
    ]
    assert log[-1]["turns"] == 5
    assert log[-1]["prompt_tokens"] == 400, "what the first process used counts"


def test_killed_in_a_call(fixes: Fixes) -> None:
    process = fixes.waiting(BUGGY, [FIX, LONG])
    deadline = time.monotonic() + 60
    while len(fixes.of_type("call.started")) < 2:
        assert time.monotonic() < deadline, "the second call never began"
        time.sleep(0.01)
    kill(process)
    done = fixes.resume([TEST, DONE])
    assert "half.txt" not in done.stdout, "the work tree is put back to before the call"
    log = checked(fixes)
    [resumed] = [event for event in log if event["type"] == "session.resumed"]
    assert len(resumed["interrupted"]) == 1
    codes = [e for e in log if e["type"] == "call.started" and e["name"] == "code_exec"]
    assert len(codes) == 1, "it is never run again"
    last = json.loads(history_of(fixes)[2])["messages"][-1]
    assert last["role"] == "tool"
    assert last["content"].startswith("interrupted")


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_killed_between_a_result_and_its_telling(fixes: Fixes) -> None:
    """The state after a kill between writing the log's line and writing the conversation's line."""
    fixes.killed(UNTESTED, [TEST, FIX])
    [path] = (fixes.home / "state" / "sessions").glob("*/messages.jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    before = history_of(fixes)[2]
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][:20])
    log = path.with_name("events.jsonl")
    log.write_bytes(log.read_bytes() + b'{"v": 1, "seq"')
    fixes.resume([NOT_TESTED], code=1)
    checked(fixes, "unverified")
    assert history_of(fixes)[3] == before
    assert path.read_bytes().startswith(b"".join(whole))


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_interrupted_by_the_user(fixes: Fixes) -> None:
    process = fixes.waiting(UNTESTED, [FIX, Silence()])
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    done = fixes.resume([NOT_TESTED], "--json", code=1)
    assert "unverified" in done.stderr, "as with fix --json, people are told as well"
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed == checked(fixes, "unverified")[-len(printed) :]
    assert printed[0]["type"] == "session.resumed"


@pytest.mark.slow
def test_a_limit_is_raised(fixes: Fixes) -> None:
    fixes(BUGGY, [FIX, DONE], "--max-turns", "1")  # the patch verifies, although the loop was stopped
    assert_refused("verified")
    fixes({**BUGGY, "more.py": "x = 1\n"}, [TEST, DONE], "--max-turns", "1", code=6)
    asked, moved = len(fixes.chats), fixes.model.url.replace("127.0.0.1", "localhost")
    fixes.resume([FIX, TEST, DONE], "--max-turns", "9", "--endpoint", moved)
    assert {chat.headers["host"].partition(":")[0] for chat in fixes.chats[asked:]} == {"localhost"}


@pytest.mark.slow
def test_a_verdict_of_before_flaky_tests_were_looked_for(fixes: Fixes) -> None:
    """An older version's log: the verification of a session that stopped at a limit does not mention flaky tests."""
    fixes(BUGGY, [calls("file_write", path="more.py", content="X = 1\n")], "--max-turns", "1", code=6)
    [log] = (fixes.home / "state" / "sessions").glob("*/events.jsonl")
    raw = log.read_text()
    assert raw.count('"flaky":[],') == 1
    log.write_text(raw.replace('"flaky":[],', ""))
    fixes.resume([FIX, TEST, DONE], "--max-turns", "9")


@pytest.mark.slow
def test_sessions_that_cannot_be_resumed(fixes: Fixes) -> None:
    assert_refused("session")
    process = fixes.waiting(UNTESTED, [Silence()])
    assert_refused("another process")
    kill(process)
    [log] = (fixes.home / "state" / "sessions").glob("*/events.jsonl")
    raw = log.read_text()
    for damaged, word in (
        (raw.replace('{"v":1', '{"v":9', 1), "version 9"),
        ("nonsense\n" + raw, "line 1"),
        (raw.splitlines(keepends=True)[1], "again"),
    ):
        log.write_text(damaged)
        assert_refused(word)
    log.write_text(raw)
    messages = log.with_name("messages.jsonl")
    kept = messages.read_bytes()
    alone = kept.splitlines(keepends=True)[0]  # the system message, without the message with the repository
    for content, word in ((b"", "first request"), (alone, "first request"), (b"{]\n", "damaged")):
        messages.write_bytes(content)
        assert_refused(word)
        assert log.read_text() == raw
    messages.write_bytes(kept)
    fixes.resume([FIX, NOT_TESTED], code=1)
    assert fixes.events()[-1]["status"] == "unverified"


@pytest.mark.slow
def test_killed_at_any_moment(fixes: Fixes) -> None:
    """A fix is killed again and again, a little later each time, until it finishes."""
    answers = [TEST, FIX, TEST, DONE]
    repo = fixes.repo(BUGGY)
    process = fixes.waiting(repo, [Silence()])
    kill(process)
    [told] = (fixes.home / "state" / "sessions").glob("*/messages.jsonl")
    kills, said_last = 0, b""
    for attempt in range(30):
        messages = [json.loads(line) for line in told.read_bytes().rpartition(b"\n")[0].splitlines()]
        said = sum(message["role"] == "assistant" for message in messages)
        # The model repeats an edit that was interrupted, and one of which the result is not known yet.
        edited = any(
            "file_edit" in json.dumps(call) and "did not finish" not in json.dumps(result)
            for call, result in pairwise(messages)
        )
        fixes.model.answers = [*([FIX] if said > 1 and not edited else []), *answers[said:], DONE]
        process = Process("sessions", "resume", "last", "--repo", str(repo))
        try:
            _, said_last = process.communicate(timeout=0.2 * 1.25**attempt)
            break
        except subprocess.TimeoutExpired:
            kill(process)
            kills += 1
    # A kill may come between the last line and the end of the process.
    assert process.returncode == 0 or b"the session is over (verified)" in said_last, said_last
    assert kills >= 3
    log = checked(fixes)
    assert len([event for event in log if event["type"] == "session.resumed"]) >= 3
