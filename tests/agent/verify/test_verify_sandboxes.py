"""Test whole verifications in real sandboxes, with real tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.agent.verify.rules import Verdict
from m3agent.agent.verify.scope import Scope
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.execution_map import Recording
from m3agent.tools.test_report import TestReport
from tests.conftest import later

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]
REGULAR = 0o100644
BUGGY = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a * 2\n"
FIXED = BUGGY.replace("a - b", "a + b")
TESTS = "from calc import *\ndef test_add():\n    assert add(2, 3) == 5\ndef test_double():\n    assert double(2) == 4\n"
USUAL, ODD = SandboxLimits(memory=1 << 30), SandboxLimits(memory=2 << 30)
ODD_HERE = f"""import os
def odd():
    tmp = os.statvfs("/tmp")
    return tmp.f_blocks * tmp.f_frsize > {(USUAL.scratch + ODD.scratch) // 2}
"""
"""Part of a test file: a test that calls odd() is flaky, but its outcome in each run is known."""


class InOrder(SandboxesAhead):
    """Starts each sandbox when it is needed, so that their order is that of the runs."""

    def start(self, tree: str, number: int) -> None:
        pass


RunVerification = Callable[..., Awaitable[Verification]]


@pytest.fixture
def verification(workspace_of: WorkspaceOf, one_backend: Backend, tmp_path: Path) -> RunVerification:
    """Return a function that verifies changes (None deletes a file) to a repository with a bug and a test for it.

    large: whether to verify as if the tests took 1000 s on the base tree, with 100 s for the new tree.
    odd: for each tree, in order of first use, the runs on it (from 0) whose sandbox odd() recognises.
    """

    async def run(
        changes: dict[str, str | None],
        image: str | None = None,
        tests: str = TESTS,
        odd: Sequence[Collection[int]] = (),
        large: bool = False,
    ) -> Verification:
        workspace = workspace_of({"calc.py": BUGGY, "test_calc.py": tests, "data.txt": "1\n"})
        changed = [(path, REGULAR, text.encode()) for path, text in changes.items() if text is not None]
        deleted = [path for path, text in changes.items() if text is None]
        patch = workspace.patch(workspace.commit_changes(workspace.base, changed, deleted))
        backend: Backend = one_backend if image is None else "docker"
        runs: dict[str, int] = {}  # number of the last run on each tree

        def fresh(of: Workspace) -> Sandbox:
            number = runs[of.base] = runs.get(of.base, -1) + 1
            position = list(runs).index(of.base)
            is_odd = position < len(odd) and number in odd[position]
            spec = SandboxSpec(backend, image, ODD if is_odd else USUAL)
            return new_sandbox(backend, spec, of, lambda _: None)

        in_sandboxes = TreeRuns(InOrder(workspace.store, fresh), tmp_path)
        if not large:
            return await verify(workspace, patch, in_sandboxes)
        known = await in_sandboxes.run_recorded(workspace.base, 60, Recording())

        async def baseline() -> TestReport:
            return replace(known, seconds=1000.0)

        return await verify(workspace, patch, in_sandboxes, 0, baseline, 100.0)

    return run


@pytest.mark.slow  # quick: test_a_fix_is_verified_and_its_patch_printed
async def test_a_real_fix_is_verified(verification: RunVerification, tmp_path: Path) -> None:
    new_test = "from calc import add\ndef test_negative():\n    assert add(-1, -2) == -3\n"
    result = await verification({"calc.py": FIXED, "test_more.py": new_test})
    assert result.verdict == "verified"
    assert result.reason == "2 tests red before, green after; nothing else turned red"
    assert result.fixed == ("test_calc.py::test_add", "test_more.py::test_negative")
    assert result.new_tests == ("test_more.py::test_negative",)
    assert (result.broken, result.still_red) == ((), ())
    assert result.before.passed == ("test_calc.py::test_double",)
    assert result.after.complete
    first = {f"{kind}{tree}" for kind in ("", "added-") for tree in ("before", "after")}
    again = {f"{pair}-again-{number}" for pair in first - {"after"} for number in (1, 2, 3)}
    again -= {"before-again-3"}  # enough beside the repeats, which are the runs of the new tree
    assert logs(tmp_path) == first | again | {"inverted-1", "inverted-2"}
    assert result.repeats is not None
    assert result.repeats.runs == 6


def logs(folder: Path) -> set[str]:
    """Return the names of the runs that compare the trees."""
    names = {path.stem.removeprefix("verify-") for path in folder.glob("verify-*.log")}
    return {name for name in names if not name.startswith("repeat-")}


@pytest.mark.slow  # quick: test_verify.py
async def test_a_fix_that_breaks_something_is_not_verified(verification: RunVerification) -> None:
    result = await verification({"calc.py": FIXED.replace("a * 2", "a * 3")})
    assert (result.verdict, result.fixed) == ("failed", ("test_calc.py::test_add",))
    assert result.broken == ("test_calc.py::test_double",)


@pytest.mark.slow  # quick: test_verify.py
@pytest.mark.parametrize(
    "changes",
    [
        {"test_calc.py": TESTS.replace("== 5", "== -1")},
        {"test_calc.py": None},
        {"pytest.ini": "[pytest]\naddopts = --deselect test_calc.py::test_add\n"},
    ],
    ids=["weakened", "deleted", "deselected"],
)
async def test_a_patch_to_the_tests_alone_is_not_verified(
    verification: RunVerification, changes: dict[str, str | None]
) -> None:
    """Also if another test of the patch turns green."""
    own = {"more.py": "X = 1\n", "test_more.py": "def test_more():\n    import more\n    assert more.X\n"}
    result = await verification({**changes, **own})
    assert result.verdict == "failed"
    assert result.fixed == ("test_more.py::test_more",)
    assert result.still_red == ("test_calc.py::test_add",)


@pytest.mark.slow  # quick: test_verify.py
async def test_a_regression_test_added_to_an_existing_file_counts(verification: RunVerification) -> None:
    """No old test showed the bug, so the test that the patch adds beside the old ones has to show it."""
    untested = TESTS.replace("== 5", "is not None")
    added = untested + "def test_sum():\n    assert add(2, 3) == 5\n"
    result = await verification({"calc.py": FIXED, "test_calc.py": added}, tests=untested)
    assert (result.verdict, result.fixed) == ("verified", ("test_calc.py::test_sum",))
    assert result.new_tests == ("test_calc.py::test_sum",)


@pytest.mark.slow  # quick: test_verify.py
@pytest.mark.parametrize(
    ("added", "verdict"),
    [
        ("def test_sum():\n    assert add(2, 3)\n", "unverified"),
        ("def test_sum():\n    assert add(2, 3) == 6\n", "failed"),
    ],
    ids=["green before", "red after"],
)
async def test_a_regression_test_that_shows_nothing_does_not_count(
    verification: RunVerification, added: str, verdict: Verdict
) -> None:
    untested = TESTS.replace("== 5", "is not None")
    result = await verification({"calc.py": FIXED, "test_calc.py": untested + added}, tests=untested)
    assert (result.verdict, result.fixed) == (verdict, ())


@pytest.mark.slow  # quick: test_verify.py
async def test_a_new_conftest_hides_nothing(verification: RunVerification) -> None:
    own = {"more.py": "X = 1\n", "test_more.py": "def test_more():\n    import more\n    assert more.X\n"}
    hidden = {"conftest.py": "collect_ignore = ['test_calc.py']\n"}
    result = await verification({"calc.py": BUGGY.replace("a * 2", "a * 3"), **own, **hidden})
    assert result.verdict == "failed"
    assert result.broken == ("test_calc.py::test_double",)


async def test_the_error_of_a_failing_sandbox_is_raised_itself(verification: RunVerification) -> None:
    """The error is raised itself and not in an exception group, so that callers can catch it by its type."""
    with pytest.raises(SandboxError):
        await verification({"calc.py": FIXED}, image="m3agent.invalid/no-such-image:0")


SPREAD = "import calc\ndef test_add():\n    assert calc.add(2, 3) == 5\ndef test_double():\n    assert calc.double(2) == 4\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "verdict", "broken", "scope"),
    [
        ({"calc.py": FIXED}, "verified", (), Scope(2, 1, 1, 1)),
        later(  # quick: test_scope.py
            {"calc.py": FIXED.replace("a * 2", "a * 3")},
            "failed",
            ("test_calc.py::test_double",),
            Scope(2, 2, 2, 0),
        ),
        later(  # quick: test_scope.py
            {"calc.py": FIXED, "data.txt": "2\n"},
            "verified",
            (),
            Scope(2, 2, 2, 0, "data.txt is not Python code"),
        ),
    ],
    ids=["others run too", "broken", "everything"],
)
async def test_a_large_suite(
    verification: RunVerification,
    changes: dict[str, str | None],
    verdict: Verdict,
    broken: tuple[str, ...],
    scope: Scope,
) -> None:
    found = await verification(changes, tests=SPREAD, large=True)
    assert (found.verdict, found.broken, found.scope) == (verdict, broken, scope)
    assert found.fixed == ("test_calc.py::test_add",)


UNTESTED = ODD_HERE + TESTS.replace("== 5", "is not None")
STEADY = "1 test red before, green after; nothing else turned red"
LEFT_OUT = "; 1 flaky test not counted"
FLAKY = "def test_flaky():\n    assert not odd()\n"


@pytest.mark.slow  # quick: test_verify.py and test_flaky.py
@pytest.mark.parametrize(
    ("tests", "odd", "verdict", "reason"),
    [
        # red in the first run on the old tree only
        (UNTESTED + FLAKY, [{0}], "unverified", "no test was red before the patch, so none shows that it fixes the issue" + LEFT_OUT),
        # beside a test that shows the fix: red in some runs on both trees
        (ODD_HERE + TESTS + FLAKY, [{2}, {0}], "verified", STEADY + LEFT_OUT),
        (ODD_HERE + TESTS + FLAKY, [{2}, {0, 1, 2, 3}], "verified", STEADY + LEFT_OUT),
        # red in the first run on each tree, in the file of the fixed test
        (ODD_HERE + TESTS + FLAKY, [{0}, {0, 3}], "verified", STEADY + LEFT_OUT),
        (ODD_HERE + TESTS + FLAKY, [(), {0}], "verified", STEADY + LEFT_OUT),
    ],
    ids=["fixed", "broken", "broken apart", "still red", "broken once"],
)  # fmt: skip
async def test_a_flaky_test_counts_for_nothing(
    verification: RunVerification, tests: str, odd: list[set[int]], verdict: Verdict, reason: str
) -> None:
    result = await verification({"calc.py": FIXED}, tests=tests, odd=odd)
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.flaky == ("test_calc.py::test_flaky",)
    assert result.fixed == (() if tests.startswith(UNTESTED) else ("test_calc.py::test_add",))
    assert (result.broken, result.still_red) == ((), ())


@pytest.mark.slow  # quick: test_verify.py
async def test_what_the_patch_breaks_more_often_than_not_is_broken(verification: RunVerification) -> None:
    result = await verification({"calc.py": FIXED}, tests=ODD_HERE + TESTS + FLAKY, odd=[(), {0, 1, 3}])
    assert (result.verdict, result.broken, result.flaky) == ("failed", ("test_calc.py::test_flaky",), ())


@pytest.mark.slow
async def test_a_stable_failure_beside_a_flaky_one_counts(verification: RunVerification) -> None:
    patch = {"calc.py": FIXED.replace("a * 2", "a * 3")}
    result = await verification(patch, tests=ODD_HERE + TESTS + FLAKY, odd=[{1}, {0}])
    assert (result.verdict, result.broken) == ("failed", ("test_calc.py::test_double",))
    assert result.reason == "1 test passed before the patch and not after it" + LEFT_OUT


@pytest.mark.slow
async def test_a_file_that_cannot_be_imported_now_and_then(verification: RunVerification) -> None:
    """If the import fails, all tests of the file are missing, and the file has a red id."""
    new_test = "from calc import add\ndef test_negative():\n    assert add(-1, -2) == -3\n"
    tests = ODD_HERE + TESTS.replace("== 5", "is not None") + "assert not odd()\n"
    result = await verification({"calc.py": FIXED, "test_more.py": new_test}, tests=tests, odd=[{3}, {0}])
    assert (result.verdict, result.fixed) == ("verified", ("test_more.py::test_negative",))
    assert result.flaky == ("test_calc.py", "test_calc.py::test_add", "test_calc.py::test_double")


@pytest.mark.slow  # quick: test_verify.py and test_flaky.py
async def test_ids_that_are_new_in_every_run(verification: RunVerification) -> None:
    random = "import os, pytest\n@pytest.mark.parametrize('n', [os.urandom(8).hex()])\ndef test_random(n):\n    pass\n"
    result = await verification({"calc.py": FIXED}, tests=TESTS + random)
    assert (result.verdict, result.reason) == ("verified", STEADY + LEFT_OUT)
    (ident,) = result.flaky
    assert ident.startswith("test_calc.py::test_random[")


@pytest.mark.slow
async def test_tests_of_chance(verification: RunVerification) -> None:
    """After two runs, three in four of the 60 tests matter; 1 in 28 of these is missed. Fewer than 22: p < 1e-7."""
    chance = "import os, pytest\n@pytest.mark.parametrize('n', range(60))\ndef test_coin(n):\n    assert os.urandom(1)[0] & 1\n"
    result = await verification({"calc.py": FIXED}, tests=TESTS + chance)
    assert len(result.flaky) >= 22
    assert all("test_coin" in ident for ident in result.flaky)
    assert "test_calc.py::test_add" in result.fixed
    assert not set(result.flaky) & {*result.fixed, *result.broken, *result.still_red}
    assert f"{len(result.flaky)} flaky tests" in result.reason


@pytest.mark.slow  # quick: test_verify.py and test_flaky.py
async def test_one_that_depends_on_the_tests_before_it_is_not_flaky(
    verification: RunVerification, tmp_path: Path
) -> None:
    """Run alone, test_b is red on both trees; in the whole suite it shows the fix."""
    changes = {
        "calc.py": FIXED,
        "test_a.py": "import calc\ndef test_a():\n    calc.ready = True\n",
        "test_b.py": "import calc\ndef test_b():\n    assert calc.ready and calc.add(1, 1) == 2\n",
    }
    result = await verification(changes)
    assert (result.verdict, result.flaky) == ("verified", ())
    assert result.fixed == ("test_b.py::test_b", "test_calc.py::test_add")
    assert {name for name in logs(tmp_path) if "whole" in name} == {"added-after-whole-again"}


@pytest.mark.slow  # quick: test_verify.py and test_flaky.py
@pytest.mark.parametrize(
    ("odd", "verdict"), [([(), (), {0}], "unverified"), ([(), (), {1, 2}, {0}], "verified")]
)
async def test_flaky_tests_that_the_patch_writes_into_existing_files(
    verification: RunVerification, odd: list[set[int]], verdict: Verdict
) -> None:
    """The third and fourth tree have them: red once on the old code, or on both beside a test that shows the fix."""
    shown = "def test_sum():\n    assert add(2, 3) == 5\n" if verdict == "verified" else ""
    result = await verification(
        {"calc.py": FIXED, "test_calc.py": UNTESTED + FLAKY + shown}, tests=UNTESTED, odd=odd
    )
    assert (result.verdict, result.flaky) == (verdict, ("test_calc.py::test_flaky",))
    assert result.fixed == (("test_calc.py::test_sum",) if shown else ())
    assert LEFT_OUT in result.reason


@pytest.mark.slow  # quick: test_verify.py
async def test_no_rerun_without_a_changed_result(verification: RunVerification, tmp_path: Path) -> None:
    result = await verification({"calc.py": BUGGY + "\n"})
    assert (result.verdict, result.still_red) == ("failed", ("test_calc.py::test_add",))
    assert logs(tmp_path) == {"before", "after"}
