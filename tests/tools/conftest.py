"""One running sandbox for each file of tests, emptied after each test. A session also uses one sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from tests.tools.bench import Bench


async def _open(folder: Path, limits: SandboxLimits) -> Sandbox:
    (folder / "tree").mkdir()
    spec = SandboxSpec(limits=limits)
    backend = await choose_backend(spec, lambda _: None)
    workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), folder / "tree", [])
    return new_sandbox(backend, spec, workspace, lambda _: None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    async with await _open(tmp_path_factory.mktemp("warm"), SandboxLimits(memory=1 << 30)) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def bench(warm: Sandbox, tmp_path: Path) -> AsyncIterator[Bench]:
    yield Bench(warm, tmp_path)
    await warm.exec(["find", "/ws", "-mindepth", "1", "-delete"])


@pytest_asyncio.fixture(loop_scope="module")
async def tight(tmp_path: Path) -> AsyncIterator[Bench]:
    """A sandbox with little memory and disk."""
    async with await _open(tmp_path, SandboxLimits(memory=256 << 20)) as sandbox:
        yield Bench(sandbox, tmp_path)
