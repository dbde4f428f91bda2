"""Judge a patch by the test runs before and after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from m3agent.agent.verify.flaky import members
from m3agent.tools.runners.suites import file_of, without_suite
from m3agent.tools.test_report import TestReport

Verdict = Literal["verified", "unverified", "failed"]


def judge(
    before: TestReport,
    after: TestReport,
    touched: Collection[str] = (),
    not_importable: Mapping[str, str] = MappingProxyType({}),
    shown: Collection[str] = (),
    surroundings: Sequence[str] = (),
) -> tuple[Verdict, str, list[set[str]]]:
    """Judge a patch by the test runs before and after it.

    Args:
        before: The test run on the old tree.
        after: The test run on the new tree.
        touched: Paths that the patch changes. A patch that changes a test file must leave no red test in it.
        not_importable: Test files that cannot be imported with or without the patch, with the reason. Their tests
            show nothing about the patch.
        shown: Tests that the patch adds to or changes in existing test files: red on the old code, green on the new.
        surroundings: Paths of the patch that decide how tests run. Its changes to them do not count, so it must leave no
            red test at all.

    Returns:
        The verdict, its reason in one sentence, and the sets of fixed, broken and still red tests.
    """
    passed_before, passed_after = set(before.passed), set(after.passed)
    fixed, still_red = set[str](), set[str]()
    within, red_within = members(after.red | passed_after), members(after.red)
    for ident in before.red:
        # a file that cannot be imported is one red id; once it can be imported, each of its tests has an id
        inside = within.get(ident, set())
        if ident in after.red or inside & after.red:
            still_red |= {ident} | (inside & after.red)
        elif ident in passed_after or inside:
            fixed.add(ident)
        else:
            still_red.add(ident)
    lost = passed_before - passed_after
    turned = after.red - before.red - still_red - lost
    if not before.complete:  # the cut-short first run may not have reached these tests
        still_red, turned = still_red | turned, set()
    broken = lost | turned
    gone = {i for i in before.red & still_red - after.red if i not in red_within}
    partly = still_red and {file_of(i) for i in still_red} & {file_of(i) for i in fixed}
    sets = [fixed, broken, still_red]
    if not before.ran and not after.ran:
        obstacle = after.obstacle or before.obstacle
        reason = f"no test could run: {obstacle}" if obstacle else "there are no tests to check the patch"
        return "unverified", reason, sets
    if lost:
        return "failed", f"{count(lost, 'test')} passed before the patch and not after it", sets
    if turned:
        return "failed", f"{count(turned, 'test')} red after the patch and not before it", sets
    if not after.complete:
        return "failed", "the test run on the patched tree did not finish", sets
    if gone:
        return "failed", f"{count(gone, 'test')} red before the patch and not run after it", sets
    in_touched = {i for i in still_red if file_of(i) in touched}
    evaded = still_red if surroundings else in_touched
    if not (fixed or shown) and still_red and (evaded or still_red) <= not_importable.keys():
        return "unverified", cannot_be_tested(not_importable), sets
    if in_touched:
        return (
            "failed",
            f"{count(in_touched, 'test')} red before and after in test files that the patch changes",
            sets,
        )
    if evaded:
        them = f"{surroundings[0]}{f' and {len(surroundings) - 1} more' if len(surroundings) > 1 else ''}"
        return (
            "failed",
            (
                f"{count(evaded, 'test')} red before and after; the patch's changes to {them} do not count, because they can "
                "decide how tests run"
            ),
            sets,
        )
    if partly:
        return (
            "failed",
            f"{count(fixed, 'test')} fixed, but {count(still_red, 'test')} still red, also in the same test file",
            sets,
        )
    rest = f"; {count(still_red, 'test')} elsewhere still red" if still_red else ""
    if fixed:
        return (
            "verified",
            f"{count(fixed, 'test')} red before, green after; nothing else turned red{rest}",
            sets,
        )
    if shown:
        added = "added" if before.ids.isdisjoint(shown) else "added or changed"
        told = f"{count(shown, 'test')} {added} by the patch: red on the old code, green on the new{rest}"
        return "verified", told, sets
    if still_red:
        return (
            "failed",
            f"no test turned green: {count(still_red, 'test')} red before and after the patch",
            sets,
        )
    return "unverified", "no test was red before the patch, so none shows that it fixes the issue", sets


def cannot_be_tested(not_importable: Mapping[str, str]) -> str:
    """Return the reason of a verdict if the test files that matter cannot be imported."""
    first = min(not_importable)
    files = f"{first} cannot" if len(not_importable) == 1 else f"{len(not_importable)} test files cannot"
    return f"cannot be tested here, because {files} be imported with or without the patch: {not_importable[first]}"


def files_not_importable(before: TestReport, after: TestReport, added: Collection[str]) -> dict[str, str]:
    """Return the test files that fail to be imported on both trees for the same reason, with the reason.

    Files that the patch adds are left out: the patch is responsible for them.
    """
    found: dict[str, str] = {}
    for ident in before.red & after.red:
        reasons = {_last_line(report.errors.get(ident, "")) for report in (before, after)}
        if (
            "::" not in without_suite(ident)
            and file_of(ident) not in added
            and len(reasons) == 1
            and (reason := reasons.pop())
        ):
            found[ident] = reason
    return found


def _last_line(error: str) -> str:
    lines = [line.removeprefix("E ").strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def count(items: Collection[str], noun: str) -> str:
    """Return the number of items with its noun: `1 test`, `3 tests`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
