"""Gather the evidence about a patch: run tests on the old and on the new tree, and read what the patch adds.

The rules say what still has to run: further runs take place if the patch would be verified without them. They begin as soon as
the patch seems right, beside the search for flaky tests. Copies of the patch's own tests begin even before the old tests have
ended.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from m3agent.agent.checks.run import run_checks
from m3agent.agent.verify.changed_expectations import changed_expectations
from m3agent.agent.verify.changed_tests import changed_tests
from m3agent.agent.verify.comparisons import comparison_changes
from m3agent.agent.verify.evidence import NOT_RUN, Evidence
from m3agent.agent.verify.inverted_runs import (
    SECONDS,
    Copies,
    CopiesSeen,
    copies_of,
    joined_copies,
    run_copies,
)
from m3agent.agent.verify.other_copies import other_copies
from m3agent.agent.verify.pair import (
    FREE_SECONDS,
    NO_REPEATS,
    OWN_TESTS,
    SANDBOXES,
    Pair,
    Repeats,
    compare,
    repeat,
    targets_of,
)
from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import lines_of
from m3agent.agent.verify.related import files_of_tests_near, related_tests
from m3agent.agent.verify.review import (
    OPENS,
    Finding,
    changed_macros,
    changed_registrations,
    findings_at,
    findings_of,
    line_of,
)
from m3agent.agent.verify.rules import could_decide
from m3agent.agent.verify.scope import SuiteRun, run_suite
from m3agent.agent.verify.touched import suites_to_run
from m3agent.agent.verify.tree_runs import BASELINE, MadeRun, TreeRuns
from m3agent.agent.verify.trees import (
    Trees,
    changes_undone,
    trees_to_compare,
    trees_with_new_tests,
    with_changed_tests,
)
from m3agent.agent.verify.vacuous_tests import vacuous_tests
from m3agent.agent.verify.weaker_tests import changed_as_delivered, lessened, not_run
from m3agent.sandbox.declared.accepted_pythons import minor_of
from m3agent.sandbox.declared.declared import read_required_pythons
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.report_reader import Reading
from m3agent.tools.run_tests import EVERYTHING, Selection, Variant
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.python import CONFIGURATION, PYTEST
from m3agent.tools.runners.suites import file_of, of_suites, suite_of, suites_of
from m3agent.tools.test_report import EMPTY, Reached, TestReport, joined, missing_host
from m3agent.util.concurrency import all_of

KNOWN_SECONDS = 0.1
"""Seconds in which a result of the base tree's tests that is known arrives."""

Reports = tuple[TestReport, TestReport]
"""The reports of the old and the new tree."""
MoreRuns = asyncio.Future[list[TestReport]]
"""The further runs of the new tree."""


@dataclass(frozen=True)
class Work:
    """A patch to verify, and what runs its tests. The fields are the arguments of `m3agent.agent.verify.verify.verify`."""

    workspace: Workspace
    patch: Patch
    runs: TreeRuns
    reruns: int
    baseline: Callable[[], Awaitable[TestReport | None]] | None
    seconds: float
    issue: str
    pinned: frozenset[str] = frozenset()

    @cached_property
    def files(self) -> PatchedFiles:
        """The files of the patch."""
        return PatchedFiles(self.workspace, self.patch)

    def related(self, idents: Collection[str]) -> set[str]:
        """Return the tests among these that the issue is about."""
        return related_tests(self.workspace, self.patch.base, self.issue, idents)


