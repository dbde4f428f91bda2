"""How the supervisor finds the processes of a command while another one runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.linux]  # the supervisor runs in a sandbox

SETUP = """\
import os, signal, sys
from m3agent.sandbox.protocol import supervisor as module

supervisor = module.Supervisor(sys.argv[1], -1, -1)
supervisor.processes = module.Processes()
reading, writing = os.pipe()


def start(number, program):
    pid = os.fork()
    if pid == 0:
        module.set_mark(os.getpid(), number)
        os.write(writing, b"x")
        program()
        os._exit(0)
    os.read(reading, 1)
    job = module.SupervisorJob(module.Child(pid, number, None, {}), {"id": number}, b"")
    supervisor.jobs[number] = job
    return job


other = start(1, signal.pause)
"""


def output(code: str, folder: Path) -> str:
    """Run code in a process whose only children are those of the supervisor."""
    command = [sys.executable, "-c", f"{SETUP}\n{code}\nos.kill(other.pid, signal.SIGKILL)", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_of_other_commands_stay(tmp_path: Path) -> None:
    code = """
mine = start(2, signal.pause)
supervisor.processes.pids = lambda: [other.pid, mine.pid]
print(supervisor.kill_job(mine), end=" ")
while mine.status is None:
    supervisor.collect()
print(supervisor.kill_job(mine), not module.is_dead(module.fields_of(other.pid)))
"""
    assert output(code, tmp_path) == "True False True\n"


def test_a_process_that_ends_during_the_search_is_not_taken_for_the_last(tmp_path: Path) -> None:
    """It may have started another one after the list was made: a chain of them would outlive its command."""
    code = """
mine = start(2, signal.pause)


def listed():
    os.kill(mine.pid, signal.SIGTERM)
    os.waitid(os.P_PID, mine.pid, os.WEXITED | os.WNOWAIT)
    return [other.pid, mine.pid]


supervisor.processes.pids = listed
print(supervisor.kill_job(mine), end=" ")
supervisor.processes.pids = lambda: [other.pid]
print(supervisor.kill_job(mine))
"""
    assert output(code, tmp_path) == "True False\n"
