"""The fault of a chaos run: drawn from a seed, injected into the real component, and repaired."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import docker
from benchmarks.chaos.model import FIRED, MANNERS, REQUESTS, TURNS, Cut, encoded
from benchmarks.sandbox_cycles import children, containers_of

from m3agent.agent.session.log_reader import LOG
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend
from tests.conftest import bwrap_here, docker_here
from tests.servers.dockerd import OwnEngine
from tests.tools.small_disk import fill

Kind = Literal["harness", "container", "dockerd", "server", "stream", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HandOver = Literal["print", "apply", "branch"]
LINES = 43  # lines of the log of a fix without a fault, up to the verdict
AT_THE_END = 0.2
"""Share of the kills and of the full disks that come after the verdict, where the user's own files are changed."""
LONGEST = 0.6  # most seconds after a line of the log: the longest pause between two lines in a fix
BACK = 2.0  # most seconds that a server, an engine or a disk is unavailable while the harness continues
DISK = 48 << 20  # bytes
POLL = 0.002  # seconds between two checks
PATIENCE = 30.0  # most seconds until the model's server prints its port


@dataclass(frozen=True)
class Plan:
    """A run and its fault.

    Attributes:
        number: Number of the run.
        kind: Kind of the fault.
        backend: Sandbox of the fix.
        hand_over: What the fix does with the patch.
        as_json: Whether the fix prints the event log.
        line: The fault comes after this line of the log; 0 means after the start of the process.
        delay: Seconds between that line and the fault.
        back: Seconds until the fault is repaired; it is repaired earlier if the harness ends.
        pick: From 0 to 1; selects the sandbox that is hit if there are several.
        cut: For faults in an answer, which the model's server injects instead.
    """

    number: int
    kind: Kind
    backend: Backend
    hand_over: HandOver
    as_json: bool
    line: int
    delay: float
    back: float
    pick: float
    cut: Cut | None

    def __str__(self) -> str:
        when = f"{self.delay:.4f} s after line {self.line}"
        if self.cut is not None:
            when = f"{self.cut.manner} at {self.cut.share:.2f} of turn {self.cut.turn}"
        return f"{self.kind}, {when}, {self.backend}, {self.hand_over}{', --json' if self.as_json else ''}"


def plan_of(seed: int, number: int) -> Plan:
    """Return the plan with this number. It depends only on the seed, and each kind occurs equally often."""
    choice = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    cut = Cut(choice.randrange(TURNS), choice.random(), choice.choice(MANNERS[:-1]))
    if kind == "server":
        cut = Cut(cut.turn, cut.share, "killed")
    late = choice.random() < AT_THE_END and kind in ("harness", "disk")
    return Plan(
        number,
        kind,
        "docker" if kind == "dockerd" else choice.choice(("docker", "bwrap")),
        choice.choice(("print", "apply", "branch")),
        choice.random() < 0.5,
        LINES if late else choice.randrange(LINES),
        LONGEST * 10 ** choice.uniform(-4, 0),
        choice.uniform(0, BACK),
        choice.random(),
        cut if kind == "stream" or (kind == "server" and choice.random() < 0.5) else None,
    )


def barred() -> dict[str, str]:
    """Return the kinds of faults and sandboxes that are impossible on this machine, each with the reason."""
    found = {}
    if why := OwnEngine.barred_by():
        found["dockerd"] = why
    if not docker_here():
        found["docker"] = "no Docker engine answers"
    if not bwrap_here():
        found["bwrap"] = "bubblewrap does not work"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if not _mounted(Path(folder), stack):
            found["disk"] = "a small file system cannot be mounted"
    return found


