"""One sandbox of each kind for each file of attempts. After every attempt it must still work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from m3agent.sandbox.backends.factory import Backend
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from tests.abuse.box import NEEDS_CONTROL_GROUP, Box
from tests.agent.repositories import write_files
from tests.conftest import KINDS, backend_here


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Backend:
    """Each kind of sandbox that works on this machine. At least one has to work."""
    return backend_here(request.param)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_box(
    request: pytest.FixtureRequest, kind: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Box]:
    """The sandbox of a file of attempts. The file may set LIMITS, and FILES that the sandbox starts with."""
    folder = tmp_path_factory.mktemp("abuse")
    files: dict[str, str | bytes] = getattr(request.module, "FILES", {})
    (folder / "tree").mkdir()
    write_files(folder / "tree", files)
    store = TreeStore(folder / "trees.git")
    limits = getattr(request.module, "LIMITS", SandboxLimits(memory=1 << 30))
    box = Box(kind, lambda: Workspace.from_folder(store, folder / "tree", sorted(files)), limits)
    yield box
    await box.close()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record for the fixture `box` whether the attempt failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest_asyncio.fixture(loop_scope="module")
async def box(request: pytest.FixtureRequest, kind: Backend, module_box: Box) -> AsyncIterator[Box]:
    """The sandbox to attack. Afterwards it must still work and contain no process that the attempt started."""
    attempt = request.node.name.replace(f"[{kind}-", "[").replace(f"[{kind}]", "")
    if kind == "bwrap" and attempt in NEEDS_CONTROL_GROUP:
        pytest.skip(f"needs a control group: {NEEDS_CONTROL_GROUP[attempt]}")
    await module_box.open()
    yield module_box
    try:
        await module_box.came_through()
        shared = ["/dev/shm"] if module_box.sandbox.machine.isolated else []
        folders = module_box.sandbox.folders
        places = [folders.work_tree, folders.temporary, *shared]
        await module_box.sandbox.exec(["find", *places, "-mindepth", "1", "-delete"])
    except BaseException:
        request.node.stash[FAILED] = True
        raise
    finally:
        if FAILED in request.node.stash:
            await module_box.close()  # damage by this attempt must not make the next one fail
