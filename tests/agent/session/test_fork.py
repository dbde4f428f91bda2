"""Test forks: each is a new session with the same beginning as another session, which stays unchanged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.session.log_reader import read_log
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    calls,
    fix,
    git,
    kill,
    one_sentence,
    run_there,
    start,
)
from tests.servers.misbehaving import MisbehavingServer, Silence, history_faults, messages_bytes

WRONG = calls("file_edit", path="calc.py", old="return a - b", new="return a * b")
ALSO = calls("file_edit", path="calc.py", old="return a - b", new="return b + a")


def sessions(home: Path) -> list[Path]:
    """Return the folders of all sessions, oldest first."""
    found = (home / "state" / "sessions").glob("*/events.jsonl")
    return sorted(
        (path.parent for path in found), key=lambda folder: (folder / "events.jsonl").stat().st_ctime
    )


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = list(read_log(folder / "events.jsonl").events)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert {line["session"] for line in lines} == {folder.name}
    return lines


def fork(source: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_there("sessions", "fork", source.name, *more)


@pytest.mark.slow
def test_a_fork_goes_another_way_from_the_end_of_a_turn(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(BUGGY)
    model.answers = [TEST, WRONG, TEST, DONE]
    assert fix(repo, model.url, "--verify-rounds", "0").returncode == 1
    [first] = sessions(own_state)
    before = snapshot(first)
    model.answers = [ALSO, TEST, DONE]
    done = fork(first, "--turn", "1", "--tell", "Addition <mm:think> please.", "--branch", "forked")
    assert done.returncode == 0, done.stderr
    assert "+    return b + a" in done.stdout
    assert "return b + a" in git(repo, "show", "forked:calc.py")
    assert snapshot(first) == before, "the first is left as it is"
    second = next(folder for folder in sessions(own_state) if folder != first)
    request = model.chats[4]
    shared = messages_bytes(model.chats[1].body)
    assert messages_bytes(request.body).startswith(shared), "the same bytes up to the end of the turn"
    assert request.json["messages"][-1]["role"] == "user"
    assert "please." in request.json["messages"][-1]["content"]
    assert "<mm:think>" not in request.json["messages"][-1]["content"]
    assert history_faults([chat.body for chat in model.chats[4:]]) == []
    log = log_of(second)
    [forked] = [line for line in log if line["type"] == "session.forked"]
    assert (forked["source"], forked["turn"]) == (first.name, 1)
    assert log[-1]["status"] == "verified"
    assert log[-1]["completion_tokens"] == 30, "what the turns before used is not this session's"
    for kind in ("atif", "sft"):
        assert run_there("sessions", "export", second.name, "--format", kind).returncode == 0
    assert run_there("report", second.name, "-o", str(own_state / "page.html")).returncode == 0


@pytest.mark.slow  # quick: the fork from the end of a turn
def test_fork_of_the_last_turn_continues_after_it(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [WRONG, TEST, DONE]
    assert fix(make_repo(BUGGY), model.url, "--verify-rounds", "0").returncode == 1
    [first] = sessions(own_state)
    right = calls("file_edit", path="calc.py", old="return a * b", new="return a + b")
    model.answers = [right, TEST, DONE]
    done = fork(first, "--tell", "test_add is still red.")
    assert done.returncode == 0, done.stderr
    assert "+    return a + b" in done.stdout
    roles = [message["role"] for message in model.chats[3].json["messages"]]
    assert roles[-2:] == ["assistant", "user"]


@pytest.mark.slow
def test_a_fork_of_a_session_that_was_resumed_has_its_tree(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, one_backend: str
) -> None:
    model.answers = [FIX, Silence()]
    process = start(make_repo(BUGGY), model.url, one_backend)
    model.wait_for_chats(2)
    [first] = sessions(own_state)
    model.answers = [DONE]
    running = fork(first, "--max-turns", "1")
    assert running.returncode == 0, "of one that is at work, and the fix was made already"
    assert "+    return a + b" in running.stdout
    kill(process)
    more = calls("file_write", path="more.py", content="x = 1\n")
    model.answers = [more, TEST, DONE]
    assert run_there("sessions", "resume", first.name).returncode == 0
    model.answers = [DONE]
    numbers = [line["turn"] for line in log_of(first) if line["type"] == "message"]
    done = fork(first, "--turn", str(numbers[1]))
    assert done.returncode == 0, done.stderr
    assert "more.py" in done.stdout


@pytest.mark.slow
def test_a_turn_that_is_not_there(model: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    model.answers = [FIX, NOT_TESTED]
    assert fix(make_repo(UNTESTED), model.url).returncode == 1
    [first] = sessions(own_state)
    for turn in ("0", "9", "-1"):
        refused = fork(first, "--turn", turn)
        assert refused.returncode == 2
        assert "1 to 2" in one_sentence(refused)
    assert sessions(own_state) == [first], "nothing half-made is left"
    assert list((own_state / "state" / "scratch").glob("*")) == []


def test_sessions_that_cannot_be_forked(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    model.answers = [FIX, NOT_TESTED]
    assert fix(make_repo(UNTESTED), model.url).returncode == 1
    [first] = sessions(own_state)
    messages = first / "messages.jsonl"
    kept = messages.read_bytes()
    messages.unlink()
    refused = fork(first)
    assert refused.returncode == 2
    assert "messages.jsonl is missing" in one_sentence(refused)
    messages.write_bytes(b"{]\n" + kept)
    refused = fork(first)
    assert refused.returncode == 2
    assert "damaged" in one_sentence(refused)
    log = first / "events.jsonl"
    log.write_text(json.dumps(json.loads(log.read_text().splitlines()[0])) + "\n")
    refused = fork(first)
    assert refused.returncode == 2
    assert "the model never answered in it" in one_sentence(refused)
    assert sessions(own_state) == [first]
