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

If no test is fixed or broken, the tests that the patch wrote into existing files count. They must have new ids, be red on
the old code and green on the new code. If one of them, or a test that the patch changed, is red on the new code, the
patch has failed.

A suite is large if it took longer on the base tree than verification may take. Then only the tests that execute the
change must run (`m3agent.agent.verify.scope`), and others run as long as there is time. A test without a result on the
new tree counts neither way if the time was over. But without a result for each selected test a patch is not verified.

Tests that would decide the verdict run again. Flaky tests (`m3agent.agent.verify.flaky` has the rule) count neither way.
Nothing runs again if no test was fixed or broken. Nothing runs again either if the run on the new tree was cut short:
reruns cannot repair that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.util.concurrency import all_of
from m3agent.agent.verify.changed_tests import changed_tests
from m3agent.agent.verify.flaky import without
from m3agent.agent.verify.judge import Verdict, count, file_of, files_not_importable, judge
from m3agent.agent.verify.pair import Pair, targets_of
from m3agent.agent.verify.scope import Scope, no_time
from m3agent.agent.verify.suite import run_suite
from m3agent.agent.verify.tree_runs import TEST_TIMEOUT, Selection, TreeRuns
from m3agent.agent.verify.trees import (
    CONFIGURATION,
    changes_undone,
    is_test_file,
    is_test_module,
    trees_to_compare,
    trees_with_new_tests,
)
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.test_report import TestReport, joined

KNOWN_SECONDS = 0.1
"""Seconds in which a result of the base tree's tests that is known arrives."""


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
        weakened: Tests that an earlier verdict of the session named red and that the patch weakened, each with how.
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


async def verify(
    workspace: Workspace,
    patch: Patch,
    runs: TreeRuns,
    reruns: int = RERUNS,
    baseline: Callable[[], Awaitable[TestReport | None]] | None = None,
    seconds: float = TEST_TIMEOUT,
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

    Raises:
        SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started = time.monotonic()
    old, new, added = await asyncio.to_thread(trees_to_compare, workspace, patch)
    pair = Pair(patch.base, new, "", runs, reruns, Selection(ignore=added))
    known = asyncio.ensure_future(_nothing() if baseline is None else baseline())
    new_tests_selection = await asyncio.to_thread(_added_tests, workspace, patch, added)
    of_added = Pair(old, new, "added-", runs, reruns, new_tests_selection)
    own = await asyncio.to_thread(_changed_tests, workspace, patch, runs, reruns)
    are_few = own is not None and own.selection.only and set(own.selection.only).isdisjoint(patch.paths)
    # tests that the patch adds or changes run beside the old tests, but never in one process with them
    await asyncio.wait([known], timeout=KNOWN_SECONDS)
    main, added_reports, own_reports = await all_of(
        run_suite(workspace, patch, pair, known, seconds),
        _run_if(of_added, bool(new_tests_selection.only)),
        _run_if(own, bool(are_few)),
    )
    reports, scope = main.reports, main.scope
    pair = replace(pair, selection=main.selection)
    if scope is not None and not are_few:
        own = None  # changed test files that may affect every test would need the whole suite twice
    before, after = reports
    if added_reports is not None:
        before, after = (joined(*both) for both in zip(reports, added_reports, strict=True))
    touched = set(patch.paths)
    if any(PurePosixPath(path).name in CONFIGURATION for path in patch.paths):
        touched |= {file_of(ident) for ident in before.red}  # a configuration file affects every test file
    missing = files_not_importable(before, after, added)
    verdict, reason, (fixed, broken, still_red) = judge(before, after, touched, missing)
    flaky = frozenset[str]()
    if after.complete:
        is_added = {ident for ident in fixed | broken | still_red if file_of(ident) in added}
        old_flaky, new_flaky = await all_of(
            pair.find_flaky(reports, (fixed | broken) - is_added, still_red - is_added),
            of_added.find_flaky(added_reports or reports, (fixed | broken) & is_added, still_red & is_added),
        )
        flaky = old_flaky | new_flaky
        verdict, reason, (fixed, broken, still_red) = judge(
            without(before, flaky), without(after, flaky), touched, missing
        )
    added_red = {i for i in after.red - flaky if file_of(i) in added}
    errors = dict(after.errors)
    new_tests = {i for i in after.ids - {*after.skipped} if file_of(i) in added}
    if own is not None and after.complete and not fixed and not broken:
        red, green = own_reports or await own.run()
        written = (green.ids - {*green.skipped}) - before.ids
        new_tests |= written
        shown = written & red.red & {*green.passed}
        if green.complete:
            own_flaky = await own.find_flaky((red, green), shown | green.red)
            flaky |= own_flaky
            shown -= own_flaky
            verdict, reason, _ = judge(without(before, flaky), without(after, flaky), touched, missing, shown)
            changed_red = green.red - flaky - missing.keys() - before.red
            added_red |= changed_red
            errors |= green.errors
            fixed = shown if verdict == "verified" else fixed
            if changed_red:
                is_are = "is" if len(changed_red) == 1 else "are"
                verdict = "failed"
                reason = f"{count(changed_red, 'test')} that the patch adds or changes {is_are} red"
    if scope is not None and scope.untimed and verdict != "failed":
        verdict, reason = "unverified", no_time(seconds)
    if scope is not None:
        reason += f" ({scope.sentence()})"
    if flaky:
        reason += f"; {count(flaky, 'flaky test')} not counted"
    return Verification(
        verdict,
        reason,
        fixed=tuple(sorted(fixed)),
        broken=tuple(sorted(broken)),
        still_red=tuple(sorted(still_red)),
        new_tests=tuple(sorted(new_tests)),
        flaky=tuple(sorted(flaky)),
        added_red=tuple(sorted(added_red)),
        undone=await asyncio.to_thread(changes_undone, workspace, patch),
        errors=errors,
        scope=scope,
        before=before,
        after=after,
        old_tree=old,
        new_tree=new,
        seconds=round(time.monotonic() - started, 3),
    )


async def _nothing() -> None:
    return None


async def _run_if(pair: Pair | None, wanted: bool) -> tuple[TestReport, TestReport] | None:
    return await pair.run() if pair is not None and wanted else None


def _added_tests(workspace: Workspace, patch: Patch, added: Sequence[str]) -> Selection:
    """Return the tests in the test files that a patch adds.

    Args:
        workspace, patch: As for `verify`.
        added: Paths of all files that the patch adds to the tests, also of those without tests.
    """
    modules = [path for path in added if is_test_module(path)]
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
    pair = Pair(*trees, "new-tests-", runs, reruns)
    changed = {path for path in patch.paths if is_test_file(path)}
    if not all(map(is_test_module, changed)):
        return pair
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    only = set[str]()
    for path in changed & patched.keys() & base.keys():
        names = changed_tests(*(workspace.store.get_blob(tree[path].sha) for tree in (base, patched)))
        only |= {path} if names is None else {f"{path}::{name}" for name in names}
    if not only:
        return None
    return replace(pair, selection=Selection(targets_of({file_of(ident) for ident in only}), only))
