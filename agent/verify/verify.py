"""Verify a patch: run the tests on the old and on the new tree, each in a fresh sandbox.

A patch is verified if all of these hold:

- A test that was red on the old tree is green on the new tree.
- Every test that was green on the old tree is green on the new tree.
- No test is red on the new tree only. This is not checked if the test run on the old tree was cut short.
- No red test stays red in the same file as a fixed test, or in a test file that the patch changes.
- Every test that was red on the old tree still runs on the new tree.
- The test run on the new tree was not cut short.

If the test files that matter cannot be imported with or without the patch, nothing can be tested, and the patch is
unverified.

The check uses the tests of the old tree:

- It undoes the patch's changes to existing test files.
- It runs test files that the patch adds on both trees. A new conftest.py is left out: it could hide tests on both.
- It undoes changes to files that decide how tests run: pytest's configuration, Python's start-up files, and new modules
  that shadow modules of Python or pytest.

If this shows nothing either way, the tests that the patch wrote into existing files count. They must have new ids, be
red on the old code and green on the new code. If one of them, or a test that the patch changed, is red on the new
code, the patch has failed.

Tests that would decide the verdict run again. Flaky tests (`m3agent.agent.verify.flaky` has the rule) count neither way.
Nothing runs again if no test was fixed or broken. Nothing runs again either if the run on the new tree was cut short:
reruns cannot repair that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

from m3agent.agent.settings.settings import RERUNS
from m3agent.agent.util.concurrency import all_of
from m3agent.agent.verify.flaky import Runs, counting_neither_way, members, without
from m3agent.sandbox.backends.pytest_bundle import WANTED_MODULES
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.test_runner import TestReport, run_in_sandbox

TEST_FOLDERS = frozenset({"test", "tests", "testing"})
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
)
TAKEN_NAMES = frozenset(
    {"sitecustomize", "usercustomize", "_pytest", *WANTED_MODULES, *sys.stdlib_module_names}
)
TEST_TIMEOUT = 600.0
"""Timeout of the whole suite on each of the two trees, in seconds."""
FREE_SECONDS = 10.0
"""Seconds that reruns may always take. Beyond that they stop once they took longer than the first run of all tests."""
MOST_FILES = 1000
"""Most files named on one command line. If more files have to run again, the whole suite runs again."""

Verdict = Literal["verified", "unverified", "failed"]


@dataclass(frozen=True)
class Verification:
    """The verdict and its evidence.

    Attributes:
        verdict: Whether the patch is believed.
        reason: The reason for the verdict, in one sentence.
        fixed, broken, still_red, new_tests, flaky: Sorted test ids; `m3agent.agent.session.events.Verify` defines the sets.
        added_red: Sorted ids of red tests that the patch adds or changes.
        undone: Sorted paths of the patch whose changes do not count: existing test files, and files that decide how
            tests run.
        errors: Error text of each red test on the new code.
        weakened: Tests that an earlier verdict of the session named red and that the patch weakened, each with how.
        before: The first test run on the old tree.
        after: The first test run on the new tree.
        old_tree: Git tree id of the old code with the patch's new test files.
        new_tree: Git tree id of the new code with the old tests.
        seconds: Wall time of the whole verification.
    """

    verdict: Verdict
    reason: str
    fixed: tuple[str, ...]
    broken: tuple[str, ...]
    still_red: tuple[str, ...]
    new_tests: tuple[str, ...]
    flaky: tuple[str, ...]
    before: TestReport
    after: TestReport
    old_tree: str
    new_tree: str
    seconds: float
    added_red: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    weakened: tuple[str, ...] = ()


def is_test_file(path: str) -> bool:
    """Return whether a file belongs to the tests, by its name (pytest's and unittest's rules) or its folder."""
    pure = PurePosixPath(path)
    name = pure.name
    named = name == "conftest.py" or (
        name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
    )
    return named or bool(TEST_FOLDERS & set(pure.parts[:-1]))


def is_surrounding(path: str, base: Collection[str]) -> bool:
    """Return whether a file decides how tests run.

    Such files are configuration, Python's start-up files, and modules missing from `base` that shadow a module of
    Python or pytest.
    """
    pure = PurePosixPath(path)
    if pure.name in CONFIGURATION or pure.suffix == ".pth":
        return True
    folder = "src/" if pure.parts[0] == "src" else ""
    name = path[len(folder) :].partition("/")[0].partition(".")[0]
    known = any(other.startswith((f"{folder}{name}/", f"{folder}{name}.py")) for other in base)
    return name in TAKEN_NAMES and not known


def trees_to_compare(workspace: Workspace, patch: Patch) -> tuple[str, str, list[str]]:
    """Write the two trees to compare.

    Returns:
        The tree id of the old code with the patch's new test files, the tree id of the new code with the existing test
        files unchanged, and the paths of the new test files.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    patched = without_surroundings(patch, base, patched)
    tests = [path for path in patch.paths if is_test_file(path)]
    added = [
        path
        for path in tests
        if path in patched and path not in base and PurePosixPath(path).name != "conftest.py"
    ]
    old = {**base, **{path: patched[path] for path in added}}
    new = {path: entry for path, entry in patched.items() if path not in tests or path in added}
    new |= {path: base[path] for path in tests if path in base}
    write = workspace.store.write_tree
    return write(old.values()), write(new.values()), added


