"""Test which tests the additional runs near a change call broken, and which unstable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from m3agent.agent.verify.pair import Pair, Repeats, compare, repeat
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection
from m3agent.tools.test_report import TestReport
from tests.agent.verify.test_rules import report

NEW, AGAIN = "verify-repeat", "verify-repeat-again"
BEFORE, AFTER = "verify-repeat-before", "verify-repeat-after"

ALL_GREEN = report("a.x a.y b.z")
RED = report("a.x b.z", "a.y")


@dataclass(frozen=True)
class Scripted(TreeRuns):
    """Returns reports without a sandbox. red: for each name of a run, the numbers of the runs in which a.y is red."""

    red: dict[str, set[int]] = field(default_factory=dict)
    most: int = 100
    """Most runs of the comparison in one sandbox; it stands for the time that they may take."""
    calls: dict[str, tuple[str, Selection, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    at_once: set[str] = field(default_factory=set)
    seen_at_once: list[int] = field(default_factory=list)

    async def repeat(
        self,
        tree: str,
        name: str,
        selection: Selection,
        times: int,
        seconds: float,
        enough: Callable[[TestReport], bool] = lambda _: False,
    ) -> list[TestReport]:
        self.calls[name] = tree, selection, times
        self.seconds[name] = seconds
        self.at_once.add(name)
        for _ in range(3):  # let all runs begin that begin together
            await asyncio.sleep(0)
        kind, _, sandbox = name.rpartition("-")
        self.seen_at_once.append(len(self.at_once))
        self.at_once.discard(name)
        first = (int(sandbox) - 1) * times if sandbox.isdigit() else 0
        made = range(first, first + (times if kind in (NEW, AGAIN) else min(times, self.most)))
        reports = list[TestReport]()
        for number in made:
            reports.append(RED if number in self.red.get(kind, ()) else ALL_GREEN)
            await asyncio.sleep(0)  # the other sandboxes run their tests at the same time
            if enough(reports[-1]):
                break
        return reports


def pair(runs: TreeRuns) -> Pair:
    return Pair("old", "new", "", runs, 3)


async def repeats(runs: TreeRuns, first: tuple[TestReport, TestReport], selection: Selection) -> Repeats:
    trees = replace(pair(runs), selection=selection)
    return await compare(trees, first, await repeat(trees, first[1], selection))


def no_sandbox(_: Workspace) -> None:
    raise AssertionError("a sandbox was started")


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(TreeStore(tmp_path), no_sandbox, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("red", "broken", "unstable", "compared"),
    [
        ({}, "", "", 0),
        ({NEW: {5}, AGAIN: {1}, AFTER: {0, 7}}, "a.y", "", 30),
        ({NEW: {0, 5}, AFTER: {0, 7}}, "a.y", "", 24),
        ({NEW: {5}, AGAIN: {1}, AFTER: {7}}, "", "a.y", 30),
        ({NEW: {5}}, "", "a.y", 6),
        ({NEW: {0, 5}}, "", "a.y", 24),
        ({NEW: {0, 5}, AFTER: {0, 7}, BEFORE: {11}}, "", "a.y", 24),
        ({NEW: {0, 5}, AFTER: {0, 7}, BEFORE: {1}}, "", "a.y", 12),
        ({NEW: {*range(6)}, AFTER: {*range(12)}, BEFORE: {*range(12)}}, "", "", 6),
        ({NEW: {*range(6)}, AFTER: {*range(12)}}, "a.y", "", 24),
    ],
    ids=[
        "green",
        "red once, then broken",
        "red twice, then broken",
        "red once more",
        "red once, then never again",
        "red twice, then never again",
        "red without the patch",
        "red without the patch early",
        "depends on other tests",
        "always red",
    ],
)
async def test_what_is_broken(
    scripted: Scripted, red: dict[str, set[int]], broken: str, unstable: str, compared: int
) -> None:
    scripted.red.update(red)
    found = await repeats(scripted, (ALL_GREEN, ALL_GREEN), Selection())
    assert found.broken == {*report(broken).passed}
    assert found.unstable == {*report(unstable).passed}
    assert set(found.errors) == ({"a.py::y"} if red else set())
    assert (found.runs, found.seconds) == (6, 6.0 + compared)


async def test_a_test_that_seemed_flaky_in_the_first_runs_may_be_broken(scripted: Scripted) -> None:
    scripted.red.update({NEW: {0, 5}, AFTER: {0, 7}})
    found = await repeats(scripted, (ALL_GREEN, RED), Selection())
    assert (found.broken, found.unstable) == (frozenset({"a.py::y"}), frozenset())


async def test_both_trees_are_compared_under_the_same_load(scripted: Scripted) -> None:
    scripted.red[NEW] = {0, 1}
    await repeats(scripted, (ALL_GREEN, ALL_GREEN), Selection(seconds=9))
    compared = {name: call for name, call in scripted.calls.items() if name.startswith((BEFORE, AFTER))}
    assert {name: tree for name, (tree, *_) in compared.items()} == {
        f"verify-repeat-{when}-{number}": tree
        for when, tree in (("before", "old"), ("after", "new"))
        for number in (1, 2, 3)
    }
    assert {
        (selection.targets[0], selection.seconds, times) for _, selection, times in compared.values()
    } == {("./a.py", 9, 4)}
    assert max(scripted.seen_at_once) == 6


@pytest.mark.parametrize(("seconds", "runs"), [(None, 6), (60.0, 3)])
async def test_tests_with_a_time_run_once_in_each_sandbox(
    scripted: Scripted, seconds: float | None, runs: int
) -> None:
    found = await repeats(scripted, (ALL_GREEN, ALL_GREEN), Selection(seconds=seconds))
    assert found.runs == runs


async def test_a_test_that_is_red_in_each_further_run_is_named(scripted: Scripted) -> None:
    scripted.red[NEW] = {*range(6)}
    red_before = await repeats(scripted, (RED, ALL_GREEN), Selection())
    assert (red_before.always_red, red_before.unstable) == (frozenset({"a.py::y"}), frozenset())
    red_at_first = await repeats(scripted, (ALL_GREEN, RED), Selection())
    assert red_at_first.always_red == frozenset(), "it is no fixed test"


async def test_the_old_trees_further_runs_have_as_much_time_as_the_new_trees(scripted: Scripted) -> None:
    """Beside a load of four, ten seconds were over after one of two runs."""
    scripted.red["verify-before"] = {0, 1}
    new = asyncio.ensure_future(repeat(pair(scripted), ALL_GREEN, Selection()))
    await pair(scripted).find_flaky((RED, ALL_GREEN), {"a.py::y"}, (), new)
    assert scripted.seconds["verify-before-again"] == scripted.seconds["verify-repeat-1"] >= 300


async def test_runs_that_had_no_time_are_missing(scripted: Scripted) -> None:
    reports = (await repeat(pair(scripted), ALL_GREEN, Selection()))[:4]
    assert (await compare(pair(scripted), (ALL_GREEN, ALL_GREEN), reports)).missing == 2


async def test_too_few_runs_of_the_base_tree_show_nothing(tmp_path: Path) -> None:
    runs = Scripted(TreeStore(tmp_path), no_sandbox, tmp_path, most=3)  # type: ignore[arg-type]
    runs.red.update({NEW: {0, 5}, AFTER: {*range(12)}})
    found = await repeats(runs, (ALL_GREEN, ALL_GREEN), Selection())
    assert (found.broken, found.unstable) == (frozenset(), frozenset({"a.py::y"}))
    assert found.missing == 3, "nobody knows whether the patch breaks the test"
    large = await repeats(runs, (ALL_GREEN, ALL_GREEN), Selection(seconds=9))
    assert large.missing == 0, "large suites have less time, whatever the load"


async def test_a_test_that_was_red_before_is_not_run_on_the_base_tree(scripted: Scripted) -> None:
    scripted.red[NEW] = {0}
    found = await repeats(scripted, (RED, ALL_GREEN), Selection())
    assert (found.broken, found.unstable) == (frozenset(), frozenset({"a.py::y"}))
    assert not any(name.startswith((BEFORE, AGAIN)) for name in scripted.calls)
