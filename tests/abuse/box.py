"""A sandbox under attack: run programs in it, then check that it still works."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import ExecResult, Sandbox, SandboxLimits
from m3agent.sandbox.store.workspace import Workspace

INSIDE = Path(__file__).with_name("inside.py").read_text()

NEEDS_CONTROL_GROUP: dict[str, str] = {
    "test_too_much_memory_ends_the_command_and_is_freed[many-processes]": "bubblewrap limits the memory of each process, not of all",
    "test_too_much_memory_ends_the_command_and_is_freed[memory-files]": "memory files count for no process",
    **{
        f"test_inodes[{folder}]": "bubblewrap limits the size of a tmpfs, not its number of files, which are memory of the kernel"
        for folder in ("/ws", "/tmp", "/dev/shm", "/opt/m3agent")
    },
}
"""Attempts that bubblewrap alone cannot stop, with the reason. They run on Docker only."""

LIST_PROCESSES = """\
import os
supervisor, parents = os.getppid(), {}
for name in os.listdir('/proc'):
    if name.isdigit() and name != str(os.getpid()):
        try:
            parents[name] = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[1]
        except OSError:
            pass
def below(name):
    return name in parents and (parents[name] == str(supervisor) or below(parents[name]))
for name in parents:
    if supervisor == 1 and name != '1' or below(name):
        try:
            print(name, open(f'/proc/{name}/stat').read().split(')')[0].split('(')[1], open(f'/proc/{name}/cmdline').read())
        except OSError:
            pass
"""


@dataclass
class Box:
    """The sandbox of one backend. It starts on first use, and again after an attempt has ended it."""

    backend: Backend
    workspace: Callable[[], Workspace]
    limits: SandboxLimits
    _sandbox: Sandbox | None = None

    async def open(self) -> Sandbox:
        """Start the sandbox if necessary, and return it."""
        if self._sandbox is None:
            self._sandbox = self.fresh()
            await self._sandbox.__aenter__()
        return self._sandbox

    def fresh(self, limits: SandboxLimits | None = None, workspace: Workspace | None = None) -> Sandbox:
        """Return another sandbox, not started yet, for an attempt that ends it or needs a separate tree."""
        spec = SandboxSpec(self.backend, limits=limits or self.limits)
        return new_sandbox(self.backend, spec, workspace or self.workspace(), lambda _: None)

    @property
    def sandbox(self) -> Sandbox:
        assert self._sandbox is not None
        return self._sandbox

    async def python(
        self, program: str, *, timeout: float = 60, sandbox: Sandbox | None = None
    ) -> ExecResult:
        """Run a program with `inside.py` in front of it, in a new interpreter."""
        argv = ["python3", "-c", f"{INSIDE}\n{program}"]
        return await (sandbox or self.sandbox).exec(argv, timeout=timeout)

    async def outcomes(self, asks: Mapping[str, str], helpers: str = "") -> dict[str, str]:
        """Return the outcome of each expression: `done`, or the error or signal that stopped it.

        One program evaluates all of them, each in a separate process. Afterwards the sandbox must still work.
        """
        table = ", ".join(f"{name!r}: lambda: {expression}" for name, expression in asks.items())
        ask = f"{helpers}\nimport json\nprint(json.dumps({{name: outcome_apart(ask) for name, ask in {{{table}}}.items()}}))"
        await self.open()
        done = await self.python(ask)
        try:
            await self.came_through()
            assert done.exit == 0, done.stderr.decode(errors="replace")
            return cast(dict[str, str], json.loads(done.stdout))
        finally:
            await self.close()  # damage by an expression must not affect other tests

    async def came_through(self) -> None:
        """Assert that the sandbox answers, works, and holds no process but the supervisor."""
        assert await survivors(self.sandbox) == []

    async def has(self, path: str) -> bool:
        """Whether a file exists in the sandbox."""
        return (await self.sandbox.exec(["test", "-e", path])).exit == 0

    async def close(self) -> None:
        """End the sandbox, whatever its state."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()


async def survivors(sandbox: Sandbox) -> list[str]:
    """Return id, name and command line of every process except the supervisor and the one that lists them."""
    await sandbox.ping()
    done = await sandbox.exec(["python3", "-I", "-S", "-c", LIST_PROCESSES], timeout=30)
    assert done.exit == 0, done
    assert done.stderr == b""
    return done.stdout.decode(errors="replace").splitlines()


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `found` returns true, for at most a minute."""
    async with asyncio.timeout(60):
        for wait in itertools.repeat(0.02):
            if await found():
                return
            await asyncio.sleep(wait)


async def gone(sandbox: Sandbox) -> None:
    """Wait until no process is left of a command that was told to end."""

    async def alone() -> bool:
        return not await survivors(sandbox)

    await until(alone)
