"""Whatever happens, no process that the keeper started remains."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m3agent.serving.launch import subreaper
from m3agent.serving.launch.supervised import start_kept
from tests.conftest import later

pytestmark = pytest.mark.integration

PATIENCE = 30.0

# Like real engines: the first process starts a second in a new session, and that starts a third.
ENGINE = """
import os, signal, subprocess, sys, time
folder, stubborn = sys.argv[1], sys.argv[2] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(name):
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
depth = int(sys.argv[3])
note(f"pid{depth}")
if depth < 2:
    subprocess.Popen([sys.executable, *sys.argv[:3], str(depth + 1)], start_new_session=True)
print("at work", depth, flush=True)
while True:
    time.sleep(60)
"""


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Kept:
    """A running keeper, and the processes of its engine."""

    def __init__(self, folder: Path, argv: list[str], cleanup: list[str] | None, grace: float) -> None:
        self.folder = folder
        self.log = folder / "engine.log"
        options = {"argv": argv, "log": str(self.log), "grace": grace, "patience": 0.5, "cleanup": cleanup}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", subreaper.__file__, json.dumps(options)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        wait_for(lambda: (self.folder / "pid2").exists())
        return [int((self.folder / f"pid{depth}").read_text()) for depth in range(3)]

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    started: list[Kept] = []

    def start(*argv: str, cleanup: list[str] | None = None, grace: float = 20.0) -> Kept:
        started.append(Kept(tmp_path, list(argv), cleanup, grace))
        return started[-1]

    yield start
    for kept in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(kept.process.pid, signal.SIGKILL)
        kept.process.wait()


def program(tmp_path: Path, mode: str) -> list[str]:
    (tmp_path / "engine.py").write_text(ENGINE)
    return [sys.executable, str(tmp_path / "engine.py"), str(tmp_path), mode, "0"]


@pytest.mark.linux  # only Linux tells the keeper which processes descend from it
@pytest.mark.parametrize(
    ("way", "mode"),
    [("told", "gentle"), ("told", "stubborn"), ("line closed", "gentle"), later("line closed", "stubborn")],
)
def test_all_processes_end_with_the_keeper_or_its_launcher(
    tmp_path: Path, keep: Callable[..., Kept], mode: str, way: str
) -> None:
    kept = keep(*program(tmp_path, mode), grace=0.5)
    pids = kept.pids()
    assert all(map(runs, pids))
    if way == "told":
        kept.process.terminate()
    else:
        assert kept.process.stdin is not None
        kept.process.stdin.close()
    code = kept.end()
    assert not any(map(runs, pids))
    assert code == 128 + (signal.SIGTERM if mode == "gentle" else signal.SIGKILL)


@pytest.mark.linux  # only Linux tells the keeper which processes descend from it
def test_leftover_processes_of_a_killed_engine_are_ended(tmp_path: Path, keep: Callable[..., Kept]) -> None:
    kept = keep(*program(tmp_path, "stubborn"))
    pids = kept.pids()
    os.kill(pids[0], signal.SIGKILL)
    assert kept.end() == 128 + signal.SIGKILL
    assert not any(map(runs, pids)), "a child in a session of its own, and that one's"


@pytest.mark.linux  # only Linux tells the keeper which processes descend from it
def test_engine_gets_a_signal_when_its_keeper_is_killed(tmp_path: Path, keep: Callable[..., Kept]) -> None:
    kept = keep(*program(tmp_path, "gentle"))
    pids = kept.pids()
    kept.process.kill()
    wait_for(lambda: not runs(pids[0]))
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("ignored", ["none", later("TERM")])
def test_what_remains_in_the_process_group_is_ended(
    tmp_path: Path, keep: Callable[..., Kept], ignored: str
) -> None:
    """The process in the background holds a lock as long as it runs."""
    lock = tmp_path / "lock"
    stays = f"trap '' {ignored}; exec sleep 300" if ignored != "none" else "exec sleep 300"
    kept = keep("sh", "-c", f'exec 9>"{lock}"; flock -s 9; ({stays}) & exit 3')
    assert kept.process.wait(timeout=PATIENCE) == 3
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_its_exit_code_and_output_are_kept(tmp_path: Path, keep: Callable[..., Kept]) -> None:
    (tmp_path / "engine.log").write_text("before\n")
    kept = keep("/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert kept.end() == 7
    assert kept.log.read_text() == "before\nout\nerr\n"


def test_missing_program_is_reported_in_the_log(keep: Callable[..., Kept]) -> None:
    kept = keep("/nowhere/vllm", "serve")
    assert kept.end() == subreaper.CANNOT_START
    assert kept.log.read_text() == "/nowhere/vllm: No such file or directory\n"


@pytest.mark.linux  # only Linux tells the keeper which processes descend from it
@pytest.mark.parametrize("ending", ["itself", "told"])
def test_cleaning_up_comes_last_however_it_ended(
    tmp_path: Path, keep: Callable[..., Kept], ending: str
) -> None:
    cleanup = ["/bin/sh", "-c", f"echo cleaned; ls '{tmp_path}/pid0' 2>&1"]
    if ending == "itself":
        kept = keep("/bin/sh", "-c", "echo done", cleanup=cleanup)
    else:
        kept = keep(*program(tmp_path, "gentle"), cleanup=cleanup)
        kept.pids()
        kept.process.terminate()
    kept.end()
    assert "\ncleaned\n" in "\n" + kept.log.read_text()


@pytest.mark.linux  # only Linux tells the keeper which processes descend from it
def test_orphans_that_end_by_themselves_are_buried(tmp_path: Path, keep: Callable[..., Kept]) -> None:
    script = "for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &) ; done; touch orphaned; sleep 60"
    kept = keep("/bin/sh", "-c", f"cd {tmp_path}; {script}")
    wait_for(lambda: (tmp_path / "orphaned").exists())

    def below() -> list[str]:
        return Path(f"/proc/{kept.process.pid}/task/{kept.process.pid}/children").read_text().split()

    wait_for(lambda: len(below()) == 1)
    assert subreaper.descendants(kept.process.pid), "the shell is there still"
    kept.process.terminate()
    kept.end()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    start = start_kept(
        [sys.executable, "-c", ENGINE, str(tmp_path), "stubborn", "2"],
        log=tmp_path / "log",
        grace=0.2,
        patience=0.2,
        env=dict(os.environ),
        cwd=tmp_path,
    )
    starting = asyncio.create_task(start)
    for _ in range(3):  # the process is started in one of the first steps
        await asyncio.sleep(0)
    wait_for((tmp_path / "pid2").exists)  # no step of the start meanwhile, as on a machine with other work
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not runs(int((tmp_path / "pid2").read_text()))
