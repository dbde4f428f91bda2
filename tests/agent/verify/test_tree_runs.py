"""Sandboxes that start before they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.protocol.channel import Channel
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import EVERYTHING
from tests.fakes.machine import MemoryMachine
from tests.fakes.suite import Run, Suite

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


class Watched(MemoryMachine):
    """Notes when it starts and ends."""

    def __init__(self, seen: list[str], *, broken: bool = False) -> None:
        super().__init__(Suite(lambda *_: Run({"test_a.py::a": "passed"})))
        self.seen, self.broken = seen, broken

    async def start(self) -> Channel:
        self.seen.append("start")
        if self.broken:
            raise SandboxDied("it broke")
        return await super().start()

    async def destroy(self) -> None:
        self.seen.append("end")
        await super().destroy()


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def runs(workspace_of: WorkspaceOf, tmp_path: Path, seen: list[str]) -> TreeRuns:
    workspace = workspace_of({"test_a.py": "def test_a(): pass\n"})
    sandboxes = SandboxesAhead(workspace.store, lambda of: Sandbox(Watched(seen), of))
    return TreeRuns(sandboxes, tmp_path)


@pytest.fixture
def tree(runs: TreeRuns) -> str:
    return runs.store.write_tree([])


async def test_repeats_use_what_was_started_ahead(runs: TreeRuns, tree: str, seen: list[str]) -> None:
    runs.sandboxes.start(tree, 2)
    await asyncio.sleep(0.2)
    assert seen == ["start", "start"]
    reports = await runs.repeat(tree, "a", EVERYTHING, 3, 60)
    assert [report.passed for report in reports] == [("test_a.py::a",)] * 3
    assert seen == ["start", "start", "end"]
    await runs.sandboxes.close_unused()
    assert seen == ["start", "start", "end", "end"]
    await runs.repeat(tree, "a", EVERYTHING, 1, 60)
    assert seen[4:] == ["start", "end"], "none is left"


async def test_a_run_of_another_tree_has_a_sandbox_of_its_own(
    runs: TreeRuns, tree: str, seen: list[str]
) -> None:
    runs.sandboxes.start("0" * 40, 0)
    runs.sandboxes.start(tree, 1)
    await runs.run(runs.store.write_tree([TreeEntry("a.py", 0o100644, runs.store.put_blob(b""))]), "other")
    assert seen == ["start", "start", "end"]
    await runs.run(tree, "first")
    assert seen == ["start", "start", "end", "end"], "it used the one that was started ahead"


async def test_the_first_that_is_asked_for_is_ready_first(runs: TreeRuns, tree: str) -> None:
    """One processor starts one sandbox at a time."""
    order = list[str]()

    class Slow(Watched):
        async def start(self) -> Channel:
            order.append("begin")
            await asyncio.sleep(0.01)
            order.append("ready")
            return await super().start()

    slow = SandboxesAhead(runs.store, lambda of: Sandbox(Slow([]), of), starts=asyncio.Semaphore(1))
    alone = replace(runs, sandboxes=slow)
    alone.sandboxes.start(tree, 2)
    await alone.run(tree, "first")
    await alone.run(tree, "second")
    assert order == ["begin", "ready"] * 2


async def test_a_sandbox_that_was_looked_at_is_used_by_the_next_run(
    runs: TreeRuns, tree: str, seen: list[str]
) -> None:
    first = await runs.sandboxes.first(tree)
    assert await runs.sandboxes.first(tree) is first
    await runs.run(tree, "a")
    assert seen == ["start", "end"]


async def test_nothing_starts_ahead_if_that_is_not_wanted(runs: TreeRuns, tree: str, seen: list[str]) -> None:
    runs = replace(runs, sandboxes=replace(runs.sandboxes, ahead=False))
    runs.sandboxes.start(tree, 2)
    await asyncio.sleep(0)
    assert not seen
    await runs.sandboxes.first(tree)
    await runs.run(tree, "a")
    assert seen == ["start", "end"]


async def test_a_start_that_fails_matters_only_if_it_is_needed(
    runs: TreeRuns, tree: str, seen: list[str]
) -> None:
    sandboxes = SandboxesAhead(runs.store, lambda of: Sandbox(Watched(seen, broken=True), of))
    broken = replace(runs, sandboxes=sandboxes)
    broken.sandboxes.start(tree, 1)
    await asyncio.sleep(0)
    await broken.sandboxes.close_unused()
    broken.sandboxes.start(tree, 1)
    with pytest.raises(SandboxDied, match="it broke"):
        await broken.repeat(tree, "a", EVERYTHING, 1, 60)
    await broken.sandboxes.close_unused()


async def test_a_start_that_is_under_way_is_ended(runs: TreeRuns, tree: str, seen: list[str]) -> None:
    runs.sandboxes.start(tree, 3)
    await asyncio.sleep(0)
    await runs.sandboxes.close_unused()
    assert seen.count("end") == seen.count("start")


async def test_a_sandbox_that_starts_while_its_run_is_cancelled_is_closed(
    runs: TreeRuns, tree: str, seen: list[str]
) -> None:
    runs.sandboxes.start(tree, 1)
    [start] = runs.sandboxes.waiting[tree]
    start.add_done_callback(lambda _: run.cancel())  # it has ended, and the run has not seen it yet
    run = asyncio.create_task(runs.run(tree, "a"))
    with pytest.raises(asyncio.CancelledError):
        await run
    assert seen == ["start", "end"]
