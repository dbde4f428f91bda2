"""How git is started: which environment variables each policy passes on, and what all policies set."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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
    assert command.argv("status")[0] == shutil.which("git")
    assert "core.fsmonitor=" in command.argv("status")
    assert command.argv("status")[-1] == "status"
    assert command.environment["GIT_TERMINAL_PROMPT"] == "0"


@pytest.mark.parametrize("name", [name for name in ALL if name != "owner"])
def test_no_hook_starts(name: str) -> None:
    assert "core.hooksPath=/dev/null" in ALL[name].argv("status")


def test_other_commands_are_refused() -> None:
    for args in (("show", "HEAD"), ("-C", "/", "-c", "a.b=c", "--no-pager", "gc"), ("--version",), ()):
        with pytest.raises(ValueError, match="not in SUBCOMMANDS"):
            for_store().argv(*args)


def test_a_program_in_the_current_folder_is_not_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a relative folder in PATH, a clone could bring its own git, or a program that git starts."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path / "bin")
    path = os.environ["PATH"]
    for first in ("", ".", "../bin"):
        monkeypatch.setenv("PATH", f"{first}:{path}")
        commands = [for_store(), for_repository("/r/.git", "/c", "/r", remote=True), for_no_repository()]
        for command in [*commands, for_owner_question()]:
            assert command.environment["PATH"] == path
            assert command.run("version", cwd=tmp_path / "bin").stdout.startswith(b"git version")
    monkeypatch.setenv("PATH", ".:bin")
    for command in (for_store(), for_no_repository()):
        assert command.environment["PATH"] == os.defpath  # an empty PATH would mean the current folder
        assert command.argv("version")[0] != str(tmp_path / "bin" / "git")
    with pytest.raises(FileNotFoundError):
        for_store({"PATH": str(tmp_path)}).run("version")


def test_git_variables_of_the_caller_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_PAGER"):
        monkeypatch.setenv(name, "/elsewhere")
    for command in (for_store(), for_repository("/r", "/c", None), for_no_repository(), for_owner_question()):
        assert "/elsewhere" not in command.environment.values()
    assert for_repository("/r/.git", "/c", "/r").environment["GIT_WORK_TREE"] == "/r"


SECRETS = [
    *("GITHUB_TOKEN", "SOME_API_KEY", "SOME_SECRET", "db_password", "PGPASSWORD", "MYSQL_PWD", "HF_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("GITHUB_PAT", "SSH_AUTH_SOCK", "NPM_CONFIG__AUTH", "GPG_PASSPHRASE", "SLACK_WEBHOOK", "NUGET_APIKEY"),
]
OF_MODEL = ["M3AGENT_API_KEY", "M3AGENT_ENDPOINT", "OPENAI_API_KEY", "OPENAI_ORG_ID"]


def test_secrets_are_for_remotes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {"DATABASE_URL": "postgres://me:hush@db.invalid/x", "HTTPS_PROXY": "http://me:hush@proxy.invalid"}
    plain = {"PWD": "/r", "GIT_AUTHOR_NAME": "me", "KEYBOARD": "us", "DOCS_URL": "https://docs.invalid/a"}
    for name, value in (dict.fromkeys((*SECRETS, *OF_MODEL), "hush") | urls | plain).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -v")
    for name, command in {
        "repository": for_repository("/r/.git", "/c", "/r"),
        "no": for_no_repository(),
    }.items():
        environment = command.environment
        assert not [each for each, value in environment.items() if "hush" in value], name
        assert environment["GIT_ALLOW_PROTOCOL"] == "none"
        assert plain.items() <= environment.items()
        assert environment["GIT_SSH_COMMAND"] == "ssh -v", "the user's own way to a remote"
    assert not {*SECRETS, *OF_MODEL, *urls, "GIT_SSH_COMMAND"} & for_store().environment.keys()
    remote = for_repository("/r/.git", "/c", "/r", remote=True).environment
    assert {*SECRETS, *urls} <= remote.keys() and "ext" not in remote["GIT_ALLOW_PROTOCOL"].split(":")
    assert not set(OF_MODEL) & remote.keys()


def test_a_store_is_named_and_fetches_nothing(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = for_store().run("rev-parse", "--git-dir", cwd=tmp_path)
    assert b"not a git repository: '/dev/null'" in done.stderr, "git does not search"
    assert for_store().environment["GIT_ALLOW_PROTOCOL"] == "none"


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


STARTS = {
    *("create_subprocess_exec", "create_subprocess_shell", "start_process", "Popen", "call", "check_call"),
    *("check_output", "run", "system", "popen", "getoutput", "getstatusoutput", "which"),
    *("posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "execl", "execlp", "spawnvp"),
}
HOST_FOLDERS = ("agent", "cli", "evals", "integrations", "sandbox", "serving", "tools", "util")


def _last_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def starts_git(node: ast.AST) -> bool:
    """Return whether a piece of code has a command line that begins with git, or uses GitPython."""
    words: Sequence[ast.AST] = ()
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "git" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").partition(".")[0] == "git"
    if isinstance(node, ast.List | ast.Tuple):
        words = node.elts
    elif isinstance(node, ast.Call) and _last_name(node.func) in STARTS:
        words = [*node.args, *(given.value for given in node.keywords if given.arg == "args")]
    text = words[0].value if words and isinstance(words[0], ast.Constant) else None
    return isinstance(text, str) and Path(text.partition(" ")[0]).name == "git"


def test_git_is_started_from_here_only() -> None:
    """No other module that runs on the host starts git. `git_command` itself finds it without such a word."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in HOST_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "git" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if starts_git(node)
    }
    assert found == {
        "agent/repo/host_git.py",  # GitPython reads the file `.git` of a linked work tree
        "agent/repo/repository.py",  # asks whether git is installed
        "evals/export/in_harbor.py",  # runs in a container of another program
        "evals/grade/official.py",  # runs it in a sandbox
        "sandbox/images/project_script.py",  # runs in a container
    }


@pytest.mark.parametrize(
    "code",
    [
        "subprocess.run(['git', 'status'])",
        "subprocess.run(('/usr/bin/git', 'status'))",
        "os.system('git status')",
        "subprocess.run(args='git status', shell=True)",
        "os.execvp('git', argv)",
        "await asyncio.create_subprocess_exec('git', 'status')",
        "argv = ['git', *args]",
        "import git",
        "from git.repo import Repo",
    ],
)
def test_such_a_start_is_found(code: str) -> None:
    assert any(starts_git(node) for node in ast.walk(ast.parse(code)))
