"""Test resuming fixes that were killed, interrupted or stopped: nothing is lost, rewritten or run twice."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    calls,
    events,
    fix,
    kill,
    of_type,
    one_sentence,
    run_there,
    start,
)
from tests.command_line import Process
from tests.servers.misbehaving import MisbehavingServer, Silence, history_faults

LONG = calls("code_exec", code="open('half.txt', 'w').write('x')\nimport time\ntime.sleep(600)", timeout=600)


def resume(*more: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_there("sessions", "resume", "last", *more, env=env)


def history_of(model: MisbehavingServer) -> list[bytes]:
    return [request.body for request in model.chats]


def checked(model: MisbehavingServer, home: Path, status: str = "verified") -> list[dict[str, Any]]:
    """Return the log after checking its order, how it ended, and that its requests form one conversation."""
    log = events(home)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert log[-1]["status"] == status
    assert history_faults(history_of(model)) == []
    ended = [event["call"] for event in log if event["type"] == "call.finished"]
    begun = [event["call"] for event in log if event["type"] == "call.started"]
    assert begun == sorted(set(begun))
    assert sorted(ended) == begun
    moments = [datetime.fromisoformat(event["ts"]) for event in log]
    steps = zip(moments, moments[1:], log[1:], strict=False)
    worked = sum((to - at).total_seconds() for at, to, event in steps if event["type"] != "session.resumed")
    assert log[-1]["seconds"] >= worked - 0.5, "the time of all processes"
    return log


def killed_at(model: MisbehavingServer, repo: Path, backend: str, answers: list[Any]) -> None:
    """Run a fix with these answers, and kill it while it waits for the next answer."""
    model.answers = [*answers, Silence()]
    process = start(repo, model.url, backend)
    model.wait_for_chats(len(answers) + 1)
    kill(process)


def resume_to_the_end(model: MisbehavingServer) -> subprocess.CompletedProcess[str]:
    """Resume the session in another process until it finishes."""
    model.answers = [TEST, DONE]
    done = resume()
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_killed_while_the_model_thinks(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    killed_at(model, make_repo(BUGGY), one_backend, [TEST, FIX])
    done = resume_to_the_end(model)
    assert "+    return a + b" in done.stdout
    log = checked(model, own_state)
    sent = history_of(model)
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


def test_killed_in_a_call(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    model.answers = [FIX, LONG, Silence()]
    process = start(make_repo(BUGGY), model.url, one_backend)
    model.wait_for_chats(2)
    deadline = time.monotonic() + 60
    while len(of_type(own_state, "call.started")) < 2:
        assert time.monotonic() < deadline, "the second call never began"
        time.sleep(0.01)
    kill(process)
    done = resume_to_the_end(model)
    assert "half.txt" not in done.stdout, "the work tree is put back to before the call"
    log = checked(model, own_state)
    [resumed] = [event for event in log if event["type"] == "session.resumed"]
    assert len(resumed["interrupted"]) == 1
    codes = [e for e in log if e["type"] == "call.started" and e["name"] == "code_exec"]
    assert len(codes) == 1, "it is never run again"
    last = json.loads(history_of(model)[2])["messages"][-1]
    assert last["role"] == "tool"
    assert last["content"].startswith("interrupted")


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_killed_between_a_result_and_its_telling(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    """The state after a kill between writing the log's line and writing the conversation's line."""
    killed_at(model, make_repo(UNTESTED), one_backend, [TEST, FIX])
    [path] = (own_state / "state" / "sessions").glob("*/messages.jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    before = history_of(model)[2]
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][:20])
    log = path.with_name("events.jsonl")
    log.write_bytes(log.read_bytes() + b'{"v": 1, "seq"')
    model.answers = [NOT_TESTED]
    assert resume().returncode == 1
    checked(model, own_state, "unverified")
    assert history_of(model)[3] == before
    assert path.read_bytes().startswith(b"".join(whole))


@pytest.mark.slow  # quick: test_killed_in_a_call
def test_interrupted_by_the_user(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    model.answers = [FIX, Silence()]
    process = start(make_repo(UNTESTED), model.url, one_backend)
    model.wait_for_chats(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    model.answers = [NOT_TESTED]
    done = resume("--json")
    assert "unverified" in done.stderr, "as with fix --json, people are told as well"
    assert done.returncode == 1, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed == checked(model, own_state, "unverified")[-len(printed) :]
    assert printed[0]["type"] == "session.resumed"


@pytest.mark.slow
def test_a_limit_is_raised(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    model.answers = [FIX, DONE]
    stopped = fix(make_repo(BUGGY), model.url, "--max-turns", "1")
    assert stopped.returncode == 0, "the patch verifies, although the loop was stopped"
    again = resume()
    assert again.returncode == 2
    assert "verified" in one_sentence(again)
    model.answers = [TEST, DONE]
    second = make_repo({**BUGGY, "more.py": "x = 1\n"}, "second")
    stopped = fix(second, model.url, "--max-turns", "1")
    assert stopped.returncode == 6, stopped.stderr
    model.answers = [FIX, TEST, DONE]
    asked, moved = len(model.chats), model.url.replace("127.0.0.1", "localhost")
    done = resume("--max-turns", "9", "--endpoint", moved)
    assert done.returncode == 0, done.stderr
    assert {chat.headers["host"].partition(":")[0] for chat in model.chats[asked:]} == {"localhost"}


@pytest.mark.slow
def test_a_verdict_of_before_flaky_tests_were_looked_for(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    """An older version's log: the verification of a session that stopped at a limit does not mention flaky tests."""
    model.answers = [calls("file_write", path="more.py", content="X = 1\n")]
    assert fix(make_repo(BUGGY), model.url, "--max-turns", "1").returncode == 6
    [log] = (own_state / "state" / "sessions").glob("*/events.jsonl")
    raw = log.read_text()
    assert raw.count('"flaky":[],') == 1
    log.write_text(raw.replace('"flaky":[],', ""))
    model.answers = [FIX, TEST, DONE]
    done = resume("--max-turns", "9")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_sessions_that_cannot_be_resumed(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    assert resume().returncode == 2
    model.answers = [Silence()]
    process = start(make_repo(UNTESTED), model.url, one_backend)
    model.wait_for_chats(1)
    busy = resume()
    assert busy.returncode == 2
    assert "another process" in one_sentence(busy)
    kill(process)
    [log] = (own_state / "state" / "sessions").glob("*/events.jsonl")
    raw = log.read_text()
    for damaged, word in (
        (raw.replace('{"v":1', '{"v":9', 1), "version 9"),
        ("nonsense\n" + raw, "line 1"),
        (raw.splitlines(keepends=True)[1], "again"),
    ):
        log.write_text(damaged)
        refused = resume()
        assert refused.returncode == 2, refused.stderr
        assert word in one_sentence(refused)
    log.write_text(raw)
    messages = log.with_name("messages.jsonl")
    kept = messages.read_bytes()
    alone = kept.splitlines(keepends=True)[0]  # the system message, without the message with the repository
    for content, word in ((b"", "first request"), (alone, "first request"), (b"{]\n", "damaged")):
        messages.write_bytes(content)
        refused = resume()
        assert refused.returncode == 2, refused.stderr
        assert word in one_sentence(refused)
    messages.write_bytes(kept)
    model.answers = [FIX, NOT_TESTED]
    assert resume().returncode == 1
    assert events(own_state)[-1]["status"] == "unverified"


@pytest.mark.slow
def test_killed_at_any_moment(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    """A fix is killed again and again, a little later each time, until it finishes."""
    answers = [TEST, FIX, TEST, DONE]
    model.answers = [Silence()]
    repo = make_repo(BUGGY)
    process = start(repo, model.url, one_backend)
    model.wait_for_chats(1)
    kill(process)
    [told] = (own_state / "state" / "sessions").glob("*/messages.jsonl")
    kills, said_last = 0, b""
    for attempt in range(30):
        messages = [json.loads(line) for line in told.read_bytes().rpartition(b"\n")[0].splitlines()]
        said = sum(message["role"] == "assistant" for message in messages)
        # The model repeats an edit that was interrupted, and one of which the result is not known yet.
        edited = any(
            "file_edit" in json.dumps(call) and "did not finish" not in json.dumps(result)
            for call, result in pairwise(messages)
        )
        model.answers = [*([FIX] if said > 1 and not edited else []), *answers[said:], DONE]
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
    log = checked(model, own_state)
    assert len([event for event in log if event["type"] == "session.resumed"]) >= 3