def changes_undone(workspace: Workspace, patch: Patch) -> tuple[str, ...]:
    """Return the sorted paths of the patch whose changes `trees_to_compare` undoes."""
    base = workspace.entries(patch.base)
    return tuple(
        sorted(
            path
            for path in patch.paths
            if is_surrounding(path, base)
            or (is_test_file(path) and (path in base or PurePosixPath(path).name == "conftest.py"))
        )
    )


def trees_with_new_tests(workspace: Workspace, patch: Patch) -> tuple[str, str] | None:
    """Write the old and the new code, both with all test files as the patch leaves them.

    Returns:
        The two tree ids; None if the patch changed no existing test file.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    patched = without_surroundings(patch, base, patched)
    if not any(path in base and path in patched and is_test_file(path) for path in patch.paths):
        return None
    code = {path: entry for path, entry in base.items() if not is_test_file(path)}
    tests = [entry for path, entry in patched.items() if is_test_file(path)]
    write = workspace.store.write_tree
    return write([*code.values(), *tests]), write(patched.values())


def without_surroundings(
    patch: Patch, base: dict[str, TreeEntry], patched: dict[str, TreeEntry]
) -> dict[str, TreeEntry]:
    """Return the patched files, with the patch's changes to files that decide how tests run undone."""
    undone = {path for path in patch.paths if is_surrounding(path, base)}
    kept = {path: entry for path, entry in patched.items() if path not in undone}
    return kept | {path: base[path] for path in undone if path in base}


