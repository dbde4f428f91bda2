"""`m3agent ask`: a question gets an answer, and no file changes."""

from __future__ import annotations

import json

import pytest

from tests.agent.scripted import BUGGY, FIX, UNTESTED, MakeRepo, says
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
    assert "issue" not in done.stderr
    assert "patch" not in done.stderr
    assert (repo / "calc.py").read_text() == BUGGY["calc.py"]
    assert git(repo, "status", "--porcelain") == ""
    sent = json.dumps(server.chats[-1].json["messages"])
    assert "<question>" in sent
    assert "Fix this issue" not in sent


def test_an_empty_question(make_repo: MakeRepo) -> None:
    done = run("ask", " ", "--repo", str(make_repo(UNTESTED)))
    assert (done.returncode, "the question is empty" in done.stderr) == (2, True)
