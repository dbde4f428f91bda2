"""Sandboxes with the test runners of JavaScript, one for each kind of sandbox and file of tests."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.base import Limits, Tree
from m3agent.tools.runners.javascript import JAVASCRIPT
from m3agent.tools.runners.run import run_suite
from m3agent.tools.test_report import TestReport
from tests.conftest import backend_here

PACKAGES = Path(__file__).parents[3] / ".setup" / "languages" / "node_modules"
UNUSED = (".d.ts", ".d.mts", ".d.cts", ".map", ".md")
"""Ends of files that no test runner reads: a third of all."""


def packed(folder: Path) -> bytes:
    """Return a folder as a tar archive. It keeps links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, folder.name, filter=lambda info: None if info.name.endswith(UNUSED) else info)
    return buffer.getvalue()


@dataclass
class Projects:
    """A sandbox with one folder for each project; `node_modules` lies above them."""

    sandbox: Sandbox
    has_packages: bool
    count: int = 0

    async def run(
        self, runner: str, files: Mapping[str, str], *wanted: str, limits: Limits | None = None
    ) -> TestReport:
        """Run the suite of a new project, and return its report with ids relative to the project."""
        if runner != "node-test" and not self.has_packages:
            pytest.skip("the test runners are not installed: run `make setup-languages`")
        self.count += 1
        root = f"project{self.count}"
        contents = {f"{root}/{name}": content.encode() for name, content in files.items()}
        for path, content in contents.items():
            await self.sandbox.write(path, content)
        tree = Tree(contents, contents.__getitem__)
        (suite,) = JAVASCRIPT[runner].detect(tree)
        report = await run_suite(
            self.sandbox,
            JAVASCRIPT[runner],
            suite,
            tree,
            [f"{root}/{name}" for name in wanted],
            limits=limits or Limits(total=90, per_test=5),
        )
        await self.sandbox.exec(["rm", "-rf", root])
        return report


def table(report: TestReport) -> dict[str, str]:
    """Return the outcome of each test, by its id relative to the project."""
    return {ident.partition("/")[2]: outcome for outcome, idents in report.sets.items() for ident in idents}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["docker", "bwrap"])
async def projects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Projects]:
    backend = backend_here(request.param)
    folder = tmp_path_factory.mktemp("javascript")
    (folder / "tree").mkdir()
    workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), folder / "tree", [])
    spec = SandboxSpec(backend, limits=SandboxLimits(memory=3 << 30))
    async with new_sandbox(backend, spec, workspace, lambda _: None) as sandbox:
        node = await sandbox.exec(["node", "--version"])
        if node.exit != 0:
            pytest.skip("node is not installed: run `make setup-languages`")
        if PACKAGES.is_dir():
            archive = await asyncio.to_thread(packed, PACKAGES)
            laid = await sandbox.exec(["tar", "-x"], stdin=archive)
            assert laid.exit == 0, laid.stderr
        yield Projects(sandbox, PACKAGES.is_dir())
