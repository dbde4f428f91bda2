"""Find tests that a patch makes unstable: the tests near it run a few more times on the new tree.

A patch that breaks a test only sometimes can be lucky in the first run. So the tests near the change run again, in
several sandboxes, because luck can also depend on the sandbox. The number of these runs depends on the suite alone. On a busy
machine they take longer, and if their time is over, the patch is not verified.

A test that turns red there may also be an old flaky test. Many of these measure time, and turn red when the machine
is busy. A test that was red once only runs a few more times on the new tree. If it stays green there, it is unstable
and not broken. Otherwise the files with these tests run again on both trees, under the same load: at the same time,
in the same number of sandboxes, equally often. The patch breaks a test that is red there in several runs of the new
tree and in no run of the base tree. One red run of the new tree is too little: a test that fails in 1 of 10 runs,
patch or not, would look broken too often. The comparison ends early if each of these tests was red in a run of the
base tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from m3agent.agent.verify.pair import Pair, repeat_seconds, targets_of
from m3agent.tools.runners.suites import file_of
from m3agent.tools.selection import Selection
from m3agent.tools.test_report import TestReport
from m3agent.util.concurrency import all_of

SANDBOXES, TIMES = 3, 2
"""Number of sandboxes, and additional runs in each.

A test that fails every other time is green in all seven runs with a probability of 1 in 128. In a large suite, each sandbox
runs the tests once: it is 1 in 16. A test that is red in one of these runs is green in as many more with a probability of
1 in 64.
"""
COMPARED_TIMES = 4
"""Additional runs in each sandbox if a test turned red."""
COMPARED_RUNS = SANDBOXES * COMPARED_TIMES
"""Runs of the base tree that show that a test is stable there."""
COMPARED_SECONDS = 300.0
LEAST_RED = 2
"""Runs of the new tree, of as many, in which a test must be red to count as broken."""


@dataclass(frozen=True)
class Repeats:
    """What the additional runs showed."""

    runs: int = 0
    """Number of the first additional runs of the new tree."""
    seconds: float = 0.0
    broken: frozenset[str] = frozenset()
    """Tests that are red in several runs of the new tree, and in none of the base tree."""
    unstable: frozenset[str] = frozenset()
    """Other tests that are red in some runs of the new tree and green in others."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Error text of each of these tests."""
    always_red: frozenset[str] = frozenset()
    """Tests that are red in each of the first additional runs, and were not in the first run of all tests."""
    missing: int = 0
    """Number of runs that had no time, and without which it is not known whether the patch breaks a test."""


NO_REPEATS = Repeats()


async def repeat(pair: Pair, after: TestReport, selection: Selection) -> list[TestReport]:
    """Run tests of the new tree a few more times.

    Args:
        selection: The tests near the change. If it has a time, they run once in each sandbox, which takes this time.

    Raises SandboxError: A sandbox failed.
    """
    times, seconds = _times(selection), repeat_seconds(after)
    return await _in_sandboxes(pair, pair.new, "verify-repeat", selection, times, seconds)


async def compare(pair: Pair, first: tuple[TestReport, TestReport], reports: Sequence[TestReport]) -> Repeats:
    """Find the tests that are red in some of the additional runs, and compare both trees for them.

    Raises SandboxError: A sandbox failed.
    """
    before, after = first
    times = _times_red(reports)
    # a test that is red in each of these runs may depend on other tests, which did not run
    always_red = {ident for ident in times.keys() - after.red if times[ident] == len(reports)}
    unstable = times.keys() - after.red - always_red
    broken, more = set[str](), list[TestReport]()
    missing = SANDBOXES * _times(pair.selection) - len(reports)
    if candidates := times.keys() & {*before.passed}:
        again = replace(pair.selection, targets=targets_of({file_of(ident) for ident in candidates}))
        if all(times[ident] < LEAST_RED for ident in candidates):
            # until one of the tests is red in each sandbox, or as often as the first time
            name, seconds = "verify-repeat-again", repeat_seconds(after)
            more = await _in_sandboxes(
                pair, pair.new, name, again, TIMES, seconds, lambda report: bool(candidates & report.red)
            )
        if len(more) < SANDBOXES * TIMES or candidates & _times_red(more).keys():
            broken, compared, left = await _compare_trees(pair, again, candidates)
            more += compared
            missing += left if pair.selection.seconds is None else 0
    errors = {
        ident: report.errors.get(ident, "")
        for report in (*more, *reports)
        for ident in times.keys() & report.red
    }
    took = sum(report.seconds for report in (*reports, *more))
    return Repeats(
        len(reports),
        round(took, 3),
        frozenset(broken),
        frozenset(unstable - broken),
        errors,
        frozenset(always_red),
        missing,
    )


def _times(selection: Selection) -> int:
    """Return the number of additional runs in a sandbox. Tests of a large suite have a time, and run once."""
    return TIMES if selection.seconds is None else 1


async def _compare_trees(
    pair: Pair, selection: Selection, candidates: set[str]
) -> tuple[set[str], list[TestReport], int]:
    """Run both trees at the same time.

    Returns:
        The broken tests among the candidates, the reports of both trees, and the number of runs of the old tree that had no time.
    """
    stable = {*candidates}

    def all_unstable(report: TestReport) -> bool:
        stable.difference_update(report.red)
        return not stable

    limits = selection, COMPARED_TIMES, COMPARED_SECONDS
    old, new = await all_of(
        _in_sandboxes(pair, pair.old, "verify-repeat-before", *limits, all_unstable),
        _in_sandboxes(pair, pair.new, "verify-repeat-after", *limits, lambda _: not stable),
    )
    broken = set[str]()
    if len(old) == COMPARED_RUNS:
        often = {ident for ident, number in _times_red(new).items() if number >= LEAST_RED}
        broken = candidates & often - _times_red(old).keys()
    return broken, [*old, *new], COMPARED_RUNS - len(old) if stable else 0


async def _in_sandboxes(
    pair: Pair,
    tree: str,
    name: str,
    selection: Selection,
    times: int,
    seconds: float,
    enough: Callable[[TestReport], bool] = lambda _: False,
) -> list[TestReport]:
    """Return the reports of several sandboxes that run at once. The arguments are those of `TreeRuns.repeat`."""
    names = (f"{name}-{number}" for number in range(1, SANDBOXES + 1))
    done = await all_of(*(pair.runs.repeat(tree, each, selection, times, seconds, enough) for each in names))
    return [report for some in done for report in some]


def _times_red(reports: Iterable[TestReport]) -> Counter[str]:
    """Return the number of runs in which each test is red."""
    return Counter(ident for report in reports for ident in report.red)
