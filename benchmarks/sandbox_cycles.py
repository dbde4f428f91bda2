"""Kill processes that use sandboxes at random times, again and again, and check that nothing remains.

    python -m benchmarks.sandbox_cycles [--cycles 1000] [--backend docker|bwrap] [--seed 1]

A process uses sandboxes as `m3agent` does, three at a time. It is killed with SIGKILL after a random time and the next
one starts, until enough sandboxes have been created. Afterwards there must be no new container, volume, process or
temporary file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace

PR_SET_CHILD_SUBREAPER = 36
AT_ONCE = 3
PATIENCE = 10.0
"""Seconds from the last kill until everything must be gone. The engine is slow while it removes many containers."""
MEAN_LIFE = 1.5  # mean seconds from a process's first sandbox to its kill, which may come at any moment
TREE = "setsid sleep 1000 & (sleep 1000 & sleep 1000) & sleep 1000"


@dataclass
class Outcome:
    """How many sandboxes began and ended normally, how many processes were killed, and what remained."""

    begun: int = 0
    ended: int = 0
    kills: int = 0
    seconds: float = 0.0
    left: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not any(self.left.values())


# -- the process that is killed --------------------------------------------------------------------------------------


async def use(sandbox: Sandbox, choice: random.Random) -> None:
    """Do something that a session does with a sandbox, at random."""
    what = choice.choice(("run", "timeout", "background", "write"))
    if what == "run":
        await sandbox.exec(["sh", "-c", "echo hello; setsid sleep 1000 & true"])
    elif what == "timeout":
        done = await sandbox.exec(["sh", "-c", TREE], timeout=0.3)
        assert done.timed_out
    elif what == "background":
        await sandbox.exec(["sh", "-c", TREE], background=True)
    else:
        await sandbox.write("b.txt", os.urandom(1 << 20))
        await sandbox.checkpoint()


async def host(backend: Backend, store: Path, base: str, seed: str) -> None:
    """Start, use and end sandboxes until killed. Print a line for each start and end."""
    choice = random.Random(seed)
    workspace = Workspace(TreeStore(store), base)
    spec = SandboxSpec(backend, limits=SandboxLimits(memory=256 << 20))

    async def cycles() -> None:
        while True:
            print("begin", flush=True)
            async with new_sandbox(backend, spec, workspace, lambda _: None) as sandbox:
                await use(sandbox, choice)
            print("end", flush=True)

    await asyncio.gather(*(cycles() for _ in range(AT_ONCE)))


# -- the process that kills --------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """Return all running descendants of a process."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # the process ended before its tasks were listed
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                below = [int(each) for each in task.read_text().split()]
            except OSError:
                continue
            for each in below:
                found += [each, *children(each)]
    return found


def describe(pid: int) -> str | None:
    """Return a process's id and command, or None if it has ended."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return None
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')[:1000]}"
    except OSError:
        return None


def containers_of(api: Any, owners: set[int]) -> list[str]:
    """Return the containers, running or not, that these processes created."""
    found = []
    for container in api.containers(all=True, filters={"label": "m3agent.owner"}):
        owner = container["Labels"]["m3agent.owner"]
        if owner.partition("-")[0] in map(str, owners):  # a container that builds an image has an empty one
            found.append(f"{container['Id'][:12]} of {owner}: {container['Status']}")
    return found


def leftovers(api: Any, owners: set[int], volumes: set[str], temporary: Path) -> dict[str, list[str]]:
    """Return everything that should be gone, by kind."""
    here = children(os.getpid())
    found = {
        "processes": [line for line in map(describe, here) if line is not None],
        "temporary files": sorted(str(path) for path in temporary.iterdir()),
    }
    if api is not None:
        found["containers"] = containers_of(api, owners)
        found["volumes"] = sorted(volumes_of(api) - volumes)
    return found


def volumes_of(api: Any) -> set[str]:
    return {volume["Name"] for volume in api.volumes()["Volumes"] or ()}


def reap() -> None:
    """Reap the ended processes that this process inherited from killed ones."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def run_cycles(backend: Backend, cycles: int, seed: int = 1) -> Outcome:
    """Start `cycles` sandboxes and kill the processes that use them. The caller must have no other child processes."""
    choice = random.Random(seed)
    outcome, started = Outcome(), time.monotonic()
    owners: set[int] = set()
    # processes that a killed one leaves become our children, so that we can find them
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    api = connect() if backend == "docker" else None
    with tempfile.TemporaryDirectory(prefix="m3agent-cycles-") as scratch:
        folder = Path(scratch)
        (folder / "tree").mkdir()
        (folder / "tree" / "a.txt").write_text("a\n")
        (folder / "tmp").mkdir()
        base = Workspace.from_folder(TreeStore(folder / "store"), folder / "tree", ["a.txt"]).base
        volumes = volumes_of(api) if api is not None else set()
        while outcome.begun < cycles:
            process = subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--host",
                    backend,
                    str(folder / "store"),
                    base,
                    str(choice.random()),
                ],
                stdout=subprocess.PIPE,
                env={**os.environ, "TMPDIR": str(folder / "tmp")},
                text=True,
            )
            owners.add(process.pid)
            assert process.stdout is not None
            first = process.stdout.readline()
            if first != "begin\n":
                raise SystemExit("the process that should use sandboxes ended at once")
            outcome.begun += 1
            threading.Timer(choice.expovariate(1 / MEAN_LIFE), process.kill).start()
            for line in process.stdout:
                outcome.begun += line == "begin\n"
                outcome.ended += line == "end\n"
            if process.wait() != -9:
                raise SystemExit(f"it ended by itself, with status {process.returncode}")
            outcome.kills += 1
        deadline = time.monotonic() + PATIENCE
        while True:
            reap()
            outcome.left = leftovers(api, owners, volumes, folder / "tmp")
            if outcome.clean or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    if api is not None:
        api.close()
    outcome.seconds = time.monotonic() - started
    return outcome


def main() -> int:
    if sys.argv[1:2] == ["--host"]:
        backend, store, base, seed = sys.argv[2:6]
        asyncio.run(host("docker" if backend == "docker" else "bwrap", Path(store), base, seed))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--backend", choices=("docker", "bwrap"), default="docker")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    outcome = run_cycles(options.backend, options.cycles, options.seed)
    print(
        f"{options.backend}: {outcome.begun} sandboxes, {outcome.ended} of them ended in order, "
        f"{outcome.kills} processes killed, {outcome.seconds:.0f} s"
    )
    for kind, found in outcome.left.items():
        print(f"  {len(found)} {kind} left" + "".join(f"\n    {line}" for line in found))
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
