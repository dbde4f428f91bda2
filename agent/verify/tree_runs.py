"""Run the tests of a tree in a fresh sandbox, which the session never touched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport
from m3agent.tools.test_runner import run_in_sandbox

TEST_TIMEOUT = 600.0
"""Timeout of the whole suite on one tree, in seconds."""


@dataclass(frozen=True)
class Selection:
    """The tests of one run; by default all tests.

    Attributes:
        targets: Files or folders.
        only: Ids of tests, functions, classes, files or folders; of the targets' tests, only these run. Empty for all.
        ignore: Paths of files whose tests do not run.
    """

    targets: Sequence[str] = (".",)
    only: Collection[str] = ()
    ignore: Collection[str] = ()


EVERYTHING = Selection()


@dataclass(frozen=True)
class TreeRuns:
    """Runs tests of trees, each run in its own sandbox.

    Attributes:
        store: Holds the trees.
        new_sandbox: Starts a sandbox for a workspace.
        folder: Where the logs of the test runs go.
        kept: Complete results of `run_once`, by tree and selection.
    """

    store: TreeStore
    new_sandbox: Callable[[Workspace], Sandbox]
    folder: Path
    kept: dict[Hashable, TestReport] = field(default_factory=dict)

    async def run_once(self, tree: str, name: str, selection: Selection) -> TestReport:
        """Run tests of one tree, unless an earlier run of the same tests has a complete result. Otherwise like `run`."""
        parts = selection.targets, selection.only, selection.ignore
        key = tree, *(frozenset(part) for part in parts)
        if key not in self.kept:
            report = await self.run(tree, name, selection)
            if not report.complete:
                return report
            self.kept[key] = report
        return self.kept[key]

    async def run(self, tree: str, name: str, selection: Selection = EVERYTHING) -> TestReport:
        """Run tests of one tree.

        Args:
            tree: Git tree id.
            name: Name of the run, for its log `NAME.log`.
            selection: The tests to run.

        Raises:
            SandboxError: The sandbox failed, so nothing is known about the tests.
        """
        async with self.new_sandbox(Workspace(self.store, tree)) as sandbox:
            return await run_in_sandbox(
                sandbox,
                *selection.targets,
                timeout=TEST_TIMEOUT,
                log=self.folder / f"{name}.log",
                only=selection.only,
                ignore=selection.ignore,
            )
