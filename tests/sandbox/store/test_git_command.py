"""How git is started: which environment variables each policy passes on, and what all policies set."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.sandbox.store.git_command import (
    GitCommand,
    for_no_repository,
    for_owner_question,
    for_repository,
    for_store,
)
from tests.installs import ROOT

ALL = {
    "store": for_store(),
    "repository": for_repository("/r/.git", "/c", "/r"),
    "bare": for_repository("/r", "/c", None),
    "remote": for_repository("/r/.git", "/c", "/r", remote=True),
    "no repository": for_no_repository(),
    "owner": for_owner_question(),
}


@pytest.mark.parametrize("command", ALL.values(), ids=ALL)
def test_no_monitor_program_starts_and_nobody_is_asked(command: GitCommand) -> None:
    assert command.argv("status")[0] == "git"
    assert "core.fsmonitor=false" in command.argv("status")
    assert command.argv("status")[-1] == "status"
    assert command.environment["GIT_TERMINAL_PROMPT"] == "0"


@pytest.mark.parametrize("name", [name for name in ALL if name != "owner"])
def test_no_hook_starts(name: str) -> None:
    assert "core.hooksPath=/dev/null" in ALL[name].argv()


def test_git_variables_of_the_caller_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_PAGER"):
        monkeypatch.setenv(name, "/elsewhere")
    for command in (for_store(), for_repository("/r", "/c", None), for_no_repository(), for_owner_question()):
        assert "/elsewhere" not in command.environment.values()
    assert for_repository("/r/.git", "/c", "/r").environment["GIT_WORK_TREE"] == "/r"


def test_secrets_are_for_remotes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"GITHUB_TOKEN", "M3AGENT_API_KEY", "SOME_SECRET", "db_password"}
    for name in (*secrets, "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, "x")
    here = for_repository("/r/.git", "/c", "/r")
    assert not secrets & here.environment.keys() and here.environment["GIT_ALLOW_PROTOCOL"] == "none"
    remote = for_repository("/r/.git", "/c", "/r", remote=True)
    assert secrets <= remote.environment.keys() and "ext" not in remote.environment["GIT_ALLOW_PROTOCOL"]
    assert here.environment["GIT_SSH_COMMAND"] == "x", "the user's own way to a remote"
    assert not (secrets | {"GIT_SSH_COMMAND"}) & for_store().environment.keys()


@pytest.mark.integration
def test_git_does_not_read_our_standard_input(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"of the user\n")
    os.close(writing)
    code = (
        "from m3agent.sandbox.store.git_command import for_store\n"
        "print(for_store().run('hash-object', '--stdin').stdout.decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=reading, capture_output=True, text=True, check=True
    )
    os.close(reading)
    assert done.stdout.strip() == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", "the id of nothing"
    assert (
        for_store().run("hash-object", "--stdin", stdin=b"", cwd=tmp_path).stdout.decode() == done.stdout[:-1]
    )


def test_git_is_started_from_here_only() -> None:
    """No other module that runs on the host has a command line that begins with git."""
    starts = {"create_subprocess_exec", "posix_spawn", "posix_spawnp", "start_process"}
    found = []
    for package in ("agent", "evals", "sandbox", "serving", "tools"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                words: list[ast.expr] = []
                if isinstance(node, ast.List):
                    words = node.elts
                elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in starts:
                    words = node.args
                if words and isinstance(words[0], ast.Constant) and words[0].value == "git":
                    found.append(path.relative_to(ROOT).as_posix())
    in_containers = ["sandbox/images/project_script.py"]
    assert sorted(found) == [*in_containers, "sandbox/store/git_command.py"]
