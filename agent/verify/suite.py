"""Compare the tests that the base tree has: all of them, or those that matter if the suite is large."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from m3agent.agent.verify.flaky import without
from m3agent.agent.verify.pair import Pair, targets_of
from m3agent.agent.verify.related import files_of_tests_near
from m3agent.agent.verify.scope import Scope, compared, hung, selected_tests
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import EMPTY, TestReport, joined
from m3agent.util.concurrency import all_of

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
    """Compare all tests, or those that matter most if the suite is large.

    Args:
        workspace: Holds the trees.
        paths: Paths that the patch changes.
        pair: The old and the new tree.
        known: The result of the base tree's tests.
        seconds: Time for the new tree's tests.
    """

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
    files = Counter(map(file_of, idents))
    part_of: dict[str, set[str]] = {}
    sizes = [0] * number
    for file, count in sorted(files.items(), key=lambda each: (-each[1], each[0])):
        least = sizes.index(min(sizes))
        sizes[least] += count
        part_of[file] = parts[least]
    for ident in idents:
        part_of[file_of(ident)].add(ident)
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
