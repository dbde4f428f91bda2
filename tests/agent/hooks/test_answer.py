"""What an agent that says "done" is answered, given the verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.hooks import answer as module
from m3agent.agent.hooks.agents import Moment
from m3agent.agent.hooks.answer import Answer, Hook
from m3agent.agent.verify.verify import Verification
from m3agent.util.errors import EnvironmentFault
from tests.agent.scripted import BUGGY
from tests.command_line import run

MakeRepo = Callable[..., Path]
BROKEN = BUGGY["calc.py"].replace("a * 2", "a * 3")
DOUBLE = "test_calc.py::test_double"


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with a red test and a green one."""
    return make_repo(BUGGY)


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    """Return the hook of an agent, which may answer twice in a row."""
    (tmp_path / "state").mkdir()
    return Hook("claude-code", tmp_path / "state", rounds=2, minutes=5)


def verdict(rule: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every verdict be that of a rule. Return a list that gets an entry for each verdict."""
    made: list[str] = []

    async def verify(*_: object) -> tuple[Verification, None]:
        made.append(rule)
        values: dict[str, Any] = {field.name: () for field in dataclasses.fields(Verification)}
        broken = (DOUBLE,) if rule == "lost" else ()
        values |= {"verdict": "failed", "reason": "because", "rule": rule, "broken": broken, "errors": {}}
        return Verification(**values), None

    monkeypatch.setattr(module, "verify_change", verify)
    return made


def event(hook: Hook, moment: Moment, repo: Path, *, again: bool = False, session: str = "s") -> Answer:
    asked = {"cwd": str(repo), "session_id": session, "stop_hook_active": again}
    return asyncio.run(hook.answer(moment, asked))


def test_broken_tests_are_told_at_most_twice(repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict("lost", monkeypatch)
    assert event(hook, "start", repo) == {}
    decisions = []
    for number in range(3):
        (repo / "calc.py").write_text(f"{BROKEN}# {number}\n")
        said = event(hook, "stop", repo, again=number > 0)
        decisions.append(said.get("decision"))
        assert DOUBLE in said.get("reason", DOUBLE)
    assert decisions == ["block", "block", None]
    (repo / "calc.py").write_text(f"{BROKEN}# again\n")
    assert event(hook, "stop", repo)["decision"] == "block", "a new prompt begins to count anew"


def test_without_a_change_no_verdict_is_made(repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    made = verdict("lost", monkeypatch)
    (repo / "calc.py").write_text(BROKEN)
    event(hook, "start", repo)
    assert event(hook, "stop", repo) == {}
    (repo / "calc.py").write_text(f"{BROKEN}# 1\n")
    event(hook, "start", repo)
    assert event(hook, "stop", repo)["decision"] == "block"
    for again in (True, False):
        repeated = event(hook, "stop", repo, again=again)
        assert [*repeated] == ["systemMessage"], "the person hears it, and the agent is not stopped again"
        assert "because" in repeated["systemMessage"]
    (repo / "calc.py").write_text(BROKEN)
    assert event(hook, "stop", repo) == {}, "all is as it was"
    assert len(made) == 1


def test_a_change_that_is_not_wrong_is_told_once(
    repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    event(hook, "start", repo)
    (repo / "calc.py").write_text(BROKEN)
    verdict("lost", monkeypatch)
    event(hook, "stop", repo)
    (repo / "calc.py").write_text(f"{BROKEN}# 1\n")
    verdict("nothing_fixed", monkeypatch)
    assert "systemMessage" in event(hook, "stop", repo, again=True)
    assert event(hook, "stop", repo, again=True) == {}


@pytest.mark.parametrize("rule", ["nothing_fixed", "partly_fixed", "not_importable", "no_red_test"])
def test_tests_that_were_red_before_stop_nobody(
    rule: str, repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict(rule, monkeypatch)
    event(hook, "start", repo)
    (repo / "calc.py").write_text(BROKEN)
    assert "decision" not in event(hook, "stop", repo)


def test_an_unknown_session_is_only_noted(repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    made = verdict("lost", monkeypatch)
    (repo / "calc.py").write_text(BROKEN)
    assert event(hook, "stop", repo) == {}
    assert event(hook, "stop", repo, session="other") == {}
    assert made == []


def test_an_agent_that_went_into_a_folder_gets_its_verdict(
    repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict("lost", monkeypatch)
    event(hook, "start", repo)
    (repo / "calc.py").write_text(BROKEN)
    (repo / "docs").mkdir()
    assert event(hook, "stop", repo / "docs")["decision"] == "block"


@pytest.mark.parametrize("name", ["a" * 5000, "\0", "\ud800"])
def test_a_folder_that_cannot_exist_stops_nobody(name: str, hook: Hook) -> None:
    assert event(hook, "stop", Path(f"/{name}")) == {}


def test_a_failure_stops_nobody(repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise EnvironmentFault("no engine")

    monkeypatch.setattr(module, "verify_change", fail)
    event(hook, "start", repo)
    (repo / "calc.py").write_text(BROKEN)
    assert "no engine" in event(hook, "stop", repo)["systemMessage"]


def test_the_time_is_limited(repo: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: object) -> None:
        await asyncio.Event().wait()

    event(hook, "start", repo)
    monkeypatch.setattr(module, "verify_change", endless)
    (repo / "calc.py").write_text(BROKEN)
    assert (
        "longer than 0.02 minutes"
        in event(dataclasses.replace(hook, minutes=0.02), "stop", repo)["systemMessage"]
    )


def test_outside_a_repository(tmp_path: Path, hook: Hook) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert event(hook, "start", folder) == event(hook, "stop", folder) == {}


@pytest.mark.integration
def test_the_command_runs_the_tests(repo: Path) -> None:
    asked = json.dumps({"cwd": str(repo), "session_id": "s", "stop_hook_active": False}).encode()
    start = run("hooks", "run", "codex", "start", data=asked)
    assert (start.returncode, start.stdout) == (0, "{}\n")
    (repo / "calc.py").write_text(BROKEN)
    stop = run("hooks", "run", "codex", "stop", data=asked)
    assert stop.returncode == 0, stop.stderr
    answer = json.loads(stop.stdout)
    assert answer["decision"] == "block"
    assert DOUBLE in answer["reason"]
    assert "test_add" not in answer["reason"], "it was red before"


def test_sessions_that_began_long_before_the_last_are_forgotten(repo: Path, hook: Hook) -> None:
    sessions = hook.state / module.FOLDER
    for name, days in (("old", 15), ("recent", 13)):
        event(hook, "start", repo, session=name)
        [made] = sessions.iterdir() if name == "old" else set(sessions.iterdir()) - {sessions / "old"}
        began = made.rename(sessions / name).stat().st_mtime
        os.utime(sessions / name, (began, began - 86400 * days))
    event(hook, "start", repo)
    assert {each.name for each in sessions.iterdir()} >= {"recent"}
    assert not (sessions / "old").exists()


def test_a_session_from_a_clock_that_was_ahead_removes_no_other(repo: Path, hook: Hook) -> None:
    sessions = hook.state / module.FOLDER
    event(hook, "start", repo, session="ahead")
    [ahead] = sessions.iterdir()
    began = ahead.stat().st_mtime
    os.utime(ahead, (began, began + 86400 * 700))
    event(hook, "start", repo)
    assert len(list(sessions.iterdir())) == 2
