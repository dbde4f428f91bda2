"""Find tests that a patch makes unstable: the tests near it run a few more times on the new tree.

A patch that breaks a test only sometimes can be lucky in the first run. So the tests near the change run again, in
several sandboxes, because luck can also depend on the sandbox. A test that turns red there also runs on the base tree.
If it is green in each run there, the patch breaks it. If not, it was flaky before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from m3agent.agent.util.concurrency import all_of
from m3agent.agent.verify.flaky import unit
from m3agent.agent.verify.pair import FREE_SECONDS, Pair, targets_of
from m3agent.tools.runners.suites import file_of
from m3agent.tools.selection import Selection
from m3agent.tools.test_report import TestReport

SANDBOXES, TIMES = 3, 2
"""Number of sandboxes, and most additional runs in each.

A test that fails every other time is green in all seven runs with a probability of 1 in 128.
"""
BASE_TIMES = 10
"""Runs on the base tree that show that a test is stable there."""
BASE_SECONDS = 300.0


@dataclass(frozen=True)
class Repeats:
    """What the additional runs showed.

    Attributes:
        runs: Number of additional runs of the new tree.
        seconds: Duration of all additional runs.
        broken: Tests that are red in some runs of the new tree, and in none of the base tree.
        unstable: Other tests that are red in some runs of the new tree and green in others.
        errors: Error text of each of these tests.
    """

    runs: int
    seconds: float
    broken: frozenset[str]
    unstable: frozenset[str]
    errors: dict[str, str]


async def repeat(pair: Pair, after: TestReport, selection: Selection) -> list[TestReport]:
    """Run tests of the new tree a few more times.

    Args:
        pair: The old and the new tree.
        after: The first report of the new tree.
        selection: The tests near the change.

    Raises:
        SandboxError: A sandbox failed.
    """
    seconds = max(FREE_SECONDS, after.seconds)
    names = [f"verify-repeat-{number}" for number in range(1, SANDBOXES + 1)]
    runs = await all_of(*(pair.runs.repeat(pair.new, name, selection, TIMES, seconds) for name in names))
    return [report for some in runs for report in some]


async def compare(pair: Pair, first: tuple[TestReport, TestReport], reports: Sequence[TestReport]) -> Repeats:
    """Find the tests that are red in some of the additional runs, and run them on the old tree.

    Args:
        pair: The old and the new tree.
        first: The first reports of the old and the new tree.
        reports: The additional runs.

    Raises:
        SandboxError: A sandbox failed.
    """
    before, after = first
    times = Counter(ident for report in reports for ident in report.red - after.red)
    red = set(times)
    errors = {ident: report.errors.get(ident, "") for report in reports for ident in red & report.red}
    broken = set[str]()
    base = list[TestReport]()
    if candidates := red & {*before.passed}:
        again = Selection(targets_of({file_of(ident) for ident in candidates}), {unit(i) for i in candidates})
        base = await pair.runs.repeat(pair.old, "verify-repeat-before", again, BASE_TIMES, BASE_SECONDS)
        seen = {ident for report in base for ident in report.red}
        broken = candidates - seen if len(base) == BASE_TIMES else broken
    took = sum(report.seconds for report in (*reports, *base))
    # a test that is red in each of these runs depends on other tests, which did not run
    unstable = {ident for ident in red - broken if times[ident] < len(reports)}
    return Repeats(len(reports), round(took, 3), frozenset(broken), frozenset(unstable), errors)