async def gather(work: Work) -> Evidence:
    """Gather the evidence about a patch. Only the suites run that it affects.

    Raises SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    workspace, patch, runs, baseline = work.workspace, work.patch, work.runs, work.baseline
    suites = runs.suites or await asyncio.to_thread(suites_of, workspace.store, patch.base)
    chosen = await asyncio.to_thread(suites_to_run, work.files, suites)
    left_out = tuple(suite.name for suite in suites if suite not in chosen)
    elsewhere = set[str]()
    runs = replace(runs, base=patch.base, made=[], sides={patch.base: False})
    if left_out:
        runs = replace(runs, suites=chosen, among=suites)

    async def of_chosen() -> TestReport | None:
        """Return the part of the baseline that is about the suites that run."""
        whole = None if baseline is None else await baseline()
        if whole is None:
            return None
        runs.made.append(MadeRun.of(BASELINE, False, whole))
        elsewhere.update(ident for ident in whole.red if suite_of(ident) in left_out)
        return of_suites(whole, {suite.name for suite in chosen}) if left_out else whole

    work = replace(work, runs=runs, baseline=None if baseline is None else of_chosen)
    copies = CopyRuns(runs, work.files)
    try:
        evidence = await _with_runs(work, copies)
        if not work.files.tests.learn(evidence.before.ids).isdisjoint(patch.paths):
            # only the results show that a file which the patch changes has tests
            evidence = await _with_runs(work, copies)
    finally:
        await copies.close()
        await runs.sandboxes.close_unused()
    names = tuple(suite.name for suite in chosen)
    evidence = replace(evidence, suites=names, left_out=left_out, runs=tuple(runs.made))
    evidence = await asyncio.to_thread(_with_reading, evidence, work, chosen, elsewhere)
    if runs.checks and could_decide(evidence, "checks"):
        checks = await run_checks(runs.sandboxes, runs.checks, patch.base, patch.tree, work.seconds)
        evidence = replace(evidence, checks=checks)
    return evidence


async def _with_runs(work: Work, copies: CopyRuns) -> Evidence:
    """Run the tests of both trees, and run those again that could change the verdict."""
    started, workspace, patch, runs = time.monotonic(), work.workspace, work.patch, work.runs
    trees = await asyncio.to_thread(trees_to_compare, work.files)
    not_own = Selection(ignore=trees.imported)
    old = Pair(patch.base, trees.without, "", runs, work.reruns, not_own, trees.new_files)
    runs.sandboxes.start(old.new, 1)
    known = asyncio.ensure_future(_nothing() if work.baseline is None else work.baseline())
    tests = await asyncio.to_thread(_added_tests, work.files, trees.added)
    added = Pair(trees.old, trees.new, "added-", runs, work.reruns, tests, trees.new_files)
    own = await asyncio.to_thread(_changed_tests, work.files, runs, work.reruns)
    few = own is not None and bool(own.selection.only) and {*own.selection.only}.isdisjoint(patch.paths)
    beside = added if tests.only else None, own if few else None
    await asyncio.wait([known], timeout=KNOWN_SECONDS)
    _start_ahead(work, old, [pair for pair in beside if pair is not None])
    known_at_once = known.result() if known.done() else None
    (suite, of_added, of_own), evidence = await all_of(
        all_of(
            run_suite(workspace, patch.paths, old, known, work.seconds),
            _run_beside(beside[0], copies, trees.added, known_at_once),
            _run_beside(beside[1], copies, trees.added, known_at_once),
        ),
        asyncio.to_thread(_read, work, trees),
    )
    before, after = suite.reports
    if of_added is not None:
        before, after = joined(before, of_added[0]), joined(after, of_added[1])
    evidence = replace(evidence, before=before, after=after, scope=suite.scope)
    again = _Again(work, copies, added, own, few, suite, of_added or suite.reports, started)
    return await again.delivered(await again.own_tests(await again.old_tests(evidence), of_own))


def _start_ahead(work: Work, old: Pair, beside: Sequence[Pair]) -> None:
    """Start the sandboxes that runs will soon need."""
    for pair in beside:
        work.runs.sandboxes.start(pair.old, 1)
        work.runs.sandboxes.start(pair.new, 1)
    whole = 1 if work.baseline is None else 0
    work.runs.sandboxes.start(old.old, whole)
    if work.reruns:
        work.runs.sandboxes.start(old.new, 1 + SANDBOXES)
        work.runs.sandboxes.start(old.old, whole + 1)


async def _run_beside(
    pair: Pair | None, copies: CopyRuns, added: Collection[str], known: TestReport | None
) -> Reports | None:
    """Run tests that the patch adds or changes. Begin with copies of those that seem fixed, if the baseline is known."""
    if pair is None:
        return None
    red, green = await pair.run()
    if known is not None and (seem_fixed := red.red & {*green.passed}):
        copies.begin(pair.new, seem_fixed, {*added, *map(file_of, green.ids - known.ids)})
    return red, green


@dataclass(frozen=True)
class _Again:
    """Runs tests again that could change the verdict."""

    work: Work
    copies: CopyRuns
    added: Pair
    """The trees with the test files that the patch adds. Tests of different pairs never run in one process."""
    own: Pair | None
    """Those with the test files that the patch changes, as the patch leaves them; None if it changes none."""
    few: bool
    """Whether `own` selects only tests that the patch adds or changes. Then they run beside the old tests."""
    suite: SuiteRun
    of_added: Reports
    """The first reports of the test files that the patch adds; those of the old tests if it adds none."""
    started: float

    async def old_tests(self, evidence: Evidence) -> Evidence:
        """Run tests again that the old tree has or that are in new files, unless the new tree's run was cut short.

        Reruns cannot repair that.
        """
        if not evidence.after.complete:
            return evidence
        changed, still_red = evidence.changes.fixed | evidence.changes.broken, evidence.still_red
        added = {ident for ident in changed | still_red if file_of(ident) in evidence.added}

        async def search(repeats: MoreRuns | None) -> frozenset[str]:
            old, new = await all_of(
                self.suite.pair.find_flaky(
                    self.suite.reports,
                    changed - added,
                    still_red - added,
                    repeats if self.suite.scope is None else None,
                ),
                self.added.find_flaky(self.of_added, changed & added, still_red & added),
            )
            return old | new

        return await self._settled(evidence, evidence.new_tree, search)

    async def own_tests(self, evidence: Evidence, first: Reports | None) -> Evidence:
        """Run the tests that the patch adds to or changes in existing files, unless the patch has failed.

        In a large suite, changed test files that may affect every test do not run: they would need the whole suite twice.
        """
        own = None if self.suite.scope is not None and not self.few else self.own
        if own is None or not evidence.after.complete or evidence.changes.broken:
            return evidence
        red, green = first or await own.run()
        evidence = replace(evidence, own=(red, green))
        if not green.complete:
            return evidence
        tests = evidence.shown | green.red

        async def search(_: MoreRuns | None) -> frozenset[str]:
            return await own.find_flaky((red, green), tests)

        return await self._settled(evidence, own.new, search)

    async def delivered(self, evidence: Evidence) -> Evidence:
        """Add which tests of the base tree say less in the tree as it is delivered, if that could change the verdict."""
        if not could_decide(evidence, "delivered"):
            return evidence
        tests, covered = self._gone_in_own(evidence)
        if not tests and evidence.undone:
            tests = await self._gone_as_delivered(evidence, covered)
        return replace(evidence, lessened=tuple(tests))

    def _gone_in_own(self, evidence: Evidence) -> tuple[list[str], set[str]]:
        """Return which tests no longer run in the test files that the patch changes, and the paths of those that ran."""
        if self.own is None or evidence.own is NOT_RUN or not evidence.own[1].complete:
            return [], set()
        only = self.own.selection.only
        whole = [path for path in only if "::" not in path]
        gone = not_run(evidence.before, evidence.own[1], whole, evidence.new_tests) if whole else []
        return gone, {ident.partition("::")[0] for ident in only}

    async def _gone_as_delivered(self, evidence: Evidence, covered: Collection[str]) -> list[str]:
        """Return which tests say less in the tree as it is delivered. It runs if no reader of the files can tell.

        Args:
            covered: Paths of test files that ran as the patch leaves them.
        """
        files, tree = self.work.files, self.work.patch.tree
        paths = await asyncio.to_thread(changed_as_delivered, files, evidence.new_tree, evidence.undone)
        tests = await asyncio.to_thread(lessened, files, paths, evidence.before)
        left = [path for path in paths if path not in covered]
        if tests or not left:
            return tests
        few = all(files.tests.is_test(path) and files.tests.has_tests(path) for path in left)
        selection = Selection(targets_of(left)) if few else self._in_time()
        run = self.work.runs.run_once(tree, "verify-delivered", selection, added=self.suite.pair.added)
        return not_run(evidence.before, await run, left if few else (), evidence.new_tests)

    async def _settled(
        self,
        evidence: Evidence,
        tree: str,
        search: Callable[[MoreRuns | None], Coroutine[Any, Any, frozenset[str]]],
    ) -> Evidence:
        """Add which tests are flaky, and what further runs show if they could change the verdict.

        Args:
            search: Returns the flaky tests. It gets the further runs if they begin at the same time.
        """
        seem_fixed = evidence.fixed
        begun = evidence.copies is None and could_decide(evidence, "further runs")
        repeats = self._begin_repeats(seem_fixed) if begun else None
        flaky, further = await all_of(
            search(repeats), self._further(evidence, tree, repeats) if begun else _nothing()
        )
        evidence = replace(evidence, rerun_flaky=evidence.rerun_flaky | flaky)
        if not could_decide(evidence, "further runs"):
            return evidence
        if further is None and (evidence.copies is None or not evidence.fixed <= seem_fixed):
            further = await self._further(evidence, tree, self._begin_repeats(evidence.fixed))
        return evidence if further is None else replace(evidence, copies=further[0], repeats=further[1])

    async def _further(
        self, evidence: Evidence, tree: str, repeats: MoreRuns | None
    ) -> tuple[CopiesSeen, Repeats]:
        """Run copies of the fixed tests, and compare both trees if a test is red in some of the further runs."""
        files = {*evidence.added, *map(file_of, evidence.new_tests)}
        reviewed = bool(_hidden(evidence, self.work.files))
        copies, compared = self.copies.begin(tree, evidence.fixed, files, reviewed=reviewed), NO_REPEATS
        if repeats is not None:
            reports = await repeats
            pair = replace(self.suite.pair, selection=self._in_time())
            compared = await compare(pair, self.suite.reports, reports)
        return await copies, compared

    def _begin_repeats(self, fixed: Collection[str]) -> MoreRuns | None:
        """Start the further runs of the tests near the change."""

        async def run() -> list[TestReport]:
            near = self._in_time()
            if self.suite.scope is None:
                near = await asyncio.to_thread(_tests_near, self.work, self.suite.pair.new, fixed)
            return await repeat(self.suite.pair, self.suite.reports[1], near)

        return asyncio.ensure_future(run()) if self.work.reruns else None

    def _in_time(self) -> Selection:
        """Return the tests that are compared, in the time that is left if the suite is large."""
        if self.suite.scope is None:
            return self.suite.pair.selection
        left = self.work.seconds - (time.monotonic() - self.started)
        return replace(self.suite.pair.selection, seconds=max(FREE_SECONDS, left))


def _read(work: Work, trees: Trees) -> Evidence:
    """Return what the files say about a patch, before tests ran."""
    files, paths = work.files, work.patch.paths
    undone = changes_undone(files)
    judged = files.workspace.entries(trees.new) if undone else {}
    # a package.json is undone in part
    counted = {path: (files.old(path), files.read(judged.get(path))) for path in undone}
    return Evidence(
        EMPTY,
        EMPTY,
        trees.old,
        trees.new,
        paths=frozenset(paths),
        added=frozenset(trees.added),
        surroundings=sorted(path for path in paths if files.tests.is_surrounding(path, files.base)),
        undone=undone,
        inseparable=trees.inseparable,
        seconds=work.seconds,
        pinned=work.pinned,
        vacuous=frozenset(
            f"{path}::{name}"
            for path in filter(files.tests.is_test, paths)
            for name in vacuous_tests(path, files.new(path))
        ),
        findings=findings_of({**files.contents(undone), **counted}, files.tests.is_test),
    )


def _with_reading(
    evidence: Evidence, work: Work, suites: Sequence[Suite], elsewhere: Collection[str]
) -> Evidence:
    """Add what only a reader of the files can say now that the tests ran.

    Args:
        elsewhere: Ids of the red tests of the base tree in suites that did not run, as far as they are known.
    """
    files = work.files
    findings = evidence.findings + _hidden(evidence, files)
    if evidence.before.registrations:
        findings += changed_registrations(evidence.before.registrations, evidence.after.registrations)
        findings += changed_macros(files.contents())
    evidence = replace(evidence, findings=findings, beside=_beside(work, evidence))
    if evidence.copies is not None:
        similar = evidence.copies.to_read(lambda: files.contents(evidence.undone))
        evidence = replace(evidence, similar=similar)
    in_question = could_decide(evidence, "issue")
    if evidence.fixed and in_question:
        expected = changed_expectations(files, evidence.fixed)
        evidence = replace(evidence, similar=(*evidence.similar, *expected))
    if in_question:
        evidence = replace(evidence, related=_still_red_and_related(work, evidence, elsewhere))
    if any(suite.runner == PYTEST for suite in suites):
        accepted = read_required_pythons(files_of(Workspace(work.workspace.store, work.patch.base)))
        others = (each for each in sorted(work.runs.sandboxes.pythons) if minor_of(each) not in accepted)
        if accepted and (other := next(others, "")):
            evidence = replace(evidence, other_python=(accepted[0], other))
    return evidence


def _still_red_and_related(work: Work, evidence: Evidence, elsewhere: Collection[str]) -> frozenset[str]:
    """Return the tests that still fail and that the issue is about; none if a test that it is about turned green.

    A test that could not reach the network says nothing about the issue.
    """
    red = {*evidence.still_red, *elsewhere} - evidence.new_tests
    if evidence.own_only:
        return frozenset(work.related(red))
    related = work.related({i for i in red if missing_host(evidence.errors.get(i, "")) is None})
    return frozenset() if related and work.related(evidence.fixed) else frozenset(related)


def _beside(work: Work, evidence: Evidence) -> frozenset[str]:
    """Return the tests that stay red and that the issue is not about, if it is about a repaired one."""
    red = evidence.still_red
    return frozenset(red - work.related(red)) if red and work.related(evidence.changes.fixed) else frozenset()


def _hidden(evidence: Evidence, files: PatchedFiles) -> tuple[Finding, ...]:
    """Return the lines at which the interpreter saw more than a reader does."""
    usual, seen = evidence.before.signs, evidence.after.signs
    built = {place.path for place in seen.reached} - files.base.keys()
    places = seen.reached_beyond(usual, {*files.patch.paths, *built})
    red, green = evidence.own
    places += green.signs.reached_beyond(red.signs, {*files.patch.paths})

    def content_of(path: str) -> bytes:
        return files.new(path) or b""

    def is_new(place: Reached) -> bool:
        old = map(str.strip, lines_of(files.old(place.path) or b""))
        return line_of(lines_of(content_of(place.path)), place.line) not in old

    counted = (place for place in places if place.path not in evidence.undone)
    return findings_at((each for each in counted if each.name != OPENS or is_new(each)), content_of)


class CopyRuns:
    """Runs inverted copies of fixed tests, the same ones only once."""

    def __init__(self, runs: TreeRuns, files: PatchedFiles) -> None:
        self._runs = runs
        self._files = files
        self._begun: dict[Hashable, asyncio.Task[CopiesSeen]] = {}
        self._number = itertools.count(1)

    def _copies(self, tree: str, idents: Collection[str]) -> Copies | None:
        return copies_of(self._runs.store, tree, idents, plain=bool(self._comparison_changes))

    @cached_property
    def _comparison_changes(self) -> frozenset[str]:
        return comparison_changes(self._files.contents())

    @cached_property
    def _needs_review(self) -> bool:
        return bool(findings_of(self._files.contents(), self._files.tests.is_test))

    def begin(
        self, tree: str, fixed: Collection[str], added: Collection[str], *, reviewed: bool = False
    ) -> asyncio.Task[CopiesSeen]:
        """Run copies of tests that are fixed, or seem to be while others still run.

        Args:
            reviewed: Whether the test runs showed that a person must read lines of the patch.
        """
        own = frozenset(map(file_of, fixed)) & {*added}
        key = tree, frozenset(fixed), own, reviewed
        if key not in self._begun:
            self._begun[key] = asyncio.create_task(self._run(tree, fixed, own, reviewed=reviewed))
        return self._begun[key]

    async def close(self) -> None:
        """End the runs that nobody waits for."""
        for task in self._begun.values():
            task.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)

    async def _run(
        self, tree: str, fixed: Collection[str], own: Collection[str], *, reviewed: bool
    ) -> CopiesSeen:
        async def run(variants: Sequence[Variant], idents: Collection[str]) -> list[Reading]:
            name = f"verify-inverted-{next(self._number)}"
            return await self._runs.run_variants(tree, name, variants, idents, SECONDS)

        async def run_group(group: Collection[str]) -> CopiesSeen:
            copies = await asyncio.to_thread(self._copies, tree, group)
            if copies is None:
                return CopiesSeen()
            hidden = reviewed or self._needs_review
            decides = "code" in self._comparison_changes
            return await run_copies(copies, run, with_hidden=hidden, with_unchanged=decides)

        added = {ident for ident in fixed if file_of(ident) in own}
        groups = [group for group in ({*fixed} - added, added) if group]  # never in one process
        return joined_copies(await all_of(self._run_others(tree, fixed), *map(run_group, groups)))

    async def _run_others(self, tree: str, fixed: Collection[str]) -> CopiesSeen:
        """Run copies of tests in other languages than Python, one after the other."""
        found = list[Finding]()
        for copy in await asyncio.to_thread(lambda: [*other_copies(self._runs.store, tree, fixed)]):
            selection = Selection(targets_of({*map(file_of, copy.tests)}), [*copy.tests], seconds=SECONDS)
            report = await self._runs.run(copy.tree, f"verify-inverted-{next(self._number)}", selection)
            red = {copy.tests[ident] for ident in copy.tests.keys() - report.passed}
            found += [each for each in dict.fromkeys(copy.tests.values()) if each not in red]
        return CopiesSeen(odd=tuple(found))


def _tests_near(work: Work, tree: str, fixed: Collection[str]) -> Selection:
    """Return the tests of a tree near a change: in files with a fixed test, or of a changed module; else all tests."""
    files = {file_of(ident) for ident in fixed} & work.workspace.entries(tree).keys()
    files |= files_of_tests_near(work.workspace, tree, work.patch.paths)
    return Selection(targets_of(files)) if files else EVERYTHING


async def _nothing() -> None:
    return None


def _added_tests(files: PatchedFiles, added: Sequence[str]) -> Selection:
    """Return the tests in the test files that a patch adds."""
    modules = [path for path in added if files.tests.has_tests(path)]
    others = [path for path in added if path.endswith(".py") and path not in modules]
    if others and any(b"python_files" in (files.old(path) or b"") for path in CONFIGURATION):
        return Selection(only=[*modules, *others])  # pytest knows which of them are test files
    return Selection(targets_of(modules), modules)


def _changed_tests(files: PatchedFiles, runs: TreeRuns, reruns: int) -> Pair | None:
    """Return the old and the new code with the tests that a patch adds to or changes in existing test files.

    A changed file without tests of its own, such as conftest.py or a file with data, may affect every test.

    Returns None if there are no such tests.
    """
    trees = trees_with_new_tests(files)
    if trees is None:
        return None
    pair = Pair(*trees, OWN_TESTS, runs, reruns)
    changed = {path for path in files.patch.paths if files.tests.is_test(path)}
    if not all(map(files.tests.has_tests, changed)):
        return pair
    changed |= with_changed_tests(files).keys()
    only = set[str]()
    for path in changed:
        old, new = files.old(path), files.new(path)
        if old is not None and new is not None:
            names = changed_tests(old, new) if path.endswith(".py") else None
            only |= {path} if names is None else {f"{path}::{name}" for name in names}
    if not only:
        return None
    return replace(pair, selection=Selection(targets_of({file_of(ident) for ident in only}), only))
