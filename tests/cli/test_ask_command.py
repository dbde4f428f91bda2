"""`m3agent ask`: a question gets an answer, and no file changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.scripted import BUGGY, FIX, UNTESTED, MakeRepo, one_sentence, says
from tests.command_line import run
from tests.conftest import git
from tests.servers.misbehaving import MisbehavingServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_state")]


def test_the_answer_is_printed_and_nothing_changes(server: MisbehavingServer, make_repo: MakeRepo) -> None:
    server.answers = [FIX, says("It subtracts: calc.py:2.")]
    repo = make_repo(UNTESTED)
    done = run(
        "ask", "-", "--repo", str(repo), "--endpoint", server.url, "--yes", data=b"What does add() do?"
    )
    assert (done.returncode, done.stdout) == (0, "It subtracts: calc.py:2.\n"), done.stderr
    assert f"server {server.url} (named)" in done.stderr
    assert "issue" not in done.stderr
    assert "patch" not in done.stderr
    assert (repo / "calc.py").read_text() == BUGGY["calc.py"]
    assert git(repo, "status", "--porcelain") == ""
    sent = json.dumps(server.chats[-1].json["messages"])
    assert "<question>" in sent
    assert "Fix this issue" not in sent


def test_a_question_goes_on_as_a_question_and_is_not_the_last_fix(
    server: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(UNTESTED)
    asked = "ask", "What does add() do?", "--repo", str(repo), "--endpoint", server.url, "--yes"
    server.answers = [says("It subtracts.")]
    assert run(*asked).returncode == 0
    [session] = (own_state / "state" / "sessions").glob("*-*")
    fork = "sessions", "fork", "--repo", str(repo), "--tell", "And in which line?"
    done = run(*fork, "last")
    assert (done.returncode, "there is no fix about" in done.stderr) == (2, True)
    server.answers = [says("In the second one.")]
    done = run(*fork, session.name)
    assert (done.returncode, done.stdout) == (0, "In the second one.\n"), done.stderr


@pytest.mark.parametrize("engine", ["", "embedded"])
def test_a_question_needs_a_model_server(
    engine: str, make_repo: MakeRepo, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine:
        monkeypatch.setenv("M3AGENT_ENGINE", engine)
    done = run("ask", "What does add() do?", "--repo", str(make_repo(UNTESTED)))
    assert (done.returncode, done.stdout) == (2, "")
    assert one_sentence(done).startswith("m3agent: No model server runs here, ")
    assert not [*own_state.rglob("events.jsonl")]


def test_an_empty_question(make_repo: MakeRepo) -> None:
    done = run("ask", " ", "--repo", str(make_repo(UNTESTED)))
    assert (done.returncode, "the question is empty" in done.stderr) == (2, True)
