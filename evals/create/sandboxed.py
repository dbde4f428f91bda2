"""Validates an instance in sandboxes: its tests at the base with the test patch alone, and twice with the fix as well.

The environment is the one that `fix` itself would make of the repository's files, with packages of the instance's
day. There is no network, and nothing of one run reaches another.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from m3agent.evals.create.build import Validated
from m3agent.evals.data.instance import Instance
from m3agent.sandbox.env_build import EnvironmentFailed
from m3agent.sandbox.environment import find_environment
from m3agent.sandbox.git import GitFailed, TreeStore
from m3agent.sandbox.open import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.workspace import Workspace
from m3agent.tools.test_runner import TestReport, run_in_sandbox

INDEX = "index-applied"


@dataclass(frozen=True)
class SandboxValidator:
    """A `Validator` with what this machine has. state: our state folder; timeout: seconds for one run of the tests."""

    spec: SandboxSpec
    backend: Backend
    state: Path
    say: Callable[[str], None]
    timeout: float = 600.0

    async def __call__(self, instance: Instance, folder: Path) -> Validated:
        """See `Validator`."""
        with tempfile.TemporaryDirectory() as scratch:
            store, base = await asyncio.to_thread(_unpacked, instance, Path(scratch))
            return await self._validate(instance, folder, store, base)

    async def _validate(self, instance: Instance, folder: Path, store: TreeStore, base: str) -> Validated:
        answer = instance.answer
        try:
            before = await asyncio.to_thread(_applied, store, base, [answer.test_patch])
            after = await asyncio.to_thread(_applied, store, base, [answer.test_patch, answer.patch])
        except GitFailed as error:
            return Validated(reason=f"the patches do not apply: {error}")
        spec = self.spec
        if self.backend == "docker" and spec.image is None:
            newest = instance.task.environment.exclude_newer
            day = newest.isoformat() if newest is not None else None
            try:
                image = await find_environment(
                    Workspace(store, before), self.state, self.say, exclude_newer=day
                )
            except EnvironmentFailed as error:
                return Validated(reason=f"its environment cannot be made: {error}")
            spec = replace(spec, image=image)
        targets = answer.test_command.split()[2:]
        runs = []
        for number, tree in enumerate((before, after, after)):
            async with new_sandbox(self.backend, spec, Workspace(store, tree), self.say) as sandbox:
                log = folder / f"run-{number}.log"
                runs.append(await run_in_sandbox(sandbox, *targets, timeout=self.timeout, log=log))
        return compared(runs[0], runs[1:])


def compared(before: TestReport, after: Sequence[TestReport]) -> Validated:
    """What the runs say together; only tests that pass in each of the later ones count."""
    for report in after:
        if report.timed_out:
            return Validated(reason="the tests take too long with the fix")
        if not report.complete or not report.passed:
            return Validated(reason="the tests cannot be run with the fix: " + _why(report))
    passed = set.intersection(*(set(report.passed) for report in after))
    kept = passed & set(before.passed)
    # a test that is skipped at the base was not shown to need the fix
    fixed = passed - kept - set(before.skipped)
    return Validated(tuple(sorted(fixed)), tuple(sorted(kept)), before.errors)


def _why(report: TestReport) -> str:
    """The last line that the runner said, or the error of what it could not run."""
    said = next(iter(report.errors.values()), "") or report.output
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "none ran"


def _unpacked(instance: Instance, folder: Path) -> tuple[TreeStore, str]:
    source = instance.task.source
    with tarfile.open(source.location) as archive:
        archive.extractall(folder, filter="data")
    store = TreeStore(next(folder.glob("*.git")))
    return store, store.git("rev-parse", "--verify", f"{source.ref}^{{commit}}").decode().strip()


def _applied(store: TreeStore, base: str, patches: Sequence[str]) -> str:
    """The tree of the base with these patches."""
    store.git("read-tree", base, index=INDEX)
    for patch in patches:
        store.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch.encode(), index=INDEX)
    return store.git("write-tree", index=INDEX).decode().strip()
