"""Judge a patch to a target as `fix` does and as `eval grade` does, for the tests and for benchmarks/forgeries.py."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.evals.code.checkout import codebase
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import Grade
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.trees import grading_trees, open_store
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport
from tests.abuse.forged_files import UNLUCKY
from tests.abuse.forgery_targets import Target
from tests.agent.repositories import write_files
from tests.evals.calc_instance import diff, small_instance

Files = Mapping[str, str | bytes | None]

USUAL, ODD = SandboxLimits(memory=512 << 20), SandboxLimits(memory=1 << 30)
_TMP = (USUAL.scratch + ODD.scratch) // 2
ODD_HERE = f"os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize > {_TMP}"
"""Whether the sandbox has the limits `ODD`."""
_baselines: dict[tuple[Backend, str | None, str], TestReport] = {}
"""Results of the base trees' tests, by kind of sandbox, image and tree. `fix` has one too when it verifies."""


async def verified(
    files: Files,
    target: Target,
    backend: Backend,
    folder: Path,
    image: str | None = None,
    reruns: int = RERUNS,
    memory: int = USUAL.memory,
) -> Verification:
    """Verify files as a patch to a target, in fresh sandboxes over the image, or over the default one.

    Chance in a patch is replaced by a rule: every second run on a tree is unlucky, the first is not.
    """
    tree, store = folder / "tree", TreeStore(folder / "trees.git")
    write_files(tree, target.files)
    workspace = Workspace.from_folder(store, tree, sorted(target.files))
    texts = {name: content for name, content in files.items() if content is not None}
    changed = [
        (name, 0o100644, text if isinstance(text, bytes) else text.replace(UNLUCKY, ODD_HERE).encode())
        for name, text in texts.items()
    ]
    patch = workspace.patch(
        workspace.commit_changes(workspace.base, changed, sorted(files.keys() - texts.keys()))
    )
    runs: dict[str, int] = {}  # number of runs on each tree

    def fresh(of: Workspace) -> Sandbox:
        runs[of.base] = runs.get(of.base, 0) + 1
        limits = USUAL if runs[of.base] % 2 else ODD
        limits = replace(limits, memory=max(memory, limits.memory))
        spec = SandboxSpec(backend, image, limits)
        return new_sandbox(backend, spec, of, lambda _: None)

    tree_runs = TreeRuns(SandboxesAhead(store, fresh), folder)

    async def baseline() -> TestReport:
        key = backend, image, workspace.base
        if key not in _baselines:
            _baselines[key] = await tree_runs.run(workspace.base, "baseline")
        return _baselines[key]

    return await verify(workspace, patch, tree_runs, reruns, baseline, issue=target.issue)


def instance_of(target: Target, folder: Path) -> Instance:
    """Return a target as an instance of a benchmark, in `folder`: its base lacks the tests that show the fault."""
    old = base_of(target)
    return small_instance(
        folder,
        old,
        patch=diff(folder / "right", old, {target.module: target.fixed}).decode(),
        test_patch=diff(folder / "shows", old, {target.tests: target.files[target.tests]}).decode(),
        fail_to_pass=target.to_fix,
        pass_to_pass=target.to_keep,
        test_command=f"pytest -rA {target.tests}",
    )


def base_of(target: Target) -> dict[str, str]:
    """Return the files that an agent gets in a benchmark."""
    return {**target.files, target.tests: target.old_tests}


@dataclass(frozen=True)
class GradedTarget:
    """A target as an instance, and a grader that knows what its tests do without a patch.

    Attributes:
        folder: Holds the instance's code and the grader's state; it is deleted with this object.
    """

    target: Target
    folder: tempfile.TemporaryDirectory[str]
    instance: Instance
    grader: Grader

    @classmethod
    def of(cls, target: Target) -> GradedTarget:
        """Return the one of this process: an evaluation too grades many patches of an instance with one grader."""
        for known in _GRADED:
            if known.target is target:
                return known
        folder = tempfile.TemporaryDirectory(prefix="m3agent-graded-")
        path = Path(folder.name)
        made = cls(
            target, folder, instance_of(target, path / "instance"), Grader(path / "state", lambda _: None)
        )
        _GRADED.append(made)
        return made

    def patch(self, files: Files, folder: Path) -> bytes:
        """Return files as a patch, which is made in `folder`."""
        return diff(folder / "patch", base_of(self.target), files)

    def leaves_nothing(self, patch: bytes, folder: Path) -> bool:
        """Return whether all of a patch is put back, so that the tests run on the same files as without it."""
        code = codebase(self.instance.task, Path(self.folder.name, "state"))
        store, base = open_store(code.path, folder / "trees.git")
        patched, without = (
            grading_trees(store, base, self.instance.answer, each).tree for each in (patch, b"")
        )
        return patched == without

    async def grade(self, patch: bytes, folder: Path) -> Grade:
        """Grade a patch by the strict rules; logs go to `folder`."""
        return await self.grader.strict(self.instance, patch, None, folder)


_GRADED: list[GradedTarget] = []


async def graded(files: Files, target: Target, folder: Path) -> Grade:
    """Grade files as a patch to a target by the strict rules."""
    known = GradedTarget.of(target)
    return await known.grade(known.patch(files, folder), folder)
