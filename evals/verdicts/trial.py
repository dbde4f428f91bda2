"""Verify the variants of fixes, and label those whose label only the commit's own tests know."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from m3agent.agent.certificate.build import Change
from m3agent.agent.certificate.statement import Base, Source
from m3agent.agent.patches.verification import VerifyRequest, fresh_runs_for, verify_change
from m3agent.agent.verify.accuracy import Trial
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.evals.create.history import CommitHistory
from m3agent.evals.verdicts.variants import MUTANTS, RIGHT, Fix, Variant, faulty, variants_of
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import file_of, files_of_tests
from m3agent.tools.test_report import TestReport


@dataclass(frozen=True)
class Shown:
    """What a fix's tests show, without the verification that is measured."""

    turned: frozenset[str]
    """Ids of the tests that are red without the code, and pass with it in both runs."""
    kept: frozenset[str]
    """Ids of the tests that pass without the code, and with it in both runs."""

    def lost(self, report: TestReport) -> frozenset[str]:
        """Return the tests that do not pass in a run."""
        return (self.turned | self.kept) - {*report.passed}


@dataclass(frozen=True)
class FixTrials:
    """Verifies variants of fixes."""

    request: VerifyRequest
    """The repository and the settings. Its source is not read."""
    history: CommitHistory
    state: Path
    folder: Path
    seed: int
    say: Callable[[str], None]

    async def of(self, fix: Fix) -> AsyncIterator[Trial]:
        """Yield what verification says about the variants of a fix; nothing if its tests do not show it.

        Raises:
            EnvironmentFault, SandboxError: This machine cannot test the fix.
        """
        store, random = self.history.store, Random(f"{self.seed} {fix.commit}")  # noqa: S311 (repeatable, and no secret)
        tested = Workspace(store, fix.tested)
        runs, _, _ = await fresh_runs_for(self.request, tested, self.state, self.folder, self.say)
        try:
            shown = await _shown(runs, fix)
            if shown is None:
                return
            variants = variants_of(store, fix, lambda: _other_tests(self.history, fix, shown))
            for variant in variants:
                yield await self._trial(fix, variant)
            mutants = 0
            for variant in faulty(store, fix, random):
                if variant.kind == "mutant" and mutants == MUTANTS:
                    return
                if await _is_wrong(runs, variant, shown):
                    mutants += variant.kind == "mutant"
                    yield await self._trial(fix, variant)
        finally:
            await runs.sandboxes.close_unused()

    async def _trial(self, fix: Fix, variant: Variant) -> Trial:
        started, workspace = time.monotonic(), Workspace(self.history.store, variant.base)
        patch = workspace.patch(variant.tree)
        base = Base(commit=fix.parent, tree=variant.base, uncommitted=0)
        change = Change(workspace, patch, patch.text, base, Source(kind="commits", commit=None))
        # no notes: a trial has a line of its own
        found, _ = await verify_change(change, self.request, self.state, self.folder, lambda _: None)
        return Trial(
            commit=fix.commit,
            kind=variant.kind,
            is_right=variant.kind in RIGHT,
            verdict=found.verdict,
            rule=found.rule,
            reason=found.reason,
            seconds=round(time.monotonic() - started, 1),
        )


async def _shown(runs: TreeRuns, fix: Fix) -> Shown | None:
    """Run the commit's tests without its code and twice with it; None if they do not show the fix."""
    before = await runs.run(fix.tested, "label-before")
    after = [await runs.run(fix.whole, f"label-after-{number}") for number in (1, 2)]
    if not all(report.complete for report in after):
        return None
    passed = frozenset(after[0].passed) & frozenset(after[1].passed)
    kept = passed & frozenset(before.passed)
    skipped = before.ids - before.red - {*before.passed}
    turned = passed - kept - skipped
    return Shown(turned, kept) if turned else None


async def _is_wrong(runs: TreeRuns, variant: Variant, shown: Shown) -> bool:
    """Return whether a test that shows the fix, or that passed before, is red with a variant in two runs."""
    lost = shown.turned | shown.kept
    for number in (1, 2):
        lost &= shown.lost(await runs.run(variant.tree, f"label-{variant.kind.replace(' ', '-')}-{number}"))
        if not lost:
            return False
    return True


def _other_tests(history: CommitHistory, fix: Fix, shown: Shown) -> str | None:
    """Return another file of tests. The fix does not change it, and its tests pass. None if there is no such file."""
    files = files_of_tests(history.store, fix.tested)
    paths = {file_of(ident) for ident in shown.kept} - {*fix.code, *fix.tests}
    return min((path for path in paths if files.is_test(path)), default=None)
