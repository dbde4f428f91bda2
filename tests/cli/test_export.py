"""Test `m3agent sessions export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.scripted import BUGGY, DONE, FIX, TEST, Fixes, MakeRepo, fix, one_sentence, run_there
from tests.servers.misbehaving import MisbehavingServer


@pytest.fixture
def session(server: MisbehavingServer, make_repo: MakeRepo) -> MisbehavingServer:
    """Run a fix that ends verified."""
    server.answers = [TEST, FIX, TEST, DONE]
    assert fix(make_repo(BUGGY), server.url).returncode == 0
    return server


@pytest.mark.slow  # quick: test_trajectory.py
def test_both_formats(session: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path) -> None:
    atif = json.loads(run_there("sessions", "export", "last").stdout)
    assert atif["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in atif["steps"]] == list(range(1, len(atif["steps"]) + 1))
    session.answers = [DONE]
    assert fix(make_repo(BUGGY, "second"), session.url).returncode == 1
    target = tmp_path / "sft.jsonl"
    done = run_there("sessions", "export", "--all", "--format", "sft", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert "left out 1" in done.stderr
    [row] = [json.loads(line) for line in target.read_text().splitlines()]
    assert [message["role"] for message in row["messages"]][:2] == ["system", "user"]
    assert "def add(a, b):" in row["messages"][1]["content"], "the text as it was sent, repository included"


def test_wrong_use(fixes: Fixes, tmp_path: Path) -> None:
    fixes(BUGGY, [DONE], code=1)
    for arguments, word in (
        (["--format", "atif"], "give one"),
        (["nosuch"], "nosuch"),
        (["last", "-o", str(tmp_path)], "folder"),
        (["last", "-o", str(tmp_path / "no" / "x")], "no folder"),
    ):
        done = run_there("sessions", "export", *arguments)
        assert done.returncode == 2, done.stderr
        assert word in one_sentence(done)
