"""Run the suite of a few files in a real sandbox, as verification does."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def outcomes(report: TestReport) -> dict[str, str]:
    """Return the outcome of each test."""
    return {ident: name for name, ids in report.sets.items() for ident in ids}


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
