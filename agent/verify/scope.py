"""Compare the tests that the base tree has: all of them, or of a large suite those that a patch can influence.

The base tree's test run records which functions each test executes (`m3agent.tools.execution_map`). A test is selected if
it executes a changed function. It is selected too if nothing is known about it: it ran before the recording began, or
it starts other processes, or its file calls a changed function while it is imported. If a change cannot be attributed to
functions, or to one that runs while other modules are imported, every test is selected.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from m3agent.agent.verify.affected import affected_code
from m3agent.agent.verify.flaky import outcomes, without
from m3agent.agent.verify.pair import Pair, targets_of
from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.related import files_of_tests_near
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection
from m3agent.tools.runners.suites import file_of, files_of_tests
from m3agent.tools.test_report import EMPTY, TestReport, joined
from m3agent.util.concurrency import all_of
from m3agent.util.counted import counted


@dataclass(frozen=True)
class Scope:
    """The tests that a verdict on a large suite rests on."""

    tests: int
    """Number of tests with a result on the base tree."""
    selected: int
    """Number of tests that execute the change, or may do so."""
    ran: int = 0
    """Number of selected tests that ran on the new tree."""
    others: int = 0
    """Number of other tests that ran on the new tree."""
    everything: str = ""
    """Why all tests are selected; empty if the change was attributed to functions."""
    complete: bool = True
    """Whether all tests of the base tree had time to run."""

    @property
    def untimed(self) -> int:
        """Number of selected tests without a result: the time was over."""
        return self.selected - self.ran

    def sentence(self) -> str:
        """Return the scope for people, such as `187 of 12,304 tests execute the change: all ran; 2,100 others ran`."""
        what = (
            f"all {self.tests:,} tests may be affected ({self.everything})"
            if self.everything
            else f"{self.selected:,} of {self.tests:,} tests execute the change or may do so"
        )
        ran = f"{self.ran:,}" if self.untimed else "all" if self.selected else "none"
        others = f"; {counted(self.others, 'other')} ran" if self.others else ""
        rest = "" if self.complete else "; the unchanged tree's run had no time for more tests"
        return f"{what}: {ran} ran{others}{rest}"


def selected_tests(workspace: Workspace, base: str, new: str, known: TestReport) -> tuple[set[str], str]:
    """Return the ids of the tests that a change may influence, and why these are all tests, if so."""
    changes, other_mode = _changes_of_code(workspace, base, new)
    if other_mode:
        return known.ids, f"{other_mode} has another file mode"
    if known.executed is None or known.executed.imports is None:
        return known.ids, "it is not known which tests execute which code"
    files = {file_of(ident) for ident in known.ids}
    affected = affected_code(changes, files)
    if affected.everything:
        return known.ids, affected.everything
    imports = known.executed.imports
    importing = {file_of(ident): ident for ident in imports.tests_that_execute(affected.has)}
    if shared := sorted(importing.keys() - files):
        functions = imports.functions_of(importing[shared[0]])
        found = next(each for each in functions if affected.has(*each))
        return known.ids, f"{found[2]} in {found[0]} runs while the tests are imported"
    recorded = known.executed.executed.keys() - {*known.executed.elsewhere}
    own = {ident for ident in known.ids if file_of(ident) in changes or file_of(ident) in importing}
    return (known.executed.tests_that_execute(affected.has) | own | known.ids - recorded) & known.ids, ""


def _changes_of_code(workspace: Workspace, base: str, new: str) -> tuple[Contents, str]:
    """Return the changed files that are no tests, and the path of one whose file mode changed, if there is one."""
    trees = workspace.entries(base), workspace.entries(new)
    is_test = files_of_tests(workspace.store, base).is_test
    contents = dict[str, tuple[bytes | None, bytes | None]]()
    for path in sorted({*trees[0], *trees[1]}):
        old, now = (tree.get(path) for tree in trees)
        if old == now or is_test(path):
            continue
        if old is not None and now is not None and old.mode != now.mode:
            return {}, path
        before, after = (
            None if entry is None else workspace.store.get_blob(entry.sha) for entry in (old, now)
        )
        contents[path] = before, after
    return contents, ""


def compared(
    known: TestReport, after: TestReport, selected: Collection[str], *, stopped: bool
) -> tuple[TestReport, Scope]:
    """Return the part of the base tree's report that is compared with the new tree's, and the scope.

    Args:
        selected: The tests that had to run. They are compared also if they have no result.
        stopped: Whether the time was over before all of them ran. Then those without a result are not compared.
    """
    reported = outcomes(replace(after, complete=False), known.ids).keys() | {*after.skipped}
    judged = reported if stopped else {*reported, *selected}
    decisive = {*known.passed, *known.red} & {*selected}
    ran = len(decisive & reported) if stopped else len(decisive)
    others = len(after.ids & known.ids - {*selected})
    return without(known, known.ids - judged), Scope(len(known.ids), len(decisive), ran, others)


def hung(report: TestReport) -> set[str]:
    """Return the tests of the base tree that ended at their time limit: their result shows nothing about a patch."""
    return {ident for ident in report.red if report.errors.get(ident, "").startswith("timed out after")}


REST = 0.5
"""Share of the time of a large suite until which tests start that need not run; the remaining time is for reruns."""
PARTS = min(4, os.cpu_count() or 1)
"""Sandboxes that share the tests which a change may influence. Each has its own processes and files, so that the tests of one
cannot disturb those of another. A test that needs those of another file is red in such a part on both trees, so it is flaky."""


@dataclass(frozen=True)
class SuiteRun:
    """The first run of the tests that the base tree has."""

    reports: tuple[TestReport, TestReport]
    """The reports of the old and the new tree, of the tests that are compared."""
    pair: Pair
    """The trees, with the tests that run if a deciding test needs another run beside others."""
    scope: Scope | None = None
    """The tests that were compared, if the suite is large."""


async def run_suite(
    workspace: Workspace,
    paths: Collection[str],
    pair: Pair,
    known: asyncio.Future[TestReport | None],
    seconds: float,
) -> SuiteRun:
    """Compare all tests, or those that matter most if the suite is large."""

    def large() -> TestReport | None:
        report = known.result() if known.done() else None
        return report if report is not None and (report.seconds > seconds or report.stopped) else None

    if not known.done():
        whole = asyncio.create_task(pair.run(known))  # most suites are small
        try:
            waiting: tuple[asyncio.Future[Any], ...] = known, whole
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if large() is None:
                return SuiteRun(await whole, pair)
        finally:
            known.cancel()
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)
    if (base := large()) is not None:
        return await _run_selected(workspace, paths, pair, base, seconds)
    return SuiteRun(await pair.run(known), pair)


def divided(idents: Collection[str], number: int) -> list[set[str]]:
    """Divide tests into at most `number` parts with about equally many tests. The tests of a file stay together."""
    parts = [set[str]() for _ in range(number)]
    by_file = defaultdict[str, set[str]](set)
    for ident in idents:
        by_file[file_of(ident)].add(ident)
    for _, tests in sorted(by_file.items(), key=lambda each: (-len(each[1]), each[0])):
        min(parts, key=len).update(tests)
    return [part for part in parts if part]


async def _run_selected(
    workspace: Workspace, paths: Collection[str], pair: Pair, known: TestReport, seconds: float
) -> SuiteRun:
    """Compare the tests that a change may influence, and others as long as there is time."""
    started = time.monotonic()
    selected, everything = await asyncio.to_thread(selected_tests, workspace, pair.old, pair.new, known)
    ended_at_limit = hung(known)
    selected -= ended_at_limit
    first = replace(pair.selection, seconds=seconds)

    def only(idents: Collection[str]) -> Selection:
        return replace(first, targets=targets_of({*map(file_of, idents)}), only=idents)

    parts = [] if everything else [only(part) for part in divided(selected, PARTS)]
    if everything:
        after = await pair.run_new(first) if selected else EMPTY
    else:
        reports = await all_of(*(pair.run_new(part, number) for number, part in enumerate(parts)))
        after = functools.reduce(joined, reports, EMPTY)
        first = only(selected)
    stopped = after.stopped
    left = REST * seconds - (time.monotonic() - started)
    if not everything and not stopped and left > 0:
        rest = await pair.run_new(replace(pair.selection, skip=selected, seconds=left))
        after = replace(joined(after, rest), complete=after.complete)
    elif stopped:
        after = replace(after, complete=True)
    after = without(after, ended_at_limit if known.complete else ended_at_limit | (after.ids - known.ids))
    before, scope = compared(known, after, selected, stopped=stopped)
    before = replace(without(before, ended_at_limit), complete=True, seconds=after.seconds)
    shared = replace(pair, selection=first, parts=parts)
    if known.complete:
        return SuiteRun((before, after), shared, replace(scope, everything=everything))
    near = await asyncio.to_thread(files_of_tests_near, workspace, pair.old, paths)
    near -= {file_of(ident) for ident in known.ids}
    if near:
        unknown = Selection(targets_of(near), near, pair.selection.ignore, seconds=seconds)
        more = await replace(pair, prefix="near-", selection=unknown).run()
        before, after = joined(before, more[0]), joined(after, more[1])
    return SuiteRun((before, after), shared, replace(scope, everything=everything, complete=False))
