"""Machines started ahead of need: a start takes a quarter of a second, a claim from here a few milliseconds.

Waiting machines hold nothing of any work tree and have run nothing but our own start. Each is used once, by one
sandbox. On Docker they carry their owner's label like any other, so that the reaper finds them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable
from typing import Self

from m3agent.sandbox.base import Sandbox
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.open import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.proxy import NetworkRequest
from m3agent.sandbox.workspace import Workspace

STARTS_AT_ONCE = (
    4  # more only make each other slower (measured: 4 to 6 starts a second on two cores, however many)
)
MOST_FAILURES = 3  # starts that failed in a row before no more are tried until the next claim

Kind = tuple[Backend, SandboxSpec]


class Pool:
    """Started machines, by backend and specification. Use as an asynchronous context manager.

        async with Pool() as pool:
            pool.want(backend, spec, 10)
            async with await pool.sandbox(workspace, backend, spec) as sandbox:
                ...

    `size` is how many may wait at once: the number of cores and two unless said otherwise. `say` and `on_request` are
    as for `new_sandbox`.
    """

    def __init__(
        self,
        size: int | None = None,
        say: Callable[[str], None] = lambda _: None,
        on_request: Callable[[NetworkRequest], None] = lambda _: None,
    ) -> None:
        self.size = size if size is not None else (os.cpu_count() or 1) + 2
        self._say = say
        self._on_request = on_request
        self._wanted: Counter[Kind] = Counter()  # claims still to come
        self._waiting: dict[Kind, deque[Sandbox]] = {}
        self._starting: Counter[Kind] = Counter()
        self._failures = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def want(self, backend: Backend, spec: SandboxSpec, count: int = 1) -> None:
        """So many more of this kind will be claimed: start as many of them as there is room for."""
        self._wanted[backend, spec] += count
        self._fill()

    def ready(self, backend: Backend, spec: SandboxSpec) -> int:
        """How many of this kind wait to be claimed."""
        return sum(not sandbox.channel.dead for sandbox in self._waiting.get((backend, spec), ()))

    async def sandbox(self, workspace: Workspace, backend: Backend, spec: SandboxSpec) -> Sandbox:
        """A sandbox over `workspace`; enter it to lay the work tree down. A started one if there is one.

        Where there is none its start happens on entering, with the errors that a start can have.
        """
        kind = (backend, spec)
        self._wanted[kind] = max(0, self._wanted[kind] - 1)
        self._failures = 0
        sandbox = await self._claim(kind) or self._new(kind)
        sandbox.take(workspace)
        self._fill()
        return sandbox

    async def close(self) -> None:
        """End every machine that waits or starts; those that were claimed are their owners'."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        waiting = [sandbox for kept in self._waiting.values() for sandbox in kept]
        self._waiting.clear()
        await asyncio.gather(*(sandbox.close() for sandbox in waiting))

    def _new(self, kind: Kind) -> Sandbox:
        return new_sandbox(*kind, None, self._say, self._on_request)

    async def _claim(self, kind: Kind) -> Sandbox | None:
        """One that waits and lives, the oldest first."""
        waiting = self._waiting.get(kind, deque())
        while waiting:
            sandbox = waiting.popleft()
            try:
                await sandbox.ping()
            except SandboxError:
                await sandbox.close()
            else:
                return sandbox
        return None

    def _fill(self) -> None:
        """Start what is wanted and has room."""
        for kind, wanted in self._wanted.items():
            there = len(self._waiting.get(kind, ())) + self._starting[kind]
            for _ in range(wanted - there):
                total = sum(map(len, self._waiting.values())) + self._starting.total()
                full = total >= self.size or self._starting.total() >= STARTS_AT_ONCE
                if self._closed or full or self._failures >= MOST_FAILURES:
                    return
                self._starting[kind] += 1
                task = asyncio.create_task(self._keep_one(kind))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _keep_one(self, kind: Kind) -> None:
        """Start one, and notice if it dies while it waits."""
        sandbox = self._new(kind)
        started = False
        try:
            await sandbox.boot()
            started = True
        except SandboxError:
            self._failures += 1  # the claim that needs it starts its own, and reports what is wrong
        finally:
            self._starting[kind] -= 1
            if not started:
                await sandbox.close()
        if started and self._closed:
            # asyncio.wait_for before Python 3.12 forgets a cancellation that comes as what it waits for is done.
            await sandbox.close()
        if not started or self._closed:
            self._fill()
            return
        waiting = self._waiting.setdefault(kind, deque())
        waiting.append(sandbox)
        self._failures = 0
        self._fill()
        await sandbox.channel.ended()
        if sandbox in waiting:  # it died here; what dies later is its owner's
            waiting.remove(sandbox)
            await sandbox.close()
            self._fill()
