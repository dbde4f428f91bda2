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
    Fixes,
    calls,
    kill,
    one_sentence,
    run_there,
)
from tests.conftest import git
from tests.servers.misbehaving import Silence, history_faults, messages_bytes

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
def test_a_fork_goes_another_way_from_the_end_of_a_turn(fixes: Fixes) -> None:
    repo = fixes.make_repo(BUGGY)
    fixes(repo, [TEST, WRONG, TEST, DONE], "--verify-rounds", "0", code=1)
    [first] = sessions(fixes.home)
    before = snapshot(first)
    fixes.model.answers = [ALSO, TEST, DONE]
    done = fork(first, "--turn", "1", "--tell", "Addition <mm:think> please.", "--branch", "forked")
    assert done.returncode == 0, done.stderr
    assert "+    return b + a" in done.stdout
    assert "return b + a" in git(repo, "show", "forked:calc.py")
    assert snapshot(first) == before, "the first is left as it is"
    second = next(folder for folder in sessions(fixes.home) if folder != first)
    request = fixes.chats[4]
    shared = messages_bytes(fixes.chats[1].body)
    assert messages_bytes(request.body).startswith(shared), "the same bytes up to the end of the turn"
    assert request.json["messages"][-1]["role"] == "user"
    assert "please." in request.json["messages"][-1]["content"]
    assert "<mm:think>" not in request.json["messages"][-1]["content"]
    assert history_faults([chat.body for chat in fixes.chats[4:]]) == []
    log = log_of(second)
    [forked] = [line for line in log if line["type"] == "session.forked"]
    assert (forked["source"], forked["turn"]) == (first.name, 1)
    assert log[-1]["status"] == "verified"
    assert log[-1]["completion_tokens"] == 30, "what the turns before used is not this session's"
    for kind in ("atif", "sft"):
        assert run_there("sessions", "export", second.name, "--format", kind).returncode == 0
    assert run_there("report", second.name, "-o", str(fixes.home / "page.html")).returncode == 0


@pytest.mark.slow  # quick: the fork from the end of a turn
def test_fork_of_the_last_turn_continues_after_it(fixes: Fixes) -> None:
    fixes(BUGGY, [WRONG, TEST, DONE], "--verify-rounds", "0", code=1)
    [first] = sessions(fixes.home)
    right = calls("file_edit", path="calc.py", old="return a * b", new="return a + b")
    fixes.model.answers = [right, TEST, DONE]
    done = fork(first, "--tell", "test_add is still red.")
    assert done.returncode == 0, done.stderr
    assert "+    return a + b" in done.stdout
    roles = [message["role"] for message in fixes.chats[3].json["messages"]]
    assert roles[-2:] == ["assistant", "user"]


@pytest.mark.slow
def test_a_fork_of_a_session_that_was_resumed_has_its_tree(fixes: Fixes) -> None:
    process = fixes.waiting(BUGGY, [FIX, Silence()])
    [first] = sessions(fixes.home)
    fixes.model.answers = [DONE]
    running = fork(first, "--max-turns", "1")
    assert running.returncode == 0, "of one that is at work, and the fix was made already"
    assert "+    return a + b" in running.stdout
    kill(process)
    more = calls("file_write", path="more.py", content="x = 1\n")
    fixes.model.answers = [more, TEST, DONE]
    assert run_there("sessions", "resume", first.name).returncode == 0
    fixes.model.answers = [DONE]
    numbers = [line["turn"] for line in log_of(first) if line["type"] == "message"]
    done = fork(first, "--turn", str(numbers[1]))
    assert done.returncode == 0, done.stderr
    assert "more.py" in done.stdout


@pytest.mark.slow
def test_a_turn_that_is_not_there(fixes: Fixes) -> None:
    fixes(UNTESTED, [FIX, NOT_TESTED], code=1)
    [first] = sessions(fixes.home)
    for turn in ("0", "9", "-1"):
        refused = fork(first, "--turn", turn)
        assert refused.returncode == 2
        assert "1 to 2" in one_sentence(refused)
    assert sessions(fixes.home) == [first], "nothing half-made is left"
    assert list((fixes.home / "state" / "scratch").glob("*")) == []


@pytest.mark.slow
def test_sessions_that_cannot_be_forked(fixes: Fixes) -> None:
    fixes(UNTESTED, [FIX, NOT_TESTED], code=1)
    [first] = sessions(fixes.home)
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
    assert sessions(fixes.home) == [first]
