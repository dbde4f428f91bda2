"""Flaky tests: those whose outcome changes from run to run on one and the same tree.

A verdict rests on what differs between two runs, and a flaky test differs by itself. So the files of the tests that it
rests on are run again, apart from the others, some times (three unless set otherwise) on both trees, each time in a fresh sandbox. On each tree:

With three, a test that fails every other time passes for stable on one tree in 1 of 5 cases, on both in 1 of 28.

- A test that the reruns do not agree on is flaky.
- Where they agree with each other and not with the run of the whole suite, the test is flaky, or it depends on the
  tests that run before it. The whole suite is run once more: if it says the same as the first time, the test depends
  on others and the first outcome stands; if not, it is flaky.

An outcome is green, red, or neither (skipped, or not there). Red is also what is in a file or folder that cannot be
imported; and such a file, which has one id for all that is in it, once it can be, while anything in it is red. A run
that was cut short counts for the tests that it has results of. The one it was cut short in is red, in a rerun as in
the first run, so a test that hangs now and then is flaky.

Flaky tests count neither way, with one exception: what is green in every run on the old tree and not in most runs on
the new one is broken, or a patch could be excused by the chance that it brings in.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from m3agent.tools.test_runner import TestReport

Outcome = Literal["green", "red", "neither"]
_BORDER = re.compile("::|/")


@dataclass(frozen=True)
class Runs:
    """Reports of runs on one tree. whole: of all its tests; apart: of some files by themselves."""

    whole: list[TestReport]
    apart: list[TestReport]

    def unsettled(self, idents: Collection[str]) -> set[str]:
        """Those that are flaky or depend on other tests: another run of the whole suite has to tell."""
        whole, apart = _seen(self.whole, idents), _seen(self.apart, idents)
        return {i for i in idents if len(whole[i]) == len(apart[i]) == 1 and whole[i] != apart[i]}

    def flaky(self, idents: Collection[str]) -> frozenset[str]:
        """Those that runs of the same kind do not agree on."""
        whole, apart = _seen(self.whole, idents), _seen(self.apart, idents)
        return frozenset(i for i in idents if len(whole[i]) > 1 or len(apart[i]) > 1)

    def not_green(self, ident: str) -> tuple[int, int]:
        """In how many runs it was not green, of how many that say something of it."""
        said = [found[ident] for run in (*self.whole, *self.apart) if (found := outcomes(run, [ident]))]
        return sum(outcome != "green" for outcome in said), len(said)


def counting_neither_way(old: Runs, new: Runs, idents: Collection[str]) -> frozenset[str]:
    """The tests that are flaky on either tree, but for those that the patch seems to have broken: green in every run on
    the old tree, red in most of those on the new one."""
    flaky = old.flaky(idents) | new.flaky(idents)

    def broken(ident: str) -> bool:
        red, runs = new.not_green(ident)
        return old.not_green(ident)[0] == 0 and 2 * red > runs

    return frozenset(ident for ident in flaky if not broken(ident))


def _seen(reports: Iterable[TestReport], idents: Collection[str]) -> dict[str, set[Outcome]]:
    """The outcomes that each test had."""
    seen: dict[str, set[Outcome]] = {ident: set() for ident in idents}
    for report in reports:
        for ident, outcome in outcomes(report, idents).items():
            seen[ident].add(outcome)
    return seen


def outcomes(report: TestReport, idents: Iterable[str]) -> dict[str, Outcome]:
    """What a run says of each id; those that it says nothing of are left out."""
    red, green = report.red, set(report.passed)
    with_red, with_green = members(red), members(green)
    found: dict[str, Outcome] = {}
    for ident in idents:
        if ident in red:
            found[ident] = "red"
        elif ident in green:
            found[ident] = "green"
        elif ident in with_red or red & containers(ident):
            found[ident] = "red"
        elif ident in with_green:
            found[ident] = "green"
        elif report.complete:
            found[ident] = "neither"
    return found


def containers(ident: str) -> set[str]:
    """The ids of the class, the file and the folders that a test is in."""
    return ({ident[: border.start()] for border in _BORDER.finditer(ident)} | {"."}) - {ident}


def members(idents: Iterable[str]) -> dict[str, set[str]]:
    """For each id that any of these are in, which are."""
    found: dict[str, set[str]] = defaultdict(set)
    for ident in idents:
        for outer in containers(ident):
            found[outer].add(ident)
    return dict(found)


def without(report: TestReport, idents: Collection[str]) -> TestReport:
    """A report as if these tests had not been run."""

    def rest(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(ident for ident in ids if ident not in idents)

    return dataclasses.replace(
        report,
        passed=rest(report.passed),
        failed=rest(report.failed),
        errored=rest(report.errored),
        skipped=rest(report.skipped),
    )
