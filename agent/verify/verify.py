"""Verify a patch: run the tests on the old and on the new tree, each in a fresh sandbox.

A patch is verified if all of these hold:

- A test that was red on the old tree is green on the new tree.
- Every test that was green on the old tree is green on the new tree.
- No test is red on the new tree only. This is not checked if the test run on the old tree was cut short.
- No red test stays red in the same file as a fixed test, or in a test file that the patch changes.
- Every test that was red on the old tree still runs on the new tree.
- The test run on the new tree was not cut short.

If the test files that matter cannot be imported with or without the patch, nothing can be tested, and the patch is
unverified.

The check uses the tests of the old tree:

- It undoes the patch's changes to existing test files.
- It runs test files that the patch adds on both trees, in a process of their own: in one process with the old tests they
  could change what these show. A new conftest.py is left out: it could hide tests on both.
- It undoes changes to files that decide how tests run: pytest's configuration, Python's start-up files, and new modules
  that shadow modules of Python or pytest.

If the repository has several test suites, only those run that the patch touches, and those that depend on them
(`m3agent.agent.verify.touched`). Results of the others count neither way.

If no test is fixed or broken, the tests that the patch adds to or changes in existing files count. They must be red on the
old code and green on the new code. A changed test must also be green on both without its change: a test that was red could
have been weakened. If an added or changed test is red on the new code, the patch has failed.

A suite is large if it took longer on the base tree than verification may take. Then only the tests that execute the
change must run (`m3agent.agent.verify.scope`), and others run as long as there is time. A test without a result on the
new tree counts neither way if the time was over. But without a result for each selected test a patch is not verified.

A patch is not verified if there are reasons to distrust the results:

- The guard in the sandbox found tampering (`m3agent.tools.in_sandbox.guard`): the patch has failed.
- A fixed test passes, and a copy of it with an inverted assertion passes as well (`m3agent.agent.verify.inverted_tests`):
  the patch has failed.
- A red test stays red that the issue is about, and only the patch's own tests show a fix: the patch has failed.
- Added code reaches for the insides of the interpreter or of the test runner (`m3agent.agent.verify.review`).
- Tests near the change turn red in further runs (`m3agent.agent.verify.stability`).
- The tests ran on a Python that the project does not accept: the patch is unverified, unless it broke a test.

If the guard cannot see everything in the image's Python, the reason of the verdict says so.

Tests that would decide the verdict run again. Flaky tests (`m3agent.agent.verify.flaky` has the rule) count neither way.
Nothing runs again if no test was fixed or broken. Nothing runs again either if the run on the new tree was cut short:
reruns cannot repair that.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.util.concurrency import all_of
from m3agent.agent.verify.build_changes import build_changes
from m3agent.agent.verify.changed_tests import changed_tests
from m3agent.agent.verify.flaky import without
from m3agent.agent.verify.inverted_runs import CopiesSeen, inverted_tree, run_copies
from m3agent.agent.verify.judge import Verdict, count, files_not_importable, judge
from m3agent.agent.verify.pair import FREE_SECONDS, OWN_TESTS, Pair, targets_of
from m3agent.agent.verify.related import related_tests
from m3agent.agent.verify.review import Finding, changes_of, findings_at, needs_review
from m3agent.agent.verify.scope import Scope, files_of_tests_near, no_time
from m3agent.agent.verify.stability import COMPARED_RUNS, SANDBOXES, Repeats, compare, repeat
from m3agent.agent.verify.suite import run_suite
from m3agent.agent.verify.touched import suites_to_run
from m3agent.agent.verify.tree_runs import BASELINE, TEST_TIMEOUT, MadeRun, TreeRuns
from m3agent.agent.verify.trees import (
    changes_undone,
    trees_to_compare,
    trees_with_new_tests,
    with_changed_tests,
)
from m3agent.sandbox.declared.accepted_pythons import minor_of
from m3agent.sandbox.declared.declared import read_required_pythons
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.python import CONFIGURATION, PYTEST
from m3agent.tools.runners.suites import file_of, files_of_tests, of_suites, suite_of, suites_of
from m3agent.tools.selection import EVERYTHING, Selection
from m3agent.tools.test_report import TestReport, joined

NOT_TESTED = "not tested on Python"
"""Start of the reason of a verdict if the tests ran on a Python that the project does not accept."""
KNOWN_SECONDS = 0.1
"""Seconds in which a result of the base tree's tests that is known arrives."""
COPIES_SECONDS = 60.0
"""Seconds after which no further inverted copy of a test starts."""


