"""Run the same tests on an old and a new tree, and find the flaky ones among them and those that a patch makes unstable.

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

import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from m3agent.agent.verify.flaky import Runs, counting_neither_way, unit
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.tools.run_tests import EVERYTHING, Selection
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import TestReport, joined
from m3agent.util.concurrency import all_of

FREE_SECONDS = 30.0
"""Seconds that reruns may always take. Beyond that they stop once they took longer than the first run of all tests."""
REPEAT_SECONDS = 300.0
"""Least seconds for the additional runs in a sandbox.

With 60, a patch to a project whose 24 tests took 9 s alone was not verified beside a run of other tests on two processors.
"""
REPEAT_SHARE = 4
"""They have this many times the seconds of the first run of all tests, if that is more: enough on a machine with twice the load."""
OLD_RERUNS = 2
"""Most reruns of the old tree if the new tree has many runs. A test that is red in 1 of 10 runs is then taken for a fixed one
in 1 of 2,000 cases."""
OWN_TESTS = "new-tests-"
"""Prefix of the pair with the patch's versions of existing test files."""
MOST_FILES = 1000
"""Most files named on one command line. If tests of more files have to run, all files are collected."""


@dataclass(frozen=True)
class Pair:
    """An old and a new tree. Their tests run at the same time, each tree in its own sandbox."""

    old: str
    new: str
    prefix: str
    """Distinguishes this pair's log files from those of another pair."""
    runs: TreeRuns
    reruns: int
    """Most times that deciding tests run again; 0 turns the search for flaky tests off."""
    selection: Selection = EVERYTHING
    """The tests that are compared. They are the same on both trees."""
    added: Collection[str] = ()
    """Paths of the files that the patch adds to the new tree."""
    parts: Sequence[Selection] = ()
    """The parts of `selection`, if several sandboxes shared its first run; a further run of all tests has the same parts."""

    def __post_init__(self) -> None:
        # a patch to tests only has one tree, in which nothing of the patch's code is missing
        self.runs.sides.update({self.old: False, self.new: True})

    async def run(self, known: Awaitable[TestReport | None] | None = None) -> tuple[TestReport, TestReport]:
        """Run the tests of both trees; return the reports of the old and the new tree."""

        async def run_old() -> TestReport:
            report = None if known is None else await known
            return await self._run("before", self.selection) if report is None else report

        before, after = await all_of(run_old(), self.run_new(self.selection))
        return before, after

    async def run_new(self, selection: Selection, part: int = 0) -> TestReport:
        """Run tests of the new tree, unless their result is known.

        Args:
            part: Number of the part, if the tests are divided among several sandboxes; each part has a log.
        """
        return await self._run(f"after-{part}" if part else "after", selection)

    async def find_flaky(
        self,
        first: tuple[TestReport, TestReport],
        idents: set[str],
        beside: Collection[str] = (),
        repeats: Awaitable[Sequence[TestReport]] | None = None,
    ) -> frozenset[str]:
        """Run tests again and return those that count neither way because they are flaky.

        Args:
            beside: Tests that are judged as well if they are in the same files as `idents`.
            repeats: Further runs of these files on the new tree. With them, only the old tree's tests run again, and
                tests about which only these runs disagree are left to `compare`.
        """
        if not idents or not self.reruns:
            return frozenset()
        files = {file_of(ident) for ident in idents}
        idents = idents | {ident for ident in beside if file_of(ident) in files}
        only = {unit(ident) for ident in idents}
        runs = {name: Runs([report], []) for name, report in zip(("before", "after"), first, strict=True)}
        left = max(FREE_SECONDS, *(report.seconds for report in first))
        again = Selection(targets_of(files), only, seconds=self.selection.seconds)
        if repeats is None:
            left = await self._run_again(runs, again, left)
        else:
            name, times = f"verify-{self.prefix}before-again", min(self.reruns, OLD_RERUNS)
            seconds = repeat_seconds(first[1])  # as long as the new tree's, so that load takes no run away
            runs["before"].apart.extend(await self.runs.repeat(self.old, name, again, times, seconds))
            runs["after"].apart.extend(await repeats)
        unsettled = [name for name in runs if runs[name].unsettled(idents)]
        reports = await all_of(*(self._whole_again(name, max(FREE_SECONDS, left)) for name in unsettled))
        for name, report in zip(unsettled, reports, strict=True):
            runs[name].whole.append(report)
        flaky = counting_neither_way(runs["before"], runs["after"], idents)
        if repeats is None:
            return flaky
        return flaky - (Runs([], runs["after"].apart).flaky(idents) - runs["before"].flaky(idents))

    async def _run_again(self, runs: Mapping[str, Runs], selection: Selection, left: float) -> float:
        """Run tests of both trees again, as long as there is time. Return the seconds that are left."""
        for number in range(1, self.reruns + 1):
            reports = await all_of(*(self._run(name, selection, f"-again-{number}") for name in runs))
            for name, report in zip(runs, reports, strict=True):
                runs[name].apart.append(report)
            left -= max(report.seconds for report in reports)
            if left < 0:
                break
        return left

    async def _whole_again(self, name: str, left: float) -> TestReport:
        """Run all tests again, in the sandboxes of the first run: a test may need others of the same sandbox."""

        async def run(part: Selection, number: int) -> TestReport:
            limited = part if part.seconds is None else replace(part, seconds=left)
            return await self._run(name, limited, f"-whole-again-{number}" if number else "-whole-again")

        parts = self.parts or [self.selection]
        return functools.reduce(
            joined, await all_of(*(run(part, number) for number, part in enumerate(parts)))
        )

    async def _run(self, name: str, selection: Selection, suffix: str = "") -> TestReport:
        tree, added = (self.old, ()) if name == "before" else (self.new, self.added)
        run = self.runs.run if suffix else self.runs.run_once
        return await run(tree, f"verify-{self.prefix}{name}{suffix}", selection, added=added)


def repeat_seconds(after: TestReport) -> float:
    """Return the seconds for additional runs in a sandbox, by the first report of the new tree."""
    return max(REPEAT_SECONDS, REPEAT_SHARE * after.seconds)


def targets_of(paths: Collection[str]) -> Sequence[str]:
    """Return test files as targets of a run."""
    return [f"./{path}" for path in sorted(paths)] if len(paths) <= MOST_FILES else EVERYTHING.targets


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
