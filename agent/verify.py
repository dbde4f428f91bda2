"""Whether a patch is believed: fresh sandboxes run the tests on the old and on the new tree.

Verified means: a test that was red on the old tree is green on the new one, nothing that was green is lost or is red
now, and no red test stays red beside one that was fixed, or is no longer run. The tests that count are the old
tree's: what the patch did to existing test files is undone for the check, and test files it adds are run on both (but
not a new conftest.py, which could hide tests on both). Undone as well is what it did to files that decide how tests
run: pytest's configuration, Python's start-up files, new modules in the place of Python's or pytest's own. Only where
that shows nothing either way do tests count that the patch wrote into existing files: those with new ids, red on the
old code and green on the new.

What a verdict would rest on is run again, and tests that turn out to be flaky (see `m3agent.agent.flaky` for the rule)
count neither way. Nothing is run again where nothing was fixed and nothing broken, or
where the run on the new tree was cut short, which nothing can make good.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from m3agent.agent.flaky import Runs, counting_neither_way, members, without
from m3agent.agent.settings import RERUNS
from m3agent.agent.together import all_of
from m3agent.sandbox.base import Sandbox
from m3agent.sandbox.git import TreeEntry, TreeStore
from m3agent.sandbox.toolbox import WANTED_MODULES
from m3agent.sandbox.workspace import Patch, Workspace
from m3agent.tools.test_runner import TestReport, run_in_sandbox

TEST_FOLDERS = frozenset({"test", "tests", "testing"})
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
)
TAKEN_NAMES = frozenset(
    {"sitecustomize", "usercustomize", "_pytest", *WANTED_MODULES, *sys.stdlib_module_names}
)
TEST_TIMEOUT = 600.0
"""Seconds for the whole suite, on each of the two trees."""
FREE_SECONDS = 10.0
"""Reruns end when they took longer than the first runs of all tests; but not as long as they took less than this."""
MOST_FILES = 1000
"""Files named on one command line; where more are to be run again, the whole suite is."""

Verdict = Literal["verified", "unverified", "failed"]


@dataclass(frozen=True)
class Verification:
    """The verdict and its evidence: sets of test ids, sorted (see `m3agent.agent.events.Verify`)."""

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


def is_test_file(path: str) -> bool:
    """Whether a file belongs to the tests: by pytest's and unittest's naming, or by its folder."""
    pure = PurePosixPath(path)
    name = pure.name
    named = name == "conftest.py" or (
        name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
    )
    return named or bool(TEST_FOLDERS & set(pure.parts[:-1]))


def is_surrounding(path: str, base: Collection[str]) -> bool:
    """Whether a file decides how tests run: configuration, a start-up file, or a module that was not in `base` and
    takes the place of one of Python's or pytest's."""
    pure = PurePosixPath(path)
    if pure.name in CONFIGURATION or pure.suffix == ".pth":
        return True
    folder = "src/" if pure.parts[0] == "src" else ""
    name = path[len(folder) :].partition("/")[0].partition(".")[0]
    known = any(other.startswith((f"{folder}{name}/", f"{folder}{name}.py")) for other in base)
    return name in TAKEN_NAMES and not known


def trees_to_compare(workspace: Workspace, patch: Patch) -> tuple[str, str, list[str]]:
    """(old tree with the patch's new tests, new tree with the old tests as they were, paths of the new tests)."""
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


def trees_with_new_tests(workspace: Workspace, patch: Patch) -> tuple[str, str] | None:
    """The old and the new code, both with all test files as the patch leaves them; None if it changed no existing one."""
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
    """The patched files, but those that decide how tests run as they were."""
    undone = {path for path in patch.paths if is_surrounding(path, base)}
    kept = {path: entry for path, entry in patched.items() if path not in undone}
    return kept | {path: base[path] for path in undone if path in base}


def judge(
    before: TestReport, after: TestReport, touched: Collection[str] = ()
) -> tuple[Verdict, str, list[set[str]]]:
    """The verdict, its reason in a sentence, and the sets fixed, broken, still red.

    `touched` are the paths of the patch: who changes a test file should leave nothing red in it.
    """
    passed_before, passed_after = set(before.passed), set(after.passed)
    fixed, still_red = set[str](), set[str]()
    within, red_within = members(after.red | passed_after), members(after.red)
    for ident in before.red:
        # a file that could not be imported is one red id; its tests have ids of their own once it can be
        inside = within.get(ident, set())
        if ident in after.red or inside & after.red:
            still_red |= {ident} | (inside & after.red)
        elif ident in passed_after or inside:
            fixed.add(ident)
        else:
            still_red.add(ident)
    lost = passed_before - passed_after
    turned = after.red - before.red - still_red - lost
    if not before.complete:  # they may not have had their turn
        still_red, turned = still_red | turned, set()
    broken = lost | turned
    gone = {i for i in before.red & still_red - after.red if i not in red_within}
    partly = still_red and {file_of(i) for i in still_red} & {file_of(i) for i in fixed}
    sets = [fixed, broken, still_red]
    if not before.ran and not after.ran:
        return "unverified", "there are no tests to check the patch with", sets
    if lost:
        return "failed", f"{count(lost, 'test')} passed before the patch and not after it", sets
    if turned:
        return "failed", f"{count(turned, 'test')} red after the patch and not before it", sets
    if not after.complete:
        return "failed", "the test run on the patched tree did not come to its end", sets
    if gone:
        return "failed", f"{count(gone, 'test')} red before the patch and not run after it", sets
    if evaded := {i for i in still_red if file_of(i) in touched}:
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
        rest = f"; {count(still_red, 'test')} elsewhere were and are red" if still_red else ""
        return (
            "verified",
            f"{count(fixed, 'test')} red before, green after; nothing else turned red{rest}",
            sets,
        )
    if still_red:
        return "failed", f"{count(still_red, 'test')} red before and after the patch", sets
    return "unverified", "no test was red before the patch, so none shows that it fixes the issue", sets


def file_of(ident: str) -> str:
    """The file of a test id."""
    return ident.partition("::")[0]


def count(items: Collection[str], noun: str) -> str:
    """`1 test`, `3 tests`."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


@dataclass(frozen=True)
class _Pair:
    """An old and a new tree, and the runs of their tests: at the same time, each in a sandbox of its own."""

    old: str
    new: str
    prefix: str
    store: TreeStore
    new_sandbox: Callable[[Workspace], Sandbox]
    folder: Path
    reruns: int

    async def run(self, suffix: str = "", targets: Sequence[str] = (".",)) -> tuple[TestReport, TestReport]:
        """The tests of both trees."""
        before, after = await self._run({"before": self.old, "after": self.new}, suffix, targets)
        return before, after

    async def find_flaky(
        self, first: tuple[TestReport, TestReport], idents: set[str], beside: Collection[str] = ()
    ) -> frozenset[str]:
        """Which of these tests count neither way, for they are flaky; and of those `beside` them, in the same files.
        first: the trees' first runs."""
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
) -> Verification:
    """Run the tests on both trees, each in a sandbox of its own that the session never touched.

    reruns: how often at most what the verdict rests on is run again; with 0, flaky tests are not looked for.

    Raises:
        SandboxError: a sandbox failed; the patch is then neither believed nor blamed.
    """
    started = time.monotonic()
    old, new, added = await asyncio.to_thread(trees_to_compare, workspace, patch)
    pair = _Pair(old, new, "", workspace.store, new_sandbox, folder, reruns)
    before, after = await pair.run()
    touched = set(patch.paths)
    if any(PurePosixPath(path).name in CONFIGURATION for path in patch.paths):
        touched |= {file_of(ident) for ident in before.red}  # a configuration is every test file's
    verdict, reason, (fixed, broken, still_red) = judge(before, after, touched)
    flaky = frozenset[str]()
    if after.complete:
        flaky = await pair.find_flaky((before, after), fixed | broken, still_red)
        verdict, reason, (fixed, broken, still_red) = judge(
            without(before, flaky), without(after, flaky), touched
        )
    new_tests = {i for i in (*after.passed, *after.red) if file_of(i) in added}
    mixed = None
    if verdict == "unverified":
        mixed = await asyncio.to_thread(trees_with_new_tests, workspace, patch)
    if mixed is not None:
        known = {*before.passed, *before.red, *before.skipped}
        pair = _Pair(*mixed, "new-tests-", workspace.store, new_sandbox, folder, reruns)
        red, green = await pair.run()
        new_tests = {*green.passed, *green.red} - known
        fixed = new_tests & red.red & set(green.passed)
        if fixed and green.complete:
            flaky |= await pair.find_flaky((red, green), fixed | green.red)
            fixed -= flaky
            if fixed and green.red <= flaky:
                verdict = "verified"
                reason = f"{count(fixed, 'test')} added by the patch: red on the old code, green on the new"
    if flaky:
        reason += f"; {count(flaky, 'flaky test')} left out of account"
    return Verification(
        verdict,
        reason,
        fixed=tuple(sorted(fixed)),
        broken=tuple(sorted(broken)),
        still_red=tuple(sorted(still_red)),
        new_tests=tuple(sorted(new_tests)),
        flaky=tuple(sorted(flaky)),
        before=before,
        after=after,
        old_tree=old,
        new_tree=new,
        seconds=round(time.monotonic() - started, 3),
    )