@dataclass(frozen=True)
class Verification:
    """The verdict and its evidence.

    Attributes:
        verdict: Whether the patch is believed.
        reason: The reason for the verdict, in one sentence.
        fixed, broken, still_red, new_tests, flaky: Sorted test ids; `m3agent.agent.session.events.Verify` defines the sets.
        added_red: Sorted ids of red tests that the patch adds or changes.
        undone: Sorted paths of the patch whose changes do not count: existing test files, and files that decide how
            tests run.
        errors: Error text of each red test on the new code.
        scope: The tests that the verdict rests on, if the suite is large.
        left_out: Names of the suites that did not run, because the patch does not affect them.
        weakened: Tests that an earlier verdict of the session named red and that the patch weakened, each with how.
        own_only: Whether only tests that the patch adds or changes show the fix.
        tampering: Signs that the code under test tampered with the test runs, or that the fixed tests show nothing.
        review: Lines of the patch that a person must read before its verdict can be believed.
        not_on: The minor version of Python that the project needs, if its tests ran on one that it does not accept.
        repeats: The additional runs of tests near the change, if the patch would be verified without them.
        runs: The test runs that the verdict rests on.
        before: The first test run on the old tree.
        after: The first test run on the new tree.
        old_tree: Git tree id of the old code with the patch's new test files.
        new_tree: Git tree id of the new code with the old tests.
        seconds: Wall time of the whole verification.
    """

    verdict: Verdict
    reason: str
    fixed: tuple[str, ...]
    broken: tuple[str, ...]
    still_red: tuple[str, ...]
    new_tests: tuple[str, ...]
    flaky: tuple[str, ...]
    before: TestReport
    after: TestReport
    old_tree: str
    new_tree: str
    seconds: float
    added_red: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    weakened: tuple[str, ...] = ()
    scope: Scope | None = None
    left_out: tuple[str, ...] = ()
    own_only: bool = False
    tampering: tuple[str, ...] = ()
    review: tuple[Finding, ...] = ()
    not_on: str = ""
    repeats: Repeats | None = None
    runs: tuple[MadeRun, ...] = ()


