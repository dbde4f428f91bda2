"""Start sandboxes before they are needed: a start takes as long as a small test suite."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace

STARTS = os.cpu_count() or 1
"""Sandboxes that start at once. With more, the first one, on which the caller waits, is ready later."""


@dataclass(frozen=True)
class SandboxesAhead:
    """Sandboxes for trees, some of which start ahead. `close_unused` must follow `start` and `first`."""

    store: TreeStore
    """Holds the trees."""
    new_sandbox: Callable[[Workspace], Sandbox]
    """Returns the sandbox for a workspace, not yet started."""
    waiting: dict[str, list[asyncio.Task[Sandbox]]] = field(default_factory=dict)
    """Sandboxes that nobody has used, by tree."""
    starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS))
    """Limits the sandboxes that start at once. The first that is asked for is ready first."""
    pythons: set[str] = field(default_factory=set)
    """The versions of Python in the sandboxes that started."""
    ahead: bool = True
    """Whether `start` starts any. Without it, none starts that nobody uses."""

    def start(self, tree: str, number: int) -> None:
        """Start sandboxes for a tree, unless as many wait already."""
        if self.ahead:
            self._start(tree, number)

    def _start(self, tree: str, number: int) -> None:
        waiting = self.waiting.setdefault(tree, [])
        waiting += [asyncio.create_task(self._started(tree)) for _ in range(number - len(waiting))]

    async def first(self, tree: str) -> Sandbox:
        """Return the sandbox that the next use of a tree gets, once it has started. It is not taken away from that use.

        Run nothing in it that the repository decides.

        Raises:
            SandboxError: The sandbox failed.
        """
        self._start(tree, 1)
        return await asyncio.shield(self.waiting[tree][0])

    @contextlib.asynccontextmanager
    async def sandbox(self, tree: str) -> AsyncIterator[Sandbox]:
        """Open a sandbox for a tree.

        Raises:
            SandboxError: The sandbox failed.
        """
        waiting = self.waiting.get(tree)
        start = waiting.pop(0) if waiting else asyncio.create_task(self._started(tree))
        try:
            sandbox = await asyncio.shield(start)
        except asyncio.CancelledError:
            # The start may have ended at the same moment, and nobody else knows of it.
            await _close([start])
            raise
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def close_unused(self) -> None:
        """Close the sandboxes that nobody has used."""
        waiting = [task for tasks in self.waiting.values() for task in tasks]
        self.waiting.clear()
        await _close(waiting)

    async def _started(self, tree: str) -> Sandbox:
        async with self.starts:
            sandbox = await self.new_sandbox(Workspace(self.store, tree)).__aenter__()
        self.pythons.add(sandbox.python)
        return sandbox


async def _close(starts: Sequence[asyncio.Task[Sandbox]]) -> None:
    """End the starts of sandboxes, and close those that have started."""
    for start in starts:
        start.cancel()
    started = await asyncio.gather(*starts, return_exceptions=True)
    await asyncio.gather(*(sandbox.close() for sandbox in started if isinstance(sandbox, Sandbox)))
