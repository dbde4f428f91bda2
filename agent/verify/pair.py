"""Run the same tests on an old and a new tree, and find the flaky ones among them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, replace

from m3agent.agent.verify.flaky import Runs, counting_neither_way, unit
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.tools.runners.suites import file_of
from m3agent.tools.selection import EVERYTHING, Selection
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
                tests about which only these runs disagree are left to `m3agent.agent.verify.stability`.
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
            for number in range(1, self.reruns + 1):
                reports = await all_of(*(self._run(name, again, f"-again-{number}") for name in runs))
                for name, report in zip(runs, reports, strict=True):
                    runs[name].apart.append(report)
                left -= max(report.seconds for report in reports)
                if left < 0:
                    break
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
