"""Fixes by a model that answers from a script: its repository and answers, the command, and its log."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from m3agent.agent.session.catalog import repository_of, session_folders
from m3agent.agent.settings.settings import state_dir
from tests.command_line import Process, run
from tests.conftest import one_kind
from tests.servers.misbehaving import MisbehavingServer, Received, Silence, Stream

MakeRepo = Callable[..., Path]
Files = Mapping[str, str] | Path
BUGGY = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a * 2\n",
    "test_calc.py": (
        "from calc import add, double\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
        "def test_double():\n    assert double(2) == 4\n"
    ),
}
ISSUE = "add() gives wrong sums: add(2, 3) should be 5."


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}


def says(text: str, reasoning: str = "", finish: str = "stop") -> Stream:
    return Stream([chunk({"reasoning": reasoning}), chunk({"content": text}), chunk({}, finish), USAGE])


def calls(name: str, **arguments: Any) -> Stream:
    return calls_raw(name, json.dumps(arguments))


def calls_raw(name: str, arguments: str) -> Stream:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return Stream([chunk({"reasoning": "hm"}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), USAGE])


FIX = calls("file_edit", path="calc.py", old="return a - b", new="return a + b")
TEST = calls("test_runner", test_file=".")
DONE = says("add() subtracted; it adds now.")

UNTESTED = {"calc.py": BUGGY["calc.py"]}
"""A repository without tests. A fix of it takes a third of the time, because there is nothing to verify."""
NOT_TESTED = says("Not tested: there are no tests.")
"""The last answer of a fix of UNTESTED."""


def fix(repo: Path, url: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run("fix", ISSUE, "--repo", str(repo), "--endpoint", url, *more, env=env)


def events(home: Path) -> list[dict[str, Any]]:
    """Return the log of the only session."""
    (log,) = (home / "state" / "sessions").glob("*/events.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last line may be incomplete


def of_type(home: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in events(home) if event["type"] == kind]


def run_there(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository of the newest session: `last` means that of the present repository."""
    newest = next(iter(session_folders(state_dir(os.environ))), Path())
    root = repository_of(newest).get("root")
    return run(*arguments, cwd=Path(root) if root else None, env=env)


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def ours(pid: int) -> list[str]:
    """Return the containers and processes that belong to the m3agent process `pid`, which may have ended."""
    left = []
    listed = subprocess.run(
        [
            "docker",
            "ps",
            "-a",
            "--filter",
            "label=m3agent=1",
            "--format",
            '{{.ID}} {{.Label "m3agent.owner"}}',
        ],
        capture_output=True,
        check=False,
        text=True,
    )
    left += [
        f"container {line}" for line in listed.stdout.splitlines() if line.split()[-1].startswith(f"{pid}-")
    ]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if f"m3agent.owner={pid}-" in line or parent == str(pid):
            left.append(f"process {line}")
    return left


def wait_until_gone(pid: int) -> None:
    """Wait until nothing of the process is left, for at most 30 seconds: a busy machine removes containers slowly."""
    deadline = time.monotonic() + 30
    while (left := ours(pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def start(repo: Path, url: str, backend: str) -> Process:
    return Process("fix", ISSUE, "--repo", str(repo), "--endpoint", url, "--sandbox", backend)


def kill(process: Process) -> None:
    process.kill()
    process.wait()
    wait_until_gone(process.pid)


class Fixes:
    """Runs fixes and checks their exit codes; `files` are those of a new repository, or the path of one."""

    def __init__(self, model: MisbehavingServer, make_repo: MakeRepo, home: Path) -> None:
        self.model, self.make_repo, self.home = model, make_repo, home
        self._repositories = 0

    def __call__(
        self, files: Files, answers: list[Any] | None = None, *more: str, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Fix `ISSUE`; the model gives these answers, or those that it has left."""
        if answers is not None:
            self.model.answers = list(answers)
        done = fix(self.repo(files), self.model.url, *more, **env)
        assert done.returncode == code, done.stderr
        return done

    def repo(self, files: Files) -> Path:
        if isinstance(files, Path):
            return files
        self._repositories += 1
        return self.make_repo(files, f"repo{self._repositories}")

    def waiting(self, files: Files, answers: list[Any]) -> Process:
        """Start a fix, and return it as soon as it has asked for the last of these answers; none follows."""
        self.model.answers = list(answers)
        process = start(self.repo(files), self.model.url, one_kind())
        self.model.wait_for_chats(len(answers))
        return process

    def killed(self, files: Files, answers: list[Any]) -> None:
        """Kill a fix while it waits for the model's answer after these."""
        kill(self.waiting(files, [*answers, Silence()]))

    def resume(
        self, answers: list[Any], *more: str, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Resume the newest session in another process."""
        self.model.answers = list(answers)
        done = run_there("sessions", "resume", "last", *more, env=env)
        assert done.returncode == code, done.stderr
        return done

    @property
    def chats(self) -> list[Received]:
        """The requests to the model."""
        return self.model.chats

    def events(self) -> list[dict[str, Any]]:
        """Return the log of the only session."""
        return events(self.home)

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return of_type(self.home, kind)