async def verify(
    workspace: Workspace,
    patch: Patch,
    runs: TreeRuns,
    reruns: int = RERUNS,
    baseline: Callable[[], Awaitable[TestReport | None]] | None = None,
    seconds: float = TEST_TIMEOUT,
    issue: str = "",
) -> Verification:
    """Run the tests on both trees and judge the patch. Each tree has its own sandbox, which the session never touched.

    Args:
        workspace: Where the patch was made.
        patch: The patch to verify.
        runs: Runs tests in fresh sandboxes.
        reruns: Most times that deciding tests run again; 0 turns the search for flaky tests off.
        baseline: Returns the result of the base tree's tests in the same kind of sandbox, complete or stopped because
            its time was over, or None. With it, only the test files that the patch adds or changes run on the old code.
        seconds: Time for the new tree's tests if those of the base tree took longer.
        issue: Text of the issue. A red test that it is about must turn green.

    Raises:
        SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started = time.monotonic()
    suites = runs.suites or await asyncio.to_thread(suites_of, workspace.store, patch.base)
    chosen = await asyncio.to_thread(suites_to_run, workspace, patch, suites)
    left_out = tuple(suite.name for suite in suites if suite not in chosen)
    elsewhere = set[str]()
    runs = replace(runs, base=patch.base, made=[], sides={patch.base: False})

    async def of_chosen(given: Callable[[], Awaitable[TestReport | None]]) -> TestReport | None:
        """Return the part of the baseline that is about the suites that run."""
        whole = await given()
        if whole is not None:
            runs.made.append(MadeRun.of(BASELINE, False, whole))
        if whole is None or not left_out:
            return whole
        elsewhere.update(ident for ident in whole.red if suite_of(ident) in left_out)
        return of_suites(whole, {suite.name for suite in chosen})

    if left_out:
        runs = replace(runs, suites=chosen, among=suites)
    known = None if baseline is None else partial(of_chosen, baseline)
    copies = _CopyRuns(workspace, runs)
    try:
        compared, further = await _compare(workspace, patch, runs, reruns, known, seconds, copies)
    finally:
        await copies.close()
        await runs.close_unused()
    builds = await asyncio.to_thread(build_changes, workspace, patch, compared.before, compared.after)
    compared = replace(compared, review=compared.review + builds, left_out=left_out)
    found = await asyncio.to_thread(_distrust, compared, workspace, patch, issue, elsewhere)
    found = await asyncio.to_thread(_with_copies, found, further.copies, workspace, patch)
    if further.repeats is not None:
        found = _with_repeats(found, further.repeats)
    found = _for_review(found)
    if any(suite.runner == PYTEST for suite in chosen):
        found = await asyncio.to_thread(_on_accepted_python, found, workspace, patch, runs.pythons)
    if found.flaky:
        found = replace(found, reason=f"{found.reason}; {count(found.flaky, 'flaky test')} not counted")
    if found.verdict == "verified" and found.after.signs.blind:
        found = replace(found, reason=f"{found.reason}; {found.after.signs.blind}")
    if left_out:
        ran = ", ".join(suite.name for suite in chosen if suite.name not in found.after.not_run)
        which = f"{f'ran {ran}; ' if ran else ''}not affected by the patch and not run: {', '.join(left_out)}"
        found = replace(found, reason=f"{found.reason}; {which}")
    return replace(found, runs=tuple(runs.made), seconds=round(time.monotonic() - started, 3))


@dataclass(frozen=True)
class _Further:
    """What further runs of the new tree show.

    Attributes:
        copies: What inverted copies of the fixed tests show.
        repeats: The additional runs of tests near the change; None if there were none.
    """

    copies: CopiesSeen = field(default_factory=CopiesSeen)
    repeats: Repeats | None = None


class _CopyRuns:
    """Runs inverted copies of fixed tests, the same ones only once.

    Args:
        workspace, runs: As for `verify`.
    """

    def __init__(self, workspace: Workspace, runs: TreeRuns) -> None:
        self._workspace = workspace
        self._runs = runs
        self._begun: dict[Hashable, asyncio.Task[CopiesSeen]] = {}

    def begin(self, tree: str, fixed: Collection[str], added: Collection[str]) -> asyncio.Task[CopiesSeen]:
        """Run copies of tests that are fixed, or seem to be while others still run.

        Args:
            tree: Git tree id of the new code with the fixed tests.
            fixed: Ids of the fixed tests.
            added: Paths of files with tests that the patch adds.
        """
        own = frozenset(file_of(ident) for ident in fixed) & {*added}
        key = tree, frozenset(fixed), own
        if key not in self._begun:
            self._begun[key] = asyncio.create_task(self._run(tree, fixed, own))
        return self._begun[key]

    async def seen(self, tree: str, fixed: Collection[str], added: Collection[str]) -> CopiesSeen:
        """Return what copies of fixed tests show. The arguments are those of `begin`."""
        return await self.begin(tree, fixed, added)

    async def close(self) -> None:
        """End the runs that nobody waits for."""
        for task in self._begun.values():
            task.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)

    async def _run(self, tree: str, fixed: Collection[str], added: Collection[str]) -> CopiesSeen:
        inverted = await asyncio.to_thread(inverted_tree, self._workspace.store, tree, fixed)
        if inverted is None:
            return CopiesSeen()
        number = itertools.count(1)

        async def run(idents: Collection[str]) -> tuple[set[str], set[str]]:
            own = {
                ident for ident in idents if file_of(ident) in added
            }  # never in one process with the old tests
            name = f"verify-inverted-{next(number)}"
            groups = {name: {*idents} - own, f"{name}-added": own}
            selections = {
                name: Selection(
                    targets_of({file_of(ident) for ident in group}), group, seconds=COPIES_SECONDS
                )
                for name, group in groups.items()
                if group
            }
            reports = await all_of(*(self._runs.run(inverted.tree, *each) for each in selections.items()))
            passed = {ident for report in reports for ident in report.passed}
            return passed, {ident for report in reports for ident in report.ids}

        return await run_copies(inverted, run)


def _with_copies(
    compared: Verification, copies: CopiesSeen, workspace: Workspace, patch: Patch
) -> Verification:
    """Return the verdict after inverted copies of the fixed tests ran."""
    if compared.verdict != "verified":
        return compared
    reasons = copies.reasons(compared.review)
    lines = copies.to_read(lambda: changes_of(workspace, patch, compared.undone))
    compared = replace(compared, review=(*compared.review, *lines))
    if not reasons:
        return compared
    reason = f"the fixed tests show nothing: {reasons[0]}"
    return replace(compared, verdict="failed", reason=reason, tampering=(*compared.tampering, *reasons))


def _tests_near(workspace: Workspace, tree: str, patch: Patch, fixed: Collection[str]) -> Selection:
    """Return the tests of a tree near a change: in files with a fixed test, or of a changed module; else all tests."""
    files = {file_of(ident) for ident in fixed} & workspace.entries(tree).keys()
    files |= files_of_tests_near(workspace, tree, patch.paths)
    return Selection(targets_of(files)) if files else EVERYTHING


def _distrust(
    compared: Verification, workspace: Workspace, patch: Patch, issue: str, elsewhere: Collection[str]
) -> Verification:
    """Change a verdict that the patch itself may have brought about.

    Args:
        compared: What the test runs say.
        workspace, patch, issue: As for `verify`.
        elsewhere: Ids of the red tests of the base tree in suites that did not run, as far as they are known.
    """
    if compared.tampering and compared.verdict != "failed":
        reason = f"the code under test tampered with the test run: {compared.tampering[0]}"
        return replace(compared, verdict="failed", reason=reason)
    if compared.verdict != "verified":
        return compared
    if compared.own_only:
        theirs = {*compared.still_red, *elsewhere} - {*compared.new_tests}
        related = related_tests(workspace, patch.base, issue, theirs)
        if related:
            names = f"{min(related)}{f' and {len(related) - 1} more' if len(related) > 1 else ''}"
            reason = f"red before and after the patch, and the issue is about it: {names}"
            return replace(compared, verdict="failed", reason=reason)
        compared = replace(compared, reason=f"{compared.reason}; shown only by the patch's own tests")
    return compared


def _for_review(compared: Verification) -> Verification:
    if compared.verdict != "verified" or not compared.review:
        return compared
    first, *others = compared.review
    more = f", and {len(others)} more" if others else ""
    reason = (
        f"needs review: {first.path}:{first.line} {first.what}{more}; its tests cannot show that it works "
        f"({compared.reason})"
    )
    return replace(compared, verdict="unverified", reason=reason)


def _on_accepted_python(
    compared: Verification, workspace: Workspace, patch: Patch, pythons: Collection[str]
) -> Verification:
    """Return the verdict if tests on some Pythons may not count.

    Args:
        compared: What the test runs say.
        workspace, patch: As for `verify`.
        pythons: The versions of the Pythons on which the tests ran.
    """
    accepted = read_required_pythons(files_of(Workspace(workspace.store, patch.base)))
    others = [python for python in sorted(pythons) if minor_of(python) not in accepted]
    if not accepted or not others or compared.broken or compared.tampering:
        return compared
    reason = f"{NOT_TESTED} {accepted[0]}, which the project needs; on {others[0]}: {compared.reason}"
    return replace(compared, verdict="unverified", reason=reason, not_on=accepted[0])


def _with_repeats(compared: Verification, repeats: Repeats) -> Verification:
    """Return the verdict after the additional runs."""
    if compared.verdict != "verified":
        return compared
    compared = replace(compared, repeats=repeats)
    if repeats.broken:
        reason = (
            f"{count(repeats.broken, 'test')} red in several of {COMPARED_RUNS} further runs with the patch, "
            f"and in none of {COMPARED_RUNS} without it"
        )
        return replace(
            compared,
            verdict="failed",
            reason=reason,
            broken=tuple(sorted({*compared.broken, *repeats.broken})),
            flaky=tuple(ident for ident in compared.flaky if ident not in repeats.broken),
            errors={**compared.errors, **repeats.errors},
        )
    if unstable := repeats.unstable & {*compared.fixed}:
        reason = f"unstable: {count(unstable, 'fixed test')} red in some of {repeats.runs} further runs"
        return replace(compared, verdict="unverified", reason=reason)
    flaky = {*compared.flaky, *repeats.unstable}
    return replace(compared, flaky=tuple(sorted(flaky)))


async def _compare(
    workspace: Workspace,
    patch: Patch,
    runs: TreeRuns,
    reruns: int,
    baseline: Callable[[], Awaitable[TestReport | None]] | None,
    seconds: float,
    copies: _CopyRuns,
) -> tuple[Verification, _Further]:
    """Run the tests on both trees and judge the patch by the results.

    Further runs begin as soon as the patch seems right, beside the search for flaky tests. Copies of the patch's own tests
    begin even before the old tests have ended.

    Args:
        workspace, patch, runs, reruns, baseline, seconds: As for `verify`.
        copies: Runs inverted copies of fixed tests.
    """
    started = time.monotonic()
    trees = await asyncio.to_thread(trees_to_compare, workspace, patch)
    added = trees.added
    not_own = Selection(ignore=trees.imported)
    pair = Pair(patch.base, trees.without, "", runs, reruns, not_own, trees.new_files)
    runs.start_ahead(pair.new, 1)
    known = asyncio.ensure_future(_nothing() if baseline is None else baseline())
    new_tests_selection = await asyncio.to_thread(_added_tests, workspace, patch, added)
    of_added = Pair(trees.old, trees.new, "added-", runs, reruns, new_tests_selection, trees.new_files)
    own = await asyncio.to_thread(_changed_tests, workspace, patch, runs, reruns)
    are_few = own is not None and own.selection.only and set(own.selection.only).isdisjoint(patch.paths)
    # tests that the patch adds or changes run beside the old tests, but never in one process with them
    await asyncio.wait([known], timeout=KNOWN_SECONDS)
    known_at_once = known.result() if known.done() else None
    beside = of_added if new_tests_selection.only else None, own if are_few else None
    for each in beside:
        if each is not None:
            runs.start_ahead(each.old, 1)
            runs.start_ahead(each.new, 1)
    whole = 1 if baseline is None else 0
    runs.start_ahead(pair.old, whole)
    if reruns:
        runs.start_ahead(pair.new, 1 + SANDBOXES)
        runs.start_ahead(pair.old, whole + 1)

    async def run_own(each: Pair | None) -> tuple[TestReport, TestReport] | None:
        """Run tests that the patch adds or changes, and begin with copies of those that it seems to fix."""
        if each is None:
            return None
        red, green = await each.run()
        seem_fixed = red.red & {*green.passed}
        if known_at_once is not None and seem_fixed:
            copies.begin(each.new, seem_fixed, {*added, *map(file_of, green.ids - known_at_once.ids)})
        return red, green

    def read() -> tuple[tuple[str, ...], tuple[Finding, ...]]:
        undone = changes_undone(workspace, patch)
        return undone, needs_review(workspace, patch, undone)

    (main, added_reports, own_reports), (undone, review) = await all_of(
        all_of(run_suite(workspace, patch, pair, known, seconds), run_own(beside[0]), run_own(beside[1])),
        asyncio.to_thread(read),
    )
    reports, scope = main.reports, main.scope
    pair = replace(pair, selection=main.selection, parts=main.parts)

    def in_time() -> Selection:
        """Return the tests that are compared, in the time that is left if the suite is large."""
        if scope is None:
            return pair.selection
        left = seconds - (time.monotonic() - started)
        return replace(pair.selection, seconds=max(FREE_SECONDS, left))

    async def run_further(
        tree: str,
        fixed: Collection[str],
        files: Collection[str],
        repeats: asyncio.Future[list[TestReport]] | None,
    ) -> _Further:
        if verdict != "verified":
            return _Further()

        async def compared() -> Repeats | None:
            if repeats is None:
                return None
            again = await repeats
            return await compare(replace(pair, selection=in_time()), reports, again)

        return _Further(*await all_of(copies.seen(tree, fixed, files), compared()))

    async def run_again(fixed: Collection[str]) -> list[TestReport]:
        near = in_time()
        if scope is None:
            near = await asyncio.to_thread(_tests_near, workspace, pair.new, patch, fixed)
        return await repeat(pair, reports[1], near)

    def repeats_of(fixed: Collection[str]) -> asyncio.Future[list[TestReport]] | None:
        """Start the additional runs, if the patch would be verified without them and every selected test had time."""
        wanted = verdict == "verified" and reruns and (scope is None or not scope.untimed)
        return asyncio.ensure_future(run_again(fixed)) if wanted else None

    if scope is not None and not are_few:
        own = None  # changed test files that may affect every test would need the whole suite twice
    before, after = reports
    if added_reports is not None:
        before, after = (joined(*both) for both in zip(reports, added_reports, strict=True))
    touched = set(patch.paths)
    files, base = files_of_tests(workspace.store, patch.base), workspace.entries(patch.base)
    surroundings = sorted(path for path in patch.paths if files.is_surrounding(path, base))
    missing = files_not_importable(before, after, added)
    verdict, reason, (fixed, broken, still_red) = judge(before, after, touched, missing, (), surroundings)
    flaky = frozenset[str]()
    further = _Further()
    if after.complete:
        is_added = {ident for ident in fixed | broken | still_red if file_of(ident) in added}
        seemed_right = verdict == "verified"
        repeats = repeats_of(fixed)
        old_flaky, new_flaky, further = await all_of(
            pair.find_flaky(
                reports,
                (fixed | broken) - is_added,
                still_red - is_added,
                repeats if scope is None else None,
            ),
            of_added.find_flaky(added_reports or reports, (fixed | broken) & is_added, still_red & is_added),
            run_further(trees.new, fixed, added, repeats),
        )
        flaky = old_flaky | new_flaky
        verdict, reason, (fixed, broken, still_red) = judge(
            without(before, flaky), without(after, flaky), touched, missing, (), surroundings
        )
        if verdict == "verified" and not seemed_right:
            further = await run_further(trees.new, fixed, added, repeats_of(fixed))
    tampering = after.signs.beyond(before.signs, patch.paths)
    built = {place.path for place in after.signs.reached} - workspace.entries(patch.base).keys()
    reached = after.signs.reached_beyond(before.signs, {*patch.paths, *built})
    added_red = {i for i in after.red - flaky if file_of(i) in added}
    errors = dict(after.errors)
    shown = set[str]()
    new_tests = {i for i in after.ids - {*after.skipped} if file_of(i) in added}
    if own is not None and after.complete and not broken:
        red, green = own_reports or await own.run()
        tampering += green.signs.beyond(red.signs, patch.paths)
        reached += green.signs.reached_beyond(red.signs, patch.paths)
        written = (green.ids - {*green.skipped}) - before.ids
        new_tests |= written
        changed = {*before.passed} & {*after.passed}
        if not fixed:  # the repository's own tests are the better evidence
            shown = (written | changed) & red.red & {*green.passed}
        if green.complete:
            verdict, _, _ = judge(
                without(before, flaky), without(after, flaky), touched, missing, shown, surroundings
            )
            own_flaky, own_further = await all_of(
                own.find_flaky((red, green), shown | green.red),
                run_further(own.new, shown, set(map(file_of, new_tests)), repeats_of(shown))
                if shown
                else _nothing(),
            )
            further = own_further or further
            flaky |= own_flaky
            shown -= own_flaky
            verdict, reason, _ = judge(
                without(before, flaky), without(after, flaky), touched, missing, shown, surroundings
            )
            changed_red = green.red - flaky - missing.keys() - before.red
            added_red |= changed_red
            errors |= green.errors
            fixed = shown if shown and verdict == "verified" else fixed
            if changed_red:
                is_are = "is" if len(changed_red) == 1 else "are"
                verdict = "failed"
                reason = f"{count(changed_red, 'test')} that the patch adds or changes {is_are} red"
    if after.not_run:
        name, why = min(after.not_run.items())
        if after.ran:
            reason += f"; the tests of {name} could not run here: {why}"
        elif verdict == "unverified":
            reason = f"cannot be tested here, because the tests of {name} could not run: {why}"
    if scope is not None and scope.untimed and verdict != "failed":
        verdict, reason = "unverified", no_time(seconds)
    if trees.inseparable and verdict == "verified":
        verdict = "unverified"
        reason = f"the tests in {trees.inseparable[0]} cannot be told apart from its code ({reason})"
    if scope is not None:
        reason += f" ({scope.sentence()})"
    patched = workspace.entries(patch.tree)
    reached = [place for place in reached if place.path not in undone]
    review += await asyncio.to_thread(
        findings_at,
        reached,
        lambda path: workspace.store.get_blob(patched[path].sha) if path in patched else b"",
    )
    own_only = verdict == "verified" and all(file_of(ident) in added for ident in fixed - shown)
    found = Verification(
        verdict,
        reason,
        fixed=tuple(sorted(fixed)),
        broken=tuple(sorted(broken)),
        still_red=tuple(sorted(still_red)),
        new_tests=tuple(sorted(new_tests)),
        flaky=tuple(sorted(flaky)),
        added_red=tuple(sorted(added_red)),
        undone=undone,
        errors=errors,
        scope=scope,
        before=before,
        after=after,
        old_tree=trees.old,
        new_tree=trees.new,
        own_only=own_only,
        tampering=tuple(tampering),
        review=review,
        seconds=0.0,  # `verify` knows it
    )
    return found, further


async def _nothing() -> None:
    return None


def _added_tests(workspace: Workspace, patch: Patch, added: Sequence[str]) -> Selection:
    """Return the tests in the test files that a patch adds.

    Args:
        workspace, patch: As for `verify`.
        added: Paths of all files that the patch adds to the tests, also of those without tests.
    """
    files = files_of_tests(workspace.store, patch.base)
    modules = [path for path in added if files.has_tests(path)]
    others = [path for path in added if path.endswith(".py") and path not in modules]
    if not others:
        return Selection(targets_of(modules), modules)
    base = workspace.entries(patch.base)
    settings = (workspace.store.get_blob(base[path].sha) for path in CONFIGURATION & base.keys())
    if any(b"python_files" in text for text in settings):  # pytest knows which of them are test files
        return Selection(only=[*modules, *others])
    return Selection(targets_of(modules), modules)


def _changed_tests(workspace: Workspace, patch: Patch, runs: TreeRuns, reruns: int) -> Pair | None:
    """Return the old and the new code with the tests that a patch adds to or changes in existing test files.

    A changed file without tests of its own, such as conftest.py or a file with data, may affect every test.

    Returns:
        None if there are no such tests.
    """
    trees = trees_with_new_tests(workspace, patch)
    if trees is None:
        return None
    pair = Pair(*trees, OWN_TESTS, runs, reruns)
    files = files_of_tests(workspace.store, patch.base)
    changed = {path for path in patch.paths if files.is_test(path)}
    if not all(map(files.has_tests, changed)):
        return pair
    changed |= with_changed_tests(workspace, patch, files).keys()
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    only = set[str]()
    for path in changed & patched.keys() & base.keys():
        old, new = (workspace.store.get_blob(tree[path].sha) for tree in (base, patched))
        names = changed_tests(old, new) if path.endswith(".py") else None
        only |= {path} if names is None else {f"{path}::{name}" for name in names}
    if not only:
        return None
    return replace(pair, selection=Selection(targets_of({file_of(ident) for ident in only}), only))