def judge(
    before: TestReport,
    after: TestReport,
    touched: Collection[str] = (),
    not_importable: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Verdict, str, list[set[str]]]:
    """Judge a patch by the test runs before and after it.

    Args:
        before: The test run on the old tree.
        after: The test run on the new tree.
        touched: Paths that the patch changes. A patch that changes a test file must leave no red test in it.
        not_importable: Test files that cannot be imported with or without the patch, with the reason. Their tests
            show nothing about the patch.

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
        return "unverified", "there are no tests to check the patch", sets
    if lost:
        return "failed", f"{count(lost, 'test')} passed before the patch and not after it", sets
    if turned:
        return "failed", f"{count(turned, 'test')} red after the patch and not before it", sets
    if not after.complete:
        return "failed", "the test run on the patched tree did not finish", sets
    if gone:
        return "failed", f"{count(gone, 'test')} red before the patch and not run after it", sets
    evaded = {i for i in still_red if file_of(i) in touched}
    if not fixed and still_red and (evaded or still_red) <= not_importable.keys():
        return "unverified", cannot_be_tested(not_importable), sets
    if evaded:
        return (
            "failed",
            f"{count(evaded, 'test')} red before and after in test files that the patch changes",
            sets,
        )
    if partly:
        return (
            "failed",
            f"{count(fixed, 'test')} fixed, but {count(still_red, 'test')} beside them still red",
            sets,
        )
    if fixed:
        rest = f"; {count(still_red, 'test')} elsewhere still red" if still_red else ""
        return (
            "verified",
            f"{count(fixed, 'test')} red before, green after; nothing else turned red{rest}",
            sets,
        )
    if still_red:
        return "failed", f"{count(still_red, 'test')} red before and after the patch", sets
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
        if "::" not in ident and ident not in added and len(reasons) == 1 and (reason := reasons.pop()):
            found[ident] = reason
    return found


def _last_line(error: str) -> str:
    lines = [line.removeprefix("E ").strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def file_of(ident: str) -> str:
    """Return the path of the file that a test id names."""
    return ident.partition("::")[0]


def count(items: Collection[str], noun: str) -> str:
    """Return the number of items with its noun: `1 test`, `3 tests`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


@dataclass(frozen=True)
class _Pair:
    """An old and a new tree. Their tests run at the same time, each tree in its own sandbox.

    Attributes:
        old: Git tree id of the old tree.
        new: Git tree id of the new tree.
        prefix: Distinguishes this pair's log files from those of another pair.
        store: Holds both trees.
        new_sandbox: Starts a sandbox for a workspace.
        folder: Where the logs of the test runs go.
        reruns: Most times that deciding tests run again; 0 turns the search for flaky tests off.
    """

    old: str
    new: str
    prefix: str
    store: TreeStore
    new_sandbox: Callable[[Workspace], Sandbox]
    folder: Path
    reruns: int

    async def run(self, suffix: str = "", targets: Sequence[str] = (".",)) -> tuple[TestReport, TestReport]:
        """Run the tests of both trees; return the reports of the old and the new tree."""
        before, after = await self._run({"before": self.old, "after": self.new}, suffix, targets)
        return before, after

    async def run_new(self) -> TestReport:
        """Run the tests of the new tree only."""
        return await self._run_one(self.new, "after", ["."])

    async def find_flaky(
        self, first: tuple[TestReport, TestReport], idents: set[str], beside: Collection[str] = ()
    ) -> frozenset[str]:
        """Run tests again and return those that count neither way because they are flaky.

        Args:
            first: The first reports of the old and the new tree.
            idents: The tests to run again.
            beside: Tests that are judged as well if they are in the same files as `idents`.
        """
        if not idents or not self.reruns:
            return frozenset()
        files = {file_of(ident) for ident in idents}
        idents = idents | {ident for ident in beside if file_of(ident) in files}
        targets = [f"./{path}" for path in sorted(files)] if len(files) <= MOST_FILES else ["."]
        before, after = (Runs([report], []) for report in first)
        left = max(FREE_SECONDS, *(report.seconds for report in first))
        for number in range(1, self.reruns + 1):
            again = await self.run(f"-again-{number}", targets)
            before.apart.append(again[0])
            after.apart.append(again[1])
            left -= max(report.seconds for report in again)
            if left < 0:
                break
        trees = {"before": (self.old, before), "after": (self.new, after)}
        unsettled = {name: pair for name, pair in trees.items() if pair[1].unsettled(idents)}
        whole = await self._run({name: tree for name, (tree, _) in unsettled.items()}, "-whole-again")
        for (_, runs), report in zip(unsettled.values(), whole, strict=True):
            runs.whole.append(report)
        return counting_neither_way(before, after, idents)

    async def _run(
        self, trees: dict[str, str], suffix: str, targets: Sequence[str] = (".",)
    ) -> list[TestReport]:
        runs = (self._run_one(tree, name + suffix, targets) for name, tree in trees.items())
        return list(await all_of(*runs))

    async def _run_one(self, tree: str, name: str, targets: Sequence[str]) -> TestReport:
        log = self.folder / f"verify-{self.prefix}{name}.log"
        async with self.new_sandbox(Workspace(self.store, tree)) as sandbox:
            return await run_in_sandbox(sandbox, *targets, timeout=TEST_TIMEOUT, log=log)


