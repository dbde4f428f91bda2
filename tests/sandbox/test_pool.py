"""Machines started ahead: quick to claim, used once, replaced when they die, none left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from m3agent.sandbox.base import Limits
from m3agent.sandbox.errors import ImageMissing
from m3agent.sandbox.open import Backend, SandboxSpec
from m3agent.sandbox.pool import Pool
from m3agent.sandbox.workspace import Workspace

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]
LIMITS = Limits(memory=256 << 20)


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.01)


async def test_a_claim_is_quick_and_each_machine_serves_once(
    backend: Backend, workspace_of: WorkspaceOf
) -> None:
    spec, workspace = SandboxSpec(backend, limits=LIMITS), workspace_of({"a.txt": "a\n"})
    async with Pool() as pool:
        pool.want(backend, spec, 2)
        await until(lambda: pool.ready(backend, spec) == 2)
        took = []
        for _ in range(2):
            started = time.perf_counter()
            sandbox = await pool.sandbox(workspace, backend, spec)
            took.append(time.perf_counter() - started)
            async with sandbox:
                assert await sandbox.read("a.txt") == b"a\n"
                await sandbox.write("a.txt", b"b\n")
                assert (await sandbox.patch()).paths == ("a.txt",)
        assert min(took) < 0.1, "a start, not a claim"
        assert pool.ready(backend, spec) == 0


async def test_without_a_machine_that_waits_one_is_started(
    backend: Backend, workspace_of: WorkspaceOf
) -> None:
    spec = SandboxSpec(backend, limits=LIMITS)
    async with Pool() as pool, await pool.sandbox(workspace_of({"a": "a"}), backend, spec) as sandbox:
        assert (await sandbox.exec(["cat", "a"])).stdout == b"a"


async def test_one_that_died_is_replaced_and_never_handed_out(
    backend: Backend, workspace_of: WorkspaceOf
) -> None:
    spec = SandboxSpec(backend, limits=LIMITS)
    async with Pool(size=1) as pool:
        pool.want(backend, spec)
        await until(lambda: pool.ready(backend, spec) == 1)
        first = pool._waiting[backend, spec][0]
        await first.machine.destroy()
        await until(lambda: pool.ready(backend, spec) == 1 and pool._waiting[backend, spec][0] is not first)
        # and one whose death nobody has heard of yet
        await pool._waiting[backend, spec][0].machine.destroy()
        async with await pool.sandbox(workspace_of({"a": "a"}), backend, spec) as sandbox:
            assert (await sandbox.exec(["cat", "a"])).stdout == b"a"


async def test_no_more_wait_than_there_is_room_and_want_for(backend: Backend) -> None:
    spec, other = SandboxSpec(backend, limits=LIMITS), SandboxSpec(backend, limits=Limits(memory=192 << 20))
    async with Pool(size=2) as pool:
        pool.want(backend, spec)
        pool.want(backend, other, 5)
        await until(lambda: pool.ready(backend, spec) + pool.ready(backend, other) == 2)
        assert (pool.ready(backend, spec), pool.ready(backend, other)) == (1, 1)
        assert not pool._starting.total()


async def test_closing_ends_those_that_wait_and_those_that_start(backend: Backend) -> None:
    spec = SandboxSpec(backend, limits=LIMITS)
    async with Pool(size=3) as pool:
        pool.want(backend, spec, 3)
        await until(lambda: pool.ready(backend, spec) >= 1)
        waiting = list(pool._waiting[backend, spec])
    assert all(sandbox.channel.dead for sandbox in waiting)
    assert not pool._tasks


@pytest.mark.docker
async def test_what_is_wrong_is_said_where_it_is_needed(backend: Backend, workspace_of: WorkspaceOf) -> None:
    if backend != "docker":
        pytest.skip("only Docker has images")
    spec = SandboxSpec("docker", "m3agent-absent:0", LIMITS)
    async with Pool() as pool:
        pool.want("docker", spec, 10)
        await until(lambda: pool._failures >= 3 and not pool._starting.total())
        sandbox = await pool.sandbox(workspace_of({"a": "a"}), "docker", spec)
        with pytest.raises(ImageMissing):
            async with sandbox:
                pass
