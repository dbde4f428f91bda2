"""Find flaky tests: tests that have different outcomes in several runs on the same tree.

A verdict compares two runs, and a flaky test can differ between them by chance. The tests that decide the verdict
therefore run again. Only they run, with the other tests of their classes and their other parameters. They run three
times unless set otherwise, on both trees, each time in a fresh sandbox. If the patch would be verified, the new tree's runs
are those of `m3agent.agent.verify.pair`, and the old tree runs twice. On each tree:

- If the reruns disagree about a test, the test is flaky.
- If the reruns agree with each other but not with the run of the whole suite, the test is flaky or depends on the tests
  that run before it. The whole suite then runs once more. If the outcome is the same as in the first run, the test
  depends on other tests and the first outcome stands. If not, the test is flaky. But a fixed test that is red in all runs of
  `m3agent.agent.verify.pair` shows no fix.

With three reruns, a test that fails every other time looks stable on one tree in 1 of 5 cases, on both in 1 of 28.

An outcome is green, red, or neither (skipped or missing). Two rules for files and folders:

- Every test in a file or folder that cannot be imported is red.
- A file that cannot be imported has one id for all its tests. Once it can be imported, that id is red while any of its
  tests is red.

A run that was cut short counts for the tests that it has results for. The test that was running when it was cut short
is red, in a rerun as in the first run. A test that hangs now and then is therefore flaky.

Flaky tests count neither way, with one exception. A test that is green in every run on the old tree and not green in
most runs on the new tree is broken. Otherwise a patch that makes a test flaky would be excused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from m3agent.tools.runners.suites import without_suite
from m3agent.tools.test_report import TestReport

Outcome = Literal["green", "red", "neither"]
_BORDER = re.compile("::|/")


@dataclass(frozen=True)
class Runs:
    """Reports of runs on one tree."""

    whole: list[TestReport]
    """Runs of the whole suite."""
    apart: list[TestReport]
    """Runs of some files only."""

    def unsettled(self, idents: Collection[str]) -> set[str]:
        """Return the tests that are flaky or depend on other tests; another run of the whole suite tells which."""
        whole, apart = _seen(self.whole, idents), _seen(self.apart, idents)
        return {i for i in idents if len(whole[i]) == len(apart[i]) == 1 and whole[i] != apart[i]}

    def flaky(self, idents: Collection[str]) -> frozenset[str]:
        """Return the tests that have different outcomes in runs of the same kind (`whole` or `apart`)."""
        whole, apart = _seen(self.whole, idents), _seen(self.apart, idents)
        return frozenset(i for i in idents if len(whole[i]) > 1 or len(apart[i]) > 1)

    def not_green(self, ident: str) -> tuple[int, int]:
        """Return the number of runs in which a test was not green, and the number of runs that report an outcome."""
        said = [found[ident] for run in (*self.whole, *self.apart) if (found := outcomes(run, [ident]))]
        return sum(outcome != "green" for outcome in said), len(said)


def counting_neither_way(old: Runs, new: Runs, idents: Collection[str]) -> frozenset[str]:
    """Return the tests that are flaky on either tree, except those that the patch seems to have broken.

    A test seems broken if it is green in every run on the old tree and not green in most runs on the new tree.
    """
    flaky = old.flaky(idents) | new.flaky(idents)

    def broken(ident: str) -> bool:
        red, runs = new.not_green(ident)
        return old.not_green(ident)[0] == 0 and 2 * red > runs

    return frozenset(ident for ident in flaky if not broken(ident))


def _seen(reports: Iterable[TestReport], idents: Collection[str]) -> dict[str, set[Outcome]]:
    """Return the outcomes that each test had in these runs."""
    seen: dict[str, set[Outcome]] = {ident: set() for ident in idents}
    for report in reports:
        for ident, outcome in outcomes(report, idents).items():
            seen[ident].add(outcome)
    return seen


def outcomes(report: TestReport, idents: Iterable[str]) -> dict[str, Outcome]:
    """Return the outcome of each test in one run, without the tests that the run does not report."""
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


def unit(ident: str) -> str:
    """Return what runs if a test runs again: its class, or its function with all parameters, or its file."""
    inner = without_suite(ident)
    path, _, name = inner.partition("::")
    outer = name.partition("[")[0].partition("::")[0]
    return f"{ident.removesuffix(inner)}{path}::{outer}" if name else ident


def containers(ident: str) -> set[str]:
    """Return the ids of the class, the file and the folders that contain a test."""
    return ({ident[: border.start()] for border in _BORDER.finditer(ident)} | {"."}) - {ident}


def members(idents: Iterable[str]) -> dict[str, set[str]]:
    """Map the id of each class, file and folder to the ids among `idents` that it contains."""
    found: dict[str, set[str]] = defaultdict(set)
    for ident in idents:
        for outer in containers(ident):
            found[outer].add(ident)
    return dict(found)


def without(report: TestReport, idents: Collection[str]) -> TestReport:
    """Return the report without these tests."""
    return report.only(lambda ident: ident not in idents)