async def verify(
    workspace: Workspace,
    patch: Patch,
    new_sandbox: Callable[[Workspace], Sandbox],
    folder: Path,
    reruns: int = RERUNS,
    earlier: Iterable[Verification] = (),
) -> Verification:
    """Run the tests on both trees and judge the patch. Each tree has its own sandbox, which the session never touched.

    Args:
        workspace: Where the patch was made.
        patch: The patch to verify.
        new_sandbox: Starts a fresh sandbox for a workspace.
        folder: Where the logs of the test runs go.
        reruns: Most times that deciding tests run again; 0 turns the search for flaky tests off.
        earlier: Verifications of other patches in the same kind of sandbox. If one of them has the same old tree, its
            test run on that tree is used again, unless the run was cut short.

    Raises:
        SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started = time.monotonic()
    old, new, added = await asyncio.to_thread(trees_to_compare, workspace, patch)
    pair = _Pair(old, new, "", workspace.store, new_sandbox, folder, reruns)
    known = (found.before for found in earlier if found.old_tree == old and found.before.complete)
    if (before := next(known, None)) is None:
        before, after = await pair.run()
    else:
        after = await pair.run_new()
    touched = set(patch.paths)
    if any(PurePosixPath(path).name in CONFIGURATION for path in patch.paths):
        touched |= {file_of(ident) for ident in before.red}  # a configuration file affects every test file
    missing = files_not_importable(before, after, added)
    verdict, reason, (fixed, broken, still_red) = judge(before, after, touched, missing)
    flaky = frozenset[str]()
    if after.complete:
        flaky = await pair.find_flaky((before, after), fixed | broken, still_red)
        verdict, reason, (fixed, broken, still_red) = judge(
            without(before, flaky), without(after, flaky), touched, missing
        )
    added_red = {i for i in after.red - flaky if file_of(i) in added}
    errors = dict(after.errors)
    new_tests = {i for i in (*after.passed, *after.red) if file_of(i) in added}
    mixed = None
    if verdict == "unverified":
        mixed = await asyncio.to_thread(trees_with_new_tests, workspace, patch)
    if mixed is not None:
        ids_before = {*before.passed, *before.red, *before.skipped}
        pair = _Pair(*mixed, "new-tests-", workspace.store, new_sandbox, folder, reruns)
        red, green = await pair.run()
        new_tests = {*green.passed, *green.red} - ids_before
        fixed = new_tests & red.red & set(green.passed)
        if green.complete:
            flaky |= await pair.find_flaky((red, green), fixed | green.red)
            fixed -= flaky
            changed_red = green.red - flaky - missing.keys()
            added_red |= changed_red
            errors |= green.errors
            if changed_red:
                verdict = "failed"
                reason = f"{count(changed_red, 'test')} red that the patch adds or changes"
            elif fixed:
                verdict = "verified"
                reason = f"{count(fixed, 'test')} added by the patch: red on the old code, green on the new"
    if flaky:
        reason += f"; {count(flaky, 'flaky test')} not counted"
    return Verification(
        verdict,
        reason,
        fixed=tuple(sorted(fixed)),
        broken=tuple(sorted(broken)),
        still_red=tuple(sorted(still_red)),
        new_tests=tuple(sorted(new_tests)),
        flaky=tuple(sorted(flaky)),
        added_red=tuple(sorted(added_red)),
        undone=await asyncio.to_thread(changes_undone, workspace, patch),
        errors=errors,
        before=before,
        after=after,
        old_tree=old,
        new_tree=new,
        seconds=round(time.monotonic() - started, 3),
    )