class ModelProcess:
    """The scripted model in a separate process. It gets the same port each time it is started."""

    def __init__(self, folder: Path, cut: Cut | None) -> None:
        self._folder, self._cut, self._port = folder, cut, "0"
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def requests(self) -> list[bytes]:
        """Return the bodies of the chat requests so far, in order."""
        path = self._folder / REQUESTS
        return path.read_bytes().splitlines() if path.exists() else []

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        command = [sys.executable, "-m", "benchmarks.chaos.model", self._port, str(self._folder)]
        self._process = subprocess.Popen(
            [*command, *([encoded(self._cut)] if self._cut else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self._port = self._process.stdout.readline().strip()
        assert self._port, "the model's server did not start"

    def end(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is None:
            return
        assert self._process.stdin and self._process.stdout
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Stage:
    """Everything that a run needs and a fault may hit, below `folder`. Use it as a context manager.

    It consists of the model, a separate Docker engine if the fault kills one, and the folder `work`. That folder contains the
    repository, the state folder and the temporary folder. It is a small disk if the fault fills one.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.work = plan, folder, folder / "work"
        self.repo, self.state, self.scratch = (self.work / name for name in ("repo", "state", "tmp"))
        self.model = ModelProcess(folder, plan.cut)
        self.engine: OwnEngine | None = None
        self.struck: float | None = None
        """When the fault happened, on the monotonic clock; None as long as it did not."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.work.mkdir(parents=True)
            if self.plan.kind == "disk":
                assert _mounted(self.work, stack), "see barred()"
            self.repo.mkdir()
            self.scratch.mkdir()
            stack.callback(self.model.end)
            self.model.start()
            if self.plan.kind == "dockerd":
                self.engine = stack.enter_context(OwnEngine())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def docker(self) -> Any:
        """Return a `docker.APIClient` for the run's engine; None if the run uses none."""
        if self.engine is not None:
            return docker.APIClient(base_url=self.engine.address, version="auto")
        return connect() if self.plan.backend == "docker" else None

    def logs(self) -> list[Path]:
        """Return the paths of the sessions' logs, oldest first."""
        return sorted(self.state.glob(f"sessions/*/{LOG}"), key=lambda path: path.stat().st_ctime_ns)

    def strike(self, harness: subprocess.Popen[bytes]) -> bool:
        """Wait for the planned moment and inject the fault. Return False if the harness ended first."""
        plan = self.plan
        if plan.cut is not None:
            return _until((self.folder / FIRED).exists, harness)
        if not _until(lambda: self._lines() >= plan.line, harness):
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            harness.wait(plan.delay)
            return False
        match plan.kind:
            case "harness":
                harness.kill()
            case "container":
                return self._kill_sandbox(harness)
            case "dockerd":
                assert self.engine is not None
                self.engine.kill()
            case "disk":
                fill(self.work)
            case _:
                self.model.end()
        return True

    def repair(self) -> None:
        """Restore what the fault removed."""
        match self.plan.kind:
            case "dockerd":
                assert self.engine is not None
                _bury("containerd")  # otherwise the next engine would believe that it still runs
                self.engine.start()
            case "disk":
                (self.work / "fill.bin").unlink(missing_ok=True)
            case _:
                self.model.start()

    def _lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.logs())

    def _kill_sandbox(self, harness: subprocess.Popen[bytes]) -> bool:
        """Kill the first process of one of the harness's sandboxes; if there is none now, wait for the next one."""
        with closing(self.docker()) if self.plan.backend == "docker" else contextlib.nullcontext() as api:

            def killed() -> bool:
                if api is None:
                    found = [str(pid) for pid in children(harness.pid) if _is_first(pid)]
                else:
                    found = [line.split()[0] for line in containers_of(api, {harness.pid})]
                if not found:
                    return False
                chosen = sorted(found)[int(self.plan.pick * len(found))]
                try:
                    os.kill(int(chosen), 9) if api is None else api.kill(chosen, "SIGKILL")
                except (OSError, docker.errors.APIError):  # it has ended meanwhile, or has not started yet
                    return False
                return True

            return _until(killed, harness)


def _until(happened: Callable[[], bool], harness: subprocess.Popen[bytes]) -> bool:
    """Wait until `happened` returns True. Return False if the harness ended first."""
    while not happened():
        if harness.poll() is not None:
            return False
        time.sleep(POLL)
    return True


def _bury(name: str) -> None:
    """Reap orphaned processes with this name, which this process has inherited."""
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):  # it is not a child of this process
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                os.waitpid(pid, 0)


def _is_first(pid: int) -> bool:
    """Return whether a process is process 1 of its own process namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def _mounted(folder: Path, stack: ExitStack) -> bool:
    """Mount a small disk at the folder until the stack closes. Return False if that is not allowed."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return False
    stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
    return True
