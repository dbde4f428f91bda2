"""Ctrl-C and SIGTERM end commands soon, whatever these are doing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import Process
from tests.evals.small import write_programs

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS = 2.0
"""How soon a command ends on a quiet machine."""
TRIES = 10
LATEST = 6.0  # seconds from a command's start to its signal
FILES: dict[str, str | bytes] = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
}
PATCH = (
    "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
)
COMMANDS = ("fix", "verify", "doctor", "context", "eval run")


def start(command: str, repo: Path, folder: Path) -> Process:
    match command:
        case "fix":
            return Process("fix", "add subtracts", "--engine", "embedded", cwd=repo)
        case "verify":
            (folder / "a.patch").write_text(PATCH)
            return Process("verify", str(folder / "a.patch"), cwd=repo)
        case "eval run":
            output = folder / f"run-{len(list(folder.iterdir()))}"
            given = json.dumps({"instances": ["adder"], "agent": "sh -c 'sleep 600' agent {issue}"})
            return Process(str(folder / "programs"), str(output), given, module="tests.evals.small")
        case _:
            return Process(command, cwd=repo)


# quick: test_interrupting_keeps_the_session_and_leaves_nothing_running, test_two_runs_on_one_folder_and_then_ctrl_c
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_ends_a_command(
    command: str, make_repo: Callable[..., Path], tmp_path: Path
) -> None:
    rng = random.Random(f"{command} 48")
    repo = make_repo(FILES)
    write_programs(tmp_path / "programs")
    for _ in range(TRIES):
        number, delay = rng.choice((signal.SIGINT, signal.SIGTERM)), rng.uniform(0.0, LATEST)
        process = start(command, repo, tmp_path)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        begun, busy = time.monotonic(), max(1.0, os.getloadavg()[0])
        _, err = process.communicate(timeout=60)
        where = f"{number.name} after {delay:.2f} s: status {process.returncode}, {err.decode()}"
        assert time.monotonic() - begun < SECONDS * busy, where
        assert process.returncode in (0, 1, 3, 130, -number), where
        assert b"Traceback" not in err and b"fault of m3agent" not in err, where
