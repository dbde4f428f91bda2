"""Run the suite of a few files in a real sandbox, as verification does; and what runners of programs have to show there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.base import Limits, Runner
from m3agent.tools.runners.run import run_suite
from m3agent.tools.test_report import TestReport
from tests.agent.repositories import write_files
from tests.ecosystems.records import tree_of


async def run_files(
    runner: Runner,
    files: Mapping[str, str | bytes],
    folder: Path,
    backend: Backend,
    wanted: Sequence[str] = (),
    limits: Limits | None = None,
    memory: int = 2 << 30,
) -> TestReport:
    """Run the only suite of these files in a fresh sandbox; `folder` is a new folder for them."""
    write_files(folder / "tree", files)
    for path, text in files.items():
        if text[:2] in ("#!", b"#!"):
            (folder / "tree" / path).chmod(0o755)
    workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), folder / "tree", sorted(files))
    tree = tree_of(files)
    (suite,) = runner.detect(tree)
    spec = SandboxSpec(backend, limits=SandboxLimits(memory=memory))
    async with new_sandbox(backend, spec, workspace, lambda _: None) as sandbox:
        return await run_suite(sandbox, runner, suite, tree, wanted, limits=limits or Limits(total=240))


def files_of(repository: Path, commit: str) -> dict[str, bytes]:
    """Return the plain files of a commit."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", commit], cwd=repository, check=True, capture_output=True
    ).stdout.decode()
    files = {}
    for line in filter(None, listed.split("\0")):
        about, _, path = line.partition("\t")
        mode, kind, sha = about.split()
        if kind == "blob" and mode != "120000":
            shown = subprocess.run(
                ["git", "cat-file", "blob", sha], cwd=repository, check=True, capture_output=True
            )
            files[path] = shown.stdout
    return files


@pytest.mark.languages
@pytest.mark.timeout(300)
class RealRuns:
    """Every kind of test, and product code that forges results, with the real toolchain of a runner."""

    runner: ClassVar[Runner]
    every_kind: ClassVar[Mapping[str, str]]
    """Files of a project with every kind of test."""
    outcomes: ClassVar[Mapping[str, set[str]]]
    """Its tests by outcome, without `folder` at the start of their ids."""
    folder: ClassVar[str] = ""
    errors: ClassVar[Sequence[tuple[str, str]]] = ()
    """Ids of some of its tests, with a part of the error text."""
    signs: ClassVar[tuple[str, ...]] = ()
    """Its signs of tampering."""
    forging: ClassVar[Mapping[str, str]]
    """Files of a project whose product code forges results."""
    forged: ClassVar[Sequence[str]]
    """The files of its tests. Each has a red test, or a sign names it."""
    per_test: ClassVar[float] = 10.0

    async def test_every_kind_of_test(self, backend: Backend, tmp_path: Path) -> None:
        limits = Limits(total=240, per_test=1)
        report = await run_files(self.runner, self.every_kind, tmp_path, backend, limits=limits)
        ids = {name: {ident.removeprefix(self.folder) for ident in ids} for name, ids in report.sets.items()}
        assert ids == self.outcomes
        assert report.complete
        assert report.signs.forged == self.signs
        for ident, text in self.errors:
            assert text in report.errors[self.folder + ident]

    async def test_forgeries_are_found(self, backend: Backend, tmp_path: Path) -> None:
        limits = Limits(total=240, per_test=self.per_test)
        report = await run_files(self.runner, self.forging, tmp_path, backend, limits=limits)
        signs = "\n".join(report.signs.forged)
        for file in self.forged:
            assert any(f"{ident}:".startswith(f"{file}:") for ident in report.red) or f"{file}:" in signs, (
                file
            )
