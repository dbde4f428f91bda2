"""Verify the variants of fixes, and label those whose label only the commit's own tests know."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from m3agent.agent.fix.compared_runs import baseline_run
from m3agent.agent.patches.verification import VerifyRequest, fresh_runs_for
from m3agent.agent.verify.accuracy import Trial
from m3agent.agent.verify.baseline import BaselineRun
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
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


class NoTests(Exception):
    """Of a fix's tree, no test passes here: the tests may need what this machine lacks."""


@dataclass(frozen=True)
class Base:
    """A tree that patches start from. Its tests run once."""

    runs: TreeRuns
    baseline: BaselineRun


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
            NoTests: No test of the fix passes here.
            EnvironmentFault, SandboxError: This machine cannot test the fix.
        """
        store, random = self.history.store, Random(f"{self.seed} {fix.commit}")  # noqa: S311 (repeatable, and no secret)
        async with self._base(fix.tested) as tested:
            shown = await _shown(tested, fix)
            if shown is None:
                return
            for variant in variants_of(store, fix, lambda: _other_tests(self.history, fix, shown)):
                if variant.base == fix.tested:
                    trial, _ = await self._trial(fix, variant, tested)
                else:
                    async with self._base(variant.base) as base:
                        trial, _ = await self._trial(fix, variant, base)
                yield trial
            async for trial in self._wrong(fix, faulty(store, fix, random), tested, shown):
                yield trial

    async def _wrong(
        self, fix: Fix, variants: Iterable[Variant], base: Base, shown: Shown
    ) -> AsyncIterator[Trial]:
        """Yield the trials of those variants with which the same test is red twice that shows the fix, or that passed before.

        The verification's own run of the tests is the second one, unless it says nothing about these tests.
        """
        mutants = 0
        for variant in variants:
            if variant.kind == "mutant" and mutants == MUTANTS:
                return
            if lost := shown.lost(await base.runs.run(variant.tree, "label")):
                trial, found = await self._trial(fix, variant, base)
                if lost & found.after.red or lost & shown.lost(await base.runs.run(variant.tree, "label")):
                    mutants += variant.kind == "mutant"
                    yield trial

    @contextlib.asynccontextmanager
    async def _base(self, tree: str) -> AsyncIterator[Base]:
        request, workspace = self.request, Workspace(self.history.store, tree)
        runs, spec, backend = await fresh_runs_for(request, workspace, self.state, self.folder, self.say)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(runs.sandboxes.close_unused)
            untouched = await runs.sandboxes.first(tree)
            # nothing is kept: no other call needs the tests of such a tree
            baseline = baseline_run(runs, untouched, spec, backend, request.settings, None, lambda _: None)
            stack.push_async_callback(baseline.close)
            # most variants are wrong, and would not use what starts ahead
            yield Base(replace(runs, sandboxes=replace(runs.sandboxes, ahead=False)), baseline)

    async def _trial(self, fix: Fix, variant: Variant, base: Base) -> tuple[Trial, Verification]:
        settings, workspace = self.request.settings, Workspace(self.history.store, variant.base)
        patch, seconds = workspace.patch(variant.tree), 60 * settings.verify_minutes
        found = await verify(workspace, patch, base.runs, settings.reruns, base.baseline.partial, seconds)
        trial = Trial(
            commit=fix.commit,
            kind=variant.kind,
            is_right=variant.kind in RIGHT,
            verdict=found.verdict,
            rule=found.rule,
            reason=found.reason,
            seconds=round(found.seconds, 1),
        )
        return trial, found


async def _shown(base: Base, fix: Fix) -> Shown | None:
    """Run the commit's tests without its code and twice with it.

    Returns:
        None if the tests cannot label a patch: none shows the fix, two runs with the code differ, or a test is red with the code
        that passes without it or is in a file that shows the fix, because it needs what this machine lacks.

    Raises:
        NoTests: None passes with the code.
    """
    # the tests may end the process without the code
    before = await base.baseline.partial() or await base.runs.run(fix.tested, "label-before")
    after = [await base.runs.run(fix.whole, f"label-after-{number}") for number in (1, 2)]
    passed = {*after[0].passed}
    if not passed:
        raise NoTests
    if not all(report.complete for report in after) or passed != {*after[1].passed}:
        return None
    kept, red = frozenset(before.passed), after[0].red
    skipped = before.ids - before.red - kept
    turned = frozenset(passed - kept - skipped)
    near = {*map(file_of, turned)} & {*map(file_of, red)}
    return Shown(turned, kept & passed) if turned and not near and not kept & red else None


def _other_tests(history: CommitHistory, fix: Fix, shown: Shown) -> str | None:
    """Return another file of tests. The fix does not change it, and its tests pass. None if there is no such file."""
    files = files_of_tests(history.store, fix.tested)
    paths = {file_of(ident) for ident in shown.kept} - {*fix.code, *fix.tests}
    return min((path for path in paths if files.is_test(path)), default=None)
