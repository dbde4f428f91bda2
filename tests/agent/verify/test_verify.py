"""Test what verifies a patch: the verdict, the trees that are compared, and which tests run how often.

All in memory: see tests/fakes. test_verify_sandboxes.py verifies with real tests in real sandboxes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from m3agent.agent.verify import gathering
from m3agent.agent.verify.inverted_runs import CopiesSeen
from m3agent.agent.verify.pair import FREE_SECONDS, Repeats
from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.rules import Verdict
from m3agent.agent.verify.tree_runs import MadeRun, TreeRuns
from m3agent.agent.verify.trees import trees_to_compare, trees_with_new_tests
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.run_tests import EVERYTHING
from m3agent.tools.runners.python import is_surrounding, is_test_file
from m3agent.tools.runners.suites import suites_of
from m3agent.tools.test_report import TestReport
from tests.agent.verify.test_rules import report
from tests.fakes.machine import Command, Done, memory_sandbox
from tests.fakes.suite import Run, Suite
from tests.fakes.trees import files_of, memory_workspace
from tests.tools.report_lines import request_of

REGULAR = 0o100644


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("test_a.py", True),
        ("src/pkg/a_test.py", True),
        ("conftest.py", True),
        ("tests/data/x.json", True),
        ("src/test/help.py", True),
        ("testing/help.py", True),
        ("testing.py", False),
        ("src/latest_a.py", False),
        ("test_a.txt", False),
        ("contest/a.py", False),
    ],
)
def test_what_is_a_test_file(path: str, result: bool) -> None:
    assert is_test_file(path) is result


# -- which files count -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "base", "result"),
    [
        ("pytest.ini", ["pytest.ini"], True),
        (".pytest.ini", [], True),
        ("sub/pytest.toml", [], True),
        (".pytest.toml", [], True),
        ("tox.ini", [], True),
        ("sub/setup.cfg", [], True),
        ("pyproject.toml", [], True),
        ("a.pth", [], True),
        ("lib/x.pth", [], True),
        ("sitecustomize.py", [], True),
        ("usercustomize/__init__.py", [], True),
        ("json.py", [], True),
        ("json/deep/x.py", [], True),
        ("pytest.py", [], True),
        ("_pytest/x.py", [], True),
        ("src/json.py", [], True),
        ("src/pytest/__init__.py", [], True),
        # modules of the repository itself, whatever their names
        ("json.py", ["json.py"], False),
        ("json/new.py", ["json/__init__.py"], False),
        ("src/json/new.py", ["src/json/__init__.py"], False),
        ("src/json.py", ["json.py"], True),
        ("json.py", ["src/json.py"], True),
        ("json.py", ["json5.py", "jsonlib/x.py"], True),
        # names inside a package hide no other module
        ("pkg/json.py", [], False),
        ("calc.py", [], False),
        ("setup.py", [], False),
        ("jsonx.py", [], False),
        ("src.py", [], False),
    ],
)
def test_what_decides_how_tests_run(path: str, base: list[str], result: bool) -> None:
    assert is_surrounding(path, base) is result


def test_most_paths_are_not_compared_with_those_of_the_base() -> None:
    """A patch with many files would take minutes."""

    class Uncounted(set[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError

    assert not is_surrounding("app/models/cart.py", Uncounted())


BASE = {"a.py": "old\n", "test_a.py": "old test\n", "tests/gone.py": "old\n", "pytest.ini": "old\n"}


def patched(
    folder: Path, base: Mapping[str, str], changes: Mapping[str, str | None]
) -> tuple[Workspace, Patch]:
    """Return a workspace over `base`, and the patch that makes these changes; None deletes a file."""
    workspace = memory_workspace(folder, base)
    changed = [(path, REGULAR, text.encode()) for path, text in changes.items() if text is not None]
    deleted = [path for path, text in changes.items() if text is None]
    return workspace, workspace.patch(workspace.commit_changes(workspace.base, changed, deleted))


CHANGES = {
    "a.py": "new\n",
    "b.py": "new\n",
    "test_a.py": "weaker test\n",
    "test_new.py": "new test\n",
    "tests/gone.py": None,
    "tests/conftest.py": "hide\n",
    "pytest.ini": "hide\n",
    "tests/pytest.ini": "hide\n",
    "json.py": "hide\n",
}


def test_the_old_tests_count(tmp_path: Path) -> None:
    """The patch's changes to old tests are undone; the tests that it adds are in both trees."""
    workspace, patch = patched(tmp_path, BASE, CHANGES)
    trees = trees_to_compare(PatchedFiles(workspace, patch))
    code = {**BASE, "a.py": "new\n", "b.py": "new\n"}
    assert files_of(workspace, trees.old) == {**BASE, "test_new.py": "new test\n"}
    assert files_of(workspace, trees.new) == {**code, "test_new.py": "new test\n"}
    assert files_of(workspace, trees.without) == code
    assert (trees.added, trees.imported) == (("test_new.py",), ())


def test_tests_that_the_patch_writes_into_existing_files(tmp_path: Path) -> None:
    """Both trees have all tests as the patch leaves them; the files that decide how tests run stay old."""
    workspace, patch = patched(tmp_path, BASE, CHANGES)
    trees = trees_with_new_tests(PatchedFiles(workspace, patch))
    assert trees is not None
    tests = {"test_a.py": "weaker test\n", "test_new.py": "new test\n", "tests/conftest.py": "hide\n"}
    assert files_of(workspace, trees[0]) == {"a.py": "old\n", "pytest.ini": "old\n", **tests}
    assert files_of(workspace, trees[1]) == {"a.py": "new\n", "b.py": "new\n", "pytest.ini": "old\n", **tests}


@pytest.mark.parametrize(
    "changes", [{"a.py": "new\n"}, {"test_new.py": "new\n"}, {"test_a.py": None}, {"pytest.ini": "new\n"}]
)
def test_without_a_changed_test_file_there_are_no_such_trees(
    tmp_path: Path, changes: Mapping[str, str | None]
) -> None:
    workspace, patch = patched(tmp_path, BASE, changes)
    assert trees_with_new_tests(PatchedFiles(workspace, patch)) is None


COMPARES = "class Sum(int):\n    def __eq__(self, other):\n        return int(self) == int(other)\n"


@pytest.mark.parametrize(
    ("code", "reviewed", "wanted"),
    [
        ("x = 2\n", False, (False, False)),
        ("x = 2\n", True, (True, False)),
        ("import sys\nx = sys._getframe()\n", False, (True, False)),
        (COMPARES, False, (False, True)),
    ],
)
async def test_only_variants_run_that_could_decide(
    code: str, reviewed: bool, wanted: tuple[bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden values matter beside lines for review, and the unchanged test beside code that decides comparisons."""
    tests = "import calc\ndef test_x():\n    assert calc.x == 2\n"
    workspace, patch = patched(tmp_path, {"calc.py": "x = 1\n", "test_calc.py": tests}, {"calc.py": code})
    chosen = list[tuple[bool, bool]]()

    async def run_copies(_: object, run: object, *, with_hidden: bool, with_unchanged: bool) -> CopiesSeen:
        chosen.append((with_hidden, with_unchanged))
        return CopiesSeen()

    monkeypatch.setattr(gathering, "run_copies", run_copies)
    runs = TreeRuns(SandboxesAhead(workspace.store, memory_sandbox), tmp_path)
    copies = gathering.CopyRuns(runs, PatchedFiles(workspace, patch))
    await copies.begin(patch.tree, {"test_calc.py::test_x"}, (), reviewed=reviewed)
    assert chosen == [wanted]


# -- whole verifications -----------------------------------------------------------------------------------------------

CODE = "a-b a*2"
"""The code has a bug; fixed code contains `a+b`."""
FIXED = CODE.replace("-", "+")
TESTS = "add a+b\ndouble a*2\n"
"""Each line of a test file is a test and the word that the code must contain. See `Trial.run_tests`."""
GREEN = "sum a\ndouble a*2\n"
FLAKY = "flaky odd\n"
LEFT_OUT = "; 1 flaky test not counted"
STEADY = "1 test red before, green after; nothing else turned red"
NOTHING_RED = "no test was red before the patch, so none shows that it fixes the issue"


@dataclass
class Trial:
    """Verifies changes to code with made-up tests.

    odd: for the base tree, then for each other tree in order of first use, the sandboxes (from 0) in which tests that ask for
    `odd` fail.
    """

    folder: Path
    odd: Sequence[Collection[int]] = ()
    issue: str = "It is wrong."
    seconds: float = 1.0
    seconds_again: float | None = None
    """Seconds of the further runs, if they take longer."""
    runs: dict[str, int] = field(default_factory=dict)
    made: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """Tree, run number and targets of each run."""
    selections: list[list[str]] = field(default_factory=list)
    """The ids of each run of some tests only."""

    async def __call__(
        self,
        changes: Mapping[str, str | None],
        tests: str = TESTS,
        reruns: int = 3,
        more: Mapping[str, str] = {},  # never modified
        baseline: TestReport | None = None,
    ) -> Verification:
        base = {"calc.py": CODE, "test_calc.py": tests, **more}
        workspace, patch = patched(self.folder, base, changes)

        async def known() -> TestReport | None:
            return baseline

        self.runs[workspace.base] = -1
        runs = TreeRuns(SandboxesAhead(workspace.store, self.fresh), self.folder)
        given = known if baseline is not None else None
        found = await verify(workspace, patch, runs, reruns, given, issue=self.issue)
        trees = trees_to_compare(PatchedFiles(workspace, patch))
        assert (found.old_tree, found.new_tree) == (trees.old, trees.new)
        return found

    def fresh(self, of: Workspace) -> Sandbox:
        """Return a sandbox for one run on a tree."""
        place = list[int]()

        def run(files: Mapping[str, str], targets: Sequence[str]) -> Run:
            if not place:  # some sandboxes start before they are needed
                number = self.runs[of.base] = self.runs.get(of.base, -1) + 1
                place.extend((list(self.runs).index(of.base), number))
            tree, number = place
            self.made.append((tree, number, list(targets)))
            is_odd = tree < len(self.odd) and number in self.odd[tree]
            slow = self.seconds_again is not None and targets != ["."]
            seconds = self.seconds_again if slow and self.seconds_again is not None else self.seconds
            return Run(*self.run_tests(files, targets, is_odd), seconds)

        suite = Suite(run)

        async def noted(command: Command) -> Done | None:
            if given := request_of(command):
                selection = given["request"]
                self.selections += [selection["only"]] if selection.get("only") else []
            return await suite(command)

        return memory_sandbox(of, noted)

    @staticmethod
    def run_tests(
        files: Mapping[str, str], targets: Sequence[str], is_odd: bool
    ) -> tuple[dict[str, str], bool]:
        """Return outcomes by id, and whether the run was complete.

        A test is green if the code contains its word. A test with the word `odd` is red in odd runs only. A test called
        `import` stands for the whole file, one called `hang` ends the run if it is red, one called `skip` is skipped.
        """
        outcomes: dict[str, str] = {}
        code = "".join(text for path, text in files.items() if not path.startswith("test_"))
        for path in sorted(path for path in files if path.startswith("test_")):
            if targets != ["."] and f"./{path}" not in targets:
                continue
            for name, word in (line.split() for line in files[path].splitlines()):
                green = not is_odd if word == "odd" else word in code
                if name == "skip":
                    outcomes[f"{path}::{word}"] = "skipped"
                elif name != "import":
                    outcomes[f"{path}::{name}"] = "passed" if green else "failed"
                if name == "import" and not green:
                    outcomes[path] = "error"
                    break
                if name == "hang" and not green:
                    return outcomes, False
        return outcomes, True

    def logs(self) -> set[str]:
        """Return the names of the runs, from their logs."""
        return {path.stem.removeprefix("verify-") for path in self.folder.glob("verify-*.log")}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def ids(names: str) -> tuple[str, ...]:
    return tuple(f"test_calc.py::{name}" for name in names.split())


OLD_TEST = "def test_old():\n    assert 1\n"
NEW_TEST = "def test_add():\n    assert add() == 2\n"


@pytest.mark.parametrize("place", ["test_calc.py", "test_new.py"])
@pytest.mark.parametrize("broken", [False, True])
async def test_copies_of_the_patchs_own_tests_run_while_the_old_tests_run(
    tmp_path: Path, place: str, broken: bool
) -> None:
    """The whole suite ends only after a run of the copies. They run once, whatever the verdict then is."""
    base = {"calc.py": "old\n", "test_calc.py": OLD_TEST}
    text = base.get(place, "")
    workspace, patch = patched(tmp_path, base, {"calc.py": "new\n", place: f"{text}\n\n{NEW_TEST}"})
    copied = asyncio.Event()
    runs_of_copies = list[Collection[str]]()

    def run(files: Mapping[str, str], targets: Sequence[str]) -> Run:
        new = files["calc.py"] == "new\n"
        green = {"test_old": not (broken and new), "test_add": new}
        names = [
            (path, line.removeprefix("def ").removesuffix("():"))
            for path in files
            if path.startswith("test_") and (targets == ["."] or f"./{path}" in targets)
            for line in files[path].splitlines()
            if line.startswith("def ")
        ]
        return Run({f"{path}::{name}": "passed" if green.get(name) else "failed" for path, name in names})

    suite = Suite(run)

    async def waiting(command: Command) -> Done | None:
        if given := request_of(command):
            if given["request"].get("variants"):
                runs_of_copies.append(given["request"]["only"])
                copied.set()
            elif given["request"]["targets"] == ["."]:
                await asyncio.wait_for(copied.wait(), 10)
        return await suite(command)

    async def known() -> TestReport:
        return replace(report(), passed=("test_calc.py::test_old",))

    runs = TreeRuns(SandboxesAhead(workspace.store, lambda of: memory_sandbox(of, waiting)), tmp_path)
    found = await verify(workspace, patch, runs, 0, known, issue="It is wrong.")
    assert (found.verdict, found.tampering) == ("failed" if broken else "verified", ())
    assert len(runs_of_copies) == len({frozenset(idents) for idents in runs_of_copies}) >= 1


@pytest.mark.parametrize(
    ("specifier", "new", "verdict", "reason"),
    [
        (">=3.12", FIXED, "verified", STEADY),
        (
            "==3.7.*",
            FIXED,
            "unverified",
            f"not tested on Python 3.7, which the project needs; on 3.12.4: {STEADY}",
        ),
        (
            ">=3.13",
            CODE + " ",
            "unverified",
            (
                "not tested on Python 3.13, which the project needs; on 3.12.4: no test turned green: 1 test red before and "
                "after the patch"
            ),
        ),
        ("==3.7.*", "a+b", "failed", "1 test passed before the patch and not after it"),
    ],
    ids=["accepted", "not accepted", "red on another Python", "broken on another Python"],
)
async def test_only_results_on_a_python_that_the_project_accepts_verify(
    trial: Trial, specifier: str, new: str, verdict: str, reason: str
) -> None:
    project = f'[project]\nname = "calc"\nrequires-python = "{specifier}"\n'
    result = await trial({"calc.py": new}, reruns=0, more={"pyproject.toml": project})
    assert (result.verdict, result.reason) == (verdict, reason)


async def test_the_runs_that_the_verdict_rests_on_are_recorded(trial: Trial) -> None:
    """A test is counted once for each run that had it, on the side of the run."""
    result = await trial({"calc.py": FIXED}, reruns=2)
    sides = Counter(
        run.patched for run in result.runs for ident in ids("add") if ident in {*run.passed, *run.red}
    )
    assert sides == {False: 1 + 2, True: 1 + result.repeats.runs}
    assert {ident for run in result.runs if run.patched for ident in run.passed} == {*ids("add double")}
    assert {ident for run in result.runs if not run.patched for ident in run.red} == {*ids("add")}


async def test_a_known_result_is_recorded_as_one_run(trial: Trial) -> None:
    baseline = replace(report(), passed=ids("double"), failed=ids("add"))
    result = await trial({"calc.py": FIXED}, reruns=0, baseline=baseline)
    old = [run for run in result.runs if run.patched is False]
    assert old == [MadeRun("baseline", False, ids("double"), ids("add"))]


async def test_only_the_runs_of_this_verification_are_recorded(tmp_path: Path) -> None:
    workspace, patch = patched(tmp_path, {"calc.py": CODE, "test_calc.py": TESTS}, {"calc.py": FIXED})
    trial = Trial(tmp_path)
    runs = TreeRuns(SandboxesAhead(workspace.store, trial.fresh), tmp_path)
    await runs.run(patch.base, "earlier")
    found = await verify(workspace, patch, runs, 0)
    assert [(run.name, run.patched) for run in runs.made] == [("earlier", None)], "it is not compared"
    assert {run.name for run in found.runs} >= {"verify-before", "verify-after"}


async def test_the_side_of_a_run_follows_from_its_tree(trial: Trial) -> None:
    """Whatever a run is called, its tree decides."""
    result = await trial({"calc.py": FIXED}, reruns=1)
    sides = {run.name: run.patched for run in result.runs}
    assert {side for name, side in sides.items() if "before" in name} == {False}
    assert {side for name, side in sides.items() if "before" not in name} == {True}


TOOL = {"tool/go.mod": "module tool\n", "tool/add.go": "package tool\n", "tool/add_test.go": "package tool\n"}
ADD, DOUBLE = "pytest:.::test_calc.py::add", "pytest:.::test_calc.py::double"
ONLY_PYTHON = "ran pytest:.; not affected by the patch and not run: go:tool"


async def test_a_suite_whose_toolchain_is_missing_does_not_count(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED, "tool/add.go": "new\n"}, more=TOOL)
    assert (result.verdict, result.fixed) == ("verified", (ADD,))
    assert result.reason.startswith(f"{STEADY}; the tests of go:tool could not run here: ")
    assert result.left_out == ()


async def test_a_suite_that_the_patch_does_not_affect_does_not_run(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, more=TOOL)
    assert (result.verdict, result.fixed, result.left_out) == ("verified", (ADD,), ("go:tool",))
    assert (result.reason, result.after.not_run) == (f"{STEADY}; {ONLY_PYTHON}", {})
    other = await trial({"tool/add.go": "new\n"}, more=TOOL)
    assert (other.verdict, other.left_out, other.after.ran) == ("unverified", ("pytest:.",), 0)
    assert other.reason.endswith("; not affected by the patch and not run: pytest:.")


async def test_results_of_a_suite_that_did_not_run_count_neither_way(trial: Trial) -> None:
    """The baseline has all suites."""
    go = "go:tool::tool/add_test.go"
    baseline = replace(
        report(), passed=(f"{go}::TestA", DOUBLE), failed=(f"{go}::TestB", ADD), not_run={"go:tool": "why"}
    )
    result = await trial({"calc.py": FIXED}, more=TOOL, baseline=baseline)
    assert (result.verdict, result.fixed, result.broken, result.still_red) == ("verified", (ADD,), (), ())
    assert (result.before.ids, result.before.not_run) == ({ADD, DOUBLE}, {})
    assert result.reason == f"{STEADY}; {ONLY_PYTHON}"


@pytest.mark.parametrize(("name", "verdict"), [("wrong", "failed"), ("other", "verified")])
async def test_a_red_test_that_the_issue_is_about_in_a_suite_that_did_not_run(
    trial: Trial, name: str, verdict: Verdict
) -> None:
    """Only the patch's own tests show a fix, and the patch cannot have fixed the test of the issue."""
    red = f"go:tool::tool/add_test.go::{name}"
    baseline = replace(report(), passed=(ADD.replace("add", "sum"), DOUBLE), failed=(red,))
    changes = {"calc.py": FIXED, "test_new.py": "shown a+b\n"}
    result = await trial(changes, tests=GREEN, more=TOOL, baseline=baseline)
    assert (result.verdict, result.own_only) == (verdict, True)
    assert (red in result.reason) == (verdict == "failed")


@pytest.mark.parametrize(
    ("issue", "verdict"),
    [
        ("late() is never right", "failed"),
        ("late() and add() are wrong", "verified"),
        ("It is slow", "verified"),
    ],
)
async def test_a_red_test_that_the_issue_is_about_stays_red_beside_another_fix(
    trial: Trial, issue: str, verdict: Verdict
) -> None:
    """The patch repairs another fault than the issue's. It counts if a test about the issue turned green as well."""
    trial.issue = issue
    result = await trial({"calc.py": FIXED}, more={"test_other.py": "late never\n"})
    assert (result.verdict, result.still_red) == (verdict, ("test_other.py::late",))
    assert (result.rule == "issue_still_red") == (verdict == "failed")


async def test_the_same_tests_of_other_suites_run_again(trial: Trial) -> None:
    workspace, patch = patched(
        trial.folder, {"calc.py": CODE, "test_calc.py": GREEN, **TOOL}, {"calc.py": FIXED}
    )
    runs = TreeRuns(SandboxesAhead(workspace.store, trial.fresh), trial.folder)
    few = replace(runs, suites=suites_of(workspace.store, patch.base)[:1])
    first = await few.run_once(patch.tree, "few", EVERYTHING)
    assert await few.run_once(patch.tree, "few", EVERYTHING) is first
    assert await runs.run_once(patch.tree, "all", EVERYTHING) is not first


async def test_a_fix_is_verified(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED, "test_more.py": "negative a+b\n"})
    assert (result.verdict, result.reason) == (
        "verified",
        "2 tests red before, green after; nothing else turned red",
    )
    assert result.fixed == (*ids("add"), "test_more.py::negative")
    assert result.new_tests == ("test_more.py::negative",)
    assert (result.broken, result.still_red, result.flaky) == ((), (), ())
    assert (result.before.passed, result.after.complete) == (ids("double"), True)
    assert 0 <= result.seconds < 30
    first = {f"{kind}{tree}" for kind in ("", "added-") for tree in ("before", "after")}
    again = {f"{pair}-again-{number}" for pair in first - {"after"} for number in (1, 2, 3)}
    assert trial.logs() == first | (again - {"before-again-3"}) | {
        f"repeat-{sandbox}-{number}" for sandbox in (1, 2, 3) for number in (1, 2)
    }
    targets = [targets for _, _, targets in trial.made]
    assert sorted(targets[:4]) == [["."]] * 2 + [["./test_more.py"]] * 2
    assert sorted(targets[4:]) == [["./test_calc.py"]] * 8 + [["./test_more.py"]] * 6
    assert result.repeats == Repeats(6, 6.0, frozenset(), frozenset(), {})


async def test_with_a_baseline_only_the_new_tree_runs(trial: Trial) -> None:
    base = (await trial({"calc.py": "a"}, reruns=0)).before
    trial.made.clear()
    found = await trial({"calc.py": FIXED}, reruns=0, baseline=base)
    assert (found.verdict, found.before) == ("verified", base)
    assert [targets for _, _, targets in trial.made] == [["."]]
    assert trial.logs() == {"before", "after"}, "before is from the first verification"


async def test_tests_that_the_patch_adds_run_on_the_old_code_beside_a_baseline(trial: Trial) -> None:
    base = (await trial({"calc.py": "a"}, reruns=0)).before
    trial.made.clear()
    changes = {"calc.py": FIXED, "test_new.py": "new a+b\n", "test_none.py": "", "tests/data.json": "{}"}
    found = await trial(changes, reruns=0, baseline=base)
    assert found.fixed == (*ids("add"), "test_new.py::new")
    assert (found.before.failed, found.before.passed) == ((*ids("add"), "test_new.py::new"), ids("double"))
    assert sorted(targets for _, _, targets in trial.made) == [
        ["."],
        *[["./test_new.py", "./test_none.py"]] * 2,
    ]


async def test_added_tests_never_run_in_one_process_with_the_old_ones(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An added test file could change what the old tests show, such as by replacing the code under test."""

    def run_tests(files: Mapping[str, str], targets: Sequence[str], _: bool) -> tuple[dict[str, str], bool]:
        helped = "test_new.py" in files
        return {
            **dict.fromkeys(ids("add"), "passed" if helped else "failed"),
            "test_new.py::new": "passed",
        }, True

    monkeypatch.setattr(trial, "run_tests", run_tests)
    found = await trial({"test_new.py": "new a\n"}, reruns=0)
    assert "test_calc.py::add" not in found.fixed
    assert found.new_tests == ("test_new.py::new",)


@pytest.mark.parametrize(
    ("settings", "targets", "only"),
    [
        ({}, ["./test_b.py"], ["test_b.py"]),
        ({"setup.cfg": "[tool:pytest]\naddopts = -q\n"}, ["./test_b.py"], ["test_b.py"]),
        (
            {"setup.cfg": "[tool:pytest]\npython_files = check_*.py\n"},
            ["."],
            ["test_b.py", "tests/check_c.py"],
        ),
    ],
)
def test_added_files_with_odd_names_are_tests_if_settings_say_so(
    tmp_path: Path, settings: dict[str, str], targets: list[str], only: list[str]
) -> None:
    added = ["test_b.py", "tests/check_c.py", "tests/data.json"]
    workspace, patch = patched(tmp_path, {"a.py": "", **settings}, dict.fromkeys(added, "x\n"))
    found = gathering._added_tests(PatchedFiles(workspace, patch), added)
    assert (list(found.targets), found.only) == (targets, only)


async def test_changed_test_files_run_alone_on_both_codes(trial: Trial) -> None:
    more = {"test_other.py": "other a*2\n"}
    base = (await trial({"calc.py": "a"}, tests=GREEN, more=more, reruns=0)).before
    trial.made.clear()
    changes = {"calc.py": FIXED, "test_calc.py": GREEN + "plus a+b\n"}
    found = await trial(changes, tests=GREEN, more=more, reruns=0, baseline=base)
    assert (found.verdict, found.fixed) == ("verified", ids("plus"))
    assert [targets for _, _, targets in trial.made] == [["."], ["./test_calc.py"], ["./test_calc.py"]]
    trial.made.clear()
    changes["tests/conftest.py"] = "helps\n"
    more["tests/conftest.py"] = "hinders\n"
    await trial(changes, tests=GREEN, more=more, reruns=0, baseline=base)
    assert [targets for _, _, targets in trial.made] == [["."]] * 3, "a changed helper may affect every test"


async def test_only_the_tests_that_the_verdict_rests_on_are_run_again(trial: Trial) -> None:
    found = await trial({"calc.py": FIXED}, tests=TESTS + FLAKY)
    assert found.verdict == "verified"
    again = (trial.folder / "verify-before-again-1.log").read_bytes()
    assert again, "the run took place"
    assert trial.selections == [["test_calc.py::add"]] * 2


async def test_without_reruns_each_tree_is_run_once(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, reruns=0)
    assert result.verdict == "verified"
    assert trial.logs() == {"before", "after"}


async def test_only_files_that_the_verdict_rests_on_are_run_again(trial: Trial) -> None:
    await trial({"calc.py": FIXED}, more={"test_other.py": "other a*2\nred never\n"})
    assert {tuple(targets) for _, number, targets in trial.made if number} == {("./test_calc.py",)}


@pytest.mark.parametrize(("most", "targets"), [(2, ["./test_calc.py", "./test_more.py"]), (1, ["."])])
async def test_too_many_files_rerun_the_whole_suite(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, most: int, targets: list[str]
) -> None:
    monkeypatch.setattr("m3agent.agent.verify.pair.MOST_FILES", most)
    more = {"test_more.py": "more a+b\n"}
    await trial({"calc.py": FIXED}, more=more)
    assert [made[2] for made in trial.made] == [["."]] * 2 + [targets] * 8


async def test_a_fix_that_breaks_something_is_not_verified(trial: Trial) -> None:
    result = await trial({"calc.py": "a+b a*3"})
    assert (result.verdict, result.fixed, result.broken) == ("failed", ids("add"), ids("double"))
    assert len(trial.made) == 8, "what is broken is run again as well"


async def test_no_rerun_without_a_changed_result(trial: Trial) -> None:
    result = await trial({"calc.py": f"{CODE} c"})
    assert (result.verdict, result.still_red) == ("failed", ids("add"))
    assert trial.logs() == {"before", "after"}


async def test_a_run_that_is_cut_short_is_not_made_good_by_another(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED.replace("a*2", "")}, tests="add a+b\nhang a*2\nlast a\n")
    assert result.verdict == "failed"
    assert not result.after.complete
    assert trial.logs() == {"before", "after"}


async def test_a_run_that_is_cut_short_with_nothing_lost(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, tests="add a+b\nhang never\n")
    assert (result.verdict, result.rule) == ("unverified", "same_obstacle"), "it is not the patch's fault"
    result = await trial({"calc.py": FIXED}, tests="add a+b\nhang a-b\n")
    assert (result.verdict, result.rule) == ("failed", "lost")


async def test_a_run_that_was_cut_short_before_the_patch(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, tests="hang a+b\nlast a\nred never\n")
    assert (result.fixed, result.still_red) == (ids("hang"), ids("red"))
    assert result.verdict == "failed"
    assert "still red, also in the same test file" in result.reason


@pytest.mark.parametrize(
    "changes", [{"test_calc.py": "add a\ndouble a*2\n"}, {"test_calc.py": None}], ids=["weakened", "deleted"]
)
async def test_a_patch_to_the_tests_alone_is_not_verified(
    trial: Trial, changes: Mapping[str, str | None]
) -> None:
    """Also if another test of the patch turns green."""
    result = await trial({**changes, "more.py": "more", "test_more.py": "more more\n"})
    assert (result.verdict, result.fixed, result.still_red) == (
        *("failed", ("test_more.py::more",)),
        ids("add"),
    )
    assert result.reason == "1 test red before and after in test files that the patch changes"


@pytest.mark.parametrize(("path", "verdict"), [("pytest.ini", "failed"), ("notes.ini", "verified")])
async def test_a_configuration_is_every_test_file_s(trial: Trial, path: str, verdict: Verdict) -> None:
    result = await trial({path: "x", "more.py": "more", "test_more.py": "more more\n"})
    assert (result.verdict, result.still_red) == (verdict, ids("add"))
    said = "1 test red before and after; the patch's changes to pytest.ini do not count"
    assert result.reason.startswith(said) == (verdict == "failed")


async def test_new_tests_are_those_of_added_files(trial: Trial) -> None:
    """Both green and red ones, but not those of existing files."""
    result = await trial({"calc.py": FIXED, "test_more.py": "more a+b\nred never\nskip x\n"})
    assert result.new_tests == ("test_more.py::more", "test_more.py::red")


# tests in existing files, if no other test shows the fix


async def test_a_test_added_to_an_existing_file_counts_where_nothing_else_does(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED, "test_calc.py": f"{GREEN}shown a+b\nother a\n"}, tests=GREEN)
    assert (result.verdict, result.fixed) == ("verified", ids("shown"))
    told = "1 test added by the patch: red on the old code, green on the new"
    assert (result.reason, result.own_only) == (f"{told}; shown only by the patch's own tests", True)
    assert result.new_tests == ids("other shown")
    assert {log for log in trial.logs() if "new-tests" in log} == {
        f"new-tests-{tree}{run}"
        for tree in ("before", "after")
        for run in ("", "-again-1", "-again-2", "-again-3")
    }
    assert result.before.passed == ids("double sum"), "the runs that are shown are those of the old tests"


async def test_a_changed_test_counts_where_nothing_else_does(trial: Trial) -> None:
    """Fixes often add an assertion to an existing test."""
    result = await trial({"calc.py": FIXED, "test_calc.py": "sum a+b\ndouble a*2\n"}, tests=GREEN)
    assert (result.verdict, result.fixed, result.new_tests) == ("verified", ids("sum"), ())
    told = "1 test added or changed by the patch: red on the old code, green on the new"
    assert (result.reason, result.own_only) == (f"{told}; shown only by the patch's own tests", True)


@pytest.mark.parametrize(
    ("tests", "changed", "verdict"),
    [
        (GREEN, "sum a*2\ndouble a*2\n", "unverified"),
        (GREEN, "sum a+c\ndouble a*2\n", "failed"),
        (f"{GREEN}wrong never\n", f"{GREEN}wrong a+b\n", "failed"),
        (f"{GREEN}skip wrong\n", f"{GREEN}wrong a+b\n", "unverified"),
    ],
    ids=["green on the old code", "red on the new code", "weakened", "no longer skipped"],
)
async def test_changed_tests_that_show_nothing(
    trial: Trial, tests: str, changed: str, verdict: Verdict
) -> None:
    result = await trial({"calc.py": FIXED, "test_calc.py": changed}, tests=tests)
    assert (result.verdict, result.fixed) == (verdict, ())


async def test_a_test_added_to_an_existing_file_is_no_evidence_beside_others(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED, "test_calc.py": f"{TESTS}shown a+b\n"})
    assert (result.verdict, result.fixed, result.new_tests) == ("verified", ids("add"), ids("shown"))
    assert not any("new-tests" in log and "again" in log for log in trial.logs())


@pytest.mark.parametrize("changed", [f"{TESTS}wrong never\n", TESTS.replace("double a*2", "double never")])
async def test_a_red_test_of_the_patch_fails_it_although_other_tests_show_the_fix(
    trial: Trial, changed: str
) -> None:
    """With such a patch, the user's own test run is red."""
    result = await trial({"calc.py": FIXED, "test_calc.py": changed})
    assert (result.verdict, result.fixed) == ("failed", ids("add"))
    assert result.added_red == ids("wrong" if "wrong" in changed else "double")
    assert result.reason == "1 test that the patch adds or changes is red"


@pytest.mark.parametrize(
    ("tests", "added"),
    [
        (GREEN, "shown a\n"),
        (GREEN, "shown a+b\nhang never\n"),
        (f"{GREEN}skip shown\n", "shown a+b\n"),
        (GREEN, "skip shown\n"),
    ],
    ids=["green before", "cut short", "not new", "skipped"],
)
async def test_added_tests_that_show_nothing(trial: Trial, tests: str, added: str) -> None:
    result = await trial({"calc.py": FIXED, "test_calc.py": tests + added}, tests=tests)
    assert (result.verdict, result.reason, result.flaky) == ("unverified", NOTHING_RED, ())
    assert not any("again" in log for log in trial.logs()), "a rerun could not change the verdict"


@pytest.mark.parametrize(
    "added", ["shown never\n", "shown a+b\nred never\n"], ids=["alone", "beside a green one"]
)
async def test_a_red_test_that_the_patch_adds_fails_it(trial: Trial, added: str) -> None:
    result = await trial({"calc.py": FIXED, "test_calc.py": GREEN + added}, tests=GREEN)
    red = ids("red" if "red" in added else "shown")
    assert (result.verdict, result.added_red) == ("failed", red)
    assert result.reason == "1 test that the patch adds or changes is red"
    assert set(red) <= result.errors.keys()
    assert result.undone == ("test_calc.py",)
    assert any("again" in log for log in trial.logs()), "it may be flaky"


async def test_files_that_cannot_be_imported_either_way_show_nothing(trial: Trial) -> None:
    more = {"test_broken.py": "import never\n", "test_other.py": "import never\n"}
    result = await trial({"calc.py": FIXED}, tests=GREEN, more=more)
    assert result.verdict == "unverified"
    assert result.reason == (
        "cannot be tested here, because 2 test files cannot be imported with or without the patch: test_broken.py error"
    )
    assert result.still_red == ("test_broken.py", "test_other.py")
    changed = await trial(
        {"calc.py": FIXED, "test_broken.py": "import never\nmore a\n"}, tests=GREEN, more=more
    )
    assert changed.verdict == "unverified", "a change to such a file shows nothing either"


async def test_a_file_that_the_patch_adds_must_be_importable(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED, "test_new.py": "import never\n"}, tests=GREEN)
    assert (result.verdict, result.added_red) == ("failed", ("test_new.py",))


async def test_what_can_be_tested_still_decides(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, more={"test_broken.py": "import never\n"})
    assert (result.verdict, result.fixed) == ("verified", ids("add"))
    lost = await trial({"calc.py": "a"}, more={"test_broken.py": "import never\n"})
    assert (lost.verdict, lost.broken) == ("failed", ids("double"))


async def test_changes_that_do_not_count_are_named(trial: Trial) -> None:
    changes = {
        "calc.py": FIXED,
        "test_calc.py": f"{TESTS}more a\n",
        "conftest.py": "",
        "pytest.ini": "",
        "doc.txt": "",
    }
    result = await trial(changes)
    assert result.undone == ("conftest.py", "pytest.ini", "test_calc.py")


async def test_no_tests_at_all(trial: Trial) -> None:
    result = await trial({"calc.py": FIXED}, tests="")
    assert (result.verdict, result.reason) == ("unverified", "there are no tests to check the patch")


# flaky tests


@pytest.mark.parametrize(
    ("tests", "odd", "verdict", "reason"),
    [
        (GREEN, [{0}], "unverified", NOTHING_RED),
        (TESTS, [{2}, {0}], "verified", STEADY),
        (TESTS, [{2}, {0, 1, 2, 3}], "verified", STEADY),
        (TESTS, [{0}, {0, 3}], "verified", STEADY),
        (TESTS, [(), {0}], "verified", STEADY),
        (TESTS, [{1, 2, 3, 4}, {2}], "verified", STEADY),
    ],
    ids=["fixed", "broken", "broken apart", "still red", "broken once", "red in a further run"],
)
async def test_a_flaky_test_counts_for_nothing(
    trial: Trial, tests: str, odd: list[set[int]], verdict: Verdict, reason: str
) -> None:
    trial.odd = odd
    result = await trial({"calc.py": FIXED}, tests=tests + FLAKY)
    assert (result.verdict, result.reason) == (verdict, reason + LEFT_OUT)
    assert result.flaky == ids("flaky")
    assert result.fixed == (() if tests == GREEN else ids("add"))
    assert (result.broken, result.still_red) == ((), ())


@pytest.mark.parametrize("tests", [TESTS, GREEN])
async def test_a_fixed_test_that_only_the_patch_makes_flaky_is_unstable(trial: Trial, tests: str) -> None:
    trial.odd = [{0, 1, 2, 3}, {2}]
    result = await trial({"calc.py": FIXED}, tests=tests + FLAKY)
    assert (result.verdict, result.flaky) == ("unverified", ())
    assert result.reason == "unstable: 1 fixed test red in some of 6 further runs"


async def test_what_the_patch_breaks_more_often_than_not_is_broken(trial: Trial) -> None:
    trial.odd = [(), {0, 1, 3}]
    result = await trial({"calc.py": FIXED}, tests=TESTS + FLAKY)
    assert (result.verdict, result.broken, result.flaky) == ("failed", ids("flaky"), ())


@pytest.mark.parametrize("odd", [{2, 5}, {0, 5, 8}], ids=["green at first", "flaky at first"])
async def test_what_the_patch_breaks_now_and_then_is_broken(trial: Trial, odd: Collection[int]) -> None:
    """It turns red in one of the three additional sandboxes of the new tree, and when both trees are compared.

    If it is red at first, three reruns decide that it is flaky, and the additional runs begin after them.
    """
    trial.odd = [(), odd]
    result = await trial({"calc.py": FIXED}, tests=TESTS + FLAKY)
    assert (result.verdict, result.broken, result.flaky) == ("failed", ids("flaky"), ())
    assert (
        result.reason
        == "1 test red in several of 12 further runs with the patch, and in none of 12 without it"
    )


async def test_one_that_depends_on_the_tests_before_it_is_not_flaky(trial: Trial) -> None:
    """Run alone, the test is red on both trees; in the whole suite, which is run once more, it shows the fix.

    But nobody knows whether the patch fixes it, or makes it green in the company of others only.
    """
    trial.odd = [{0, 1, 2, 3, 4}, {1, 2, 3}]
    result = await trial({"calc.py": FIXED}, tests=GREEN + FLAKY)
    assert (result.verdict, result.rule) == ("unverified", "always_red")
    assert (result.fixed, result.flaky) == (ids("flaky"), ())
    assert {log for log in trial.logs() if "whole" in log} == {"after-whole-again"}
    assert (1, 4, ["."]) in trial.made


async def test_both_trees_are_run_whole_again_where_both_are_unsettled(trial: Trial) -> None:
    trial.odd = [{0, 4}, {1, 2, 3}]
    await trial({"calc.py": FIXED}, tests=GREEN + FLAKY)
    assert {log for log in trial.logs() if "whole" in log} == {"before-whole-again", "after-whole-again"}


@pytest.mark.parametrize(
    ("odd", "shown", "verdict"), [([(), (), {0}], "", "unverified"), ([(), (), {1, 2}, {0}], "shown a+b\n", "verified")]
)  # fmt: skip
async def test_flaky_tests_that_the_patch_writes_into_existing_files(
    trial: Trial, odd: list[set[int]], shown: str, verdict: Verdict
) -> None:
    """The third and fourth tree have them: red once on the old code, or on both beside a test that shows the fix."""
    trial.odd = odd
    result = await trial({"calc.py": FIXED, "test_calc.py": GREEN + FLAKY + shown}, tests=GREEN)
    assert (result.verdict, result.flaky) == (verdict, ids("flaky"))
    assert result.fixed == (ids("shown") if shown else ())
    assert LEFT_OUT in result.reason


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 6), (100.0, 6), (250.0, 3)])
async def test_the_number_of_further_runs_does_not_depend_on_the_load(
    trial: Trial, seconds: float, runs: int
) -> None:
    """They may take much longer than the first run. If there is no time for all of them, the patch is not verified."""
    trial.seconds_again = seconds
    result = await trial({"calc.py": FIXED})
    assert result.repeats is not None
    assert (result.repeats.runs, result.repeats.missing) == (runs, 6 - runs)
    assert result.rule == ("fixed" if runs == 6 else "no_time_for_further_runs")


async def test_without_an_issue_no_red_test_is_about_it(trial: Trial) -> None:
    """Only the patch's own test shows the fix, and a test elsewhere stays red."""
    trial.issue = ""
    changes = {"calc.py": FIXED, "test_new.py": "plus a+b\n"}
    result = await trial(changes, tests=GREEN, more={"test_other.py": "other never\n"})
    assert (result.verdict, result.own_only, result.still_red) == (
        "verified",
        True,
        ("test_other.py::other",),
    )


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(FREE_SECONDS / 2, 3), (FREE_SECONDS / 2 + 0.1, 2), (FREE_SECONDS + 1, 2)]
)
async def test_reruns_end_when_they_took_longer_than_the_first_runs(
    trial: Trial, seconds: float, rounds: int
) -> None:
    """But they get some seconds in any case, and a run that has started is finished."""
    trial.seconds = seconds
    found = await trial({"calc.py": "broken"})
    assert found.verdict == "failed"
    assert sum("after-again" in log for log in trial.logs()) == rounds


# sandboxes


async def test_a_sandbox_that_fails_is_an_error(trial: Trial) -> None:
    """The error is raised itself and not in an exception group, so that callers can catch it by its type."""

    def dying(of: Workspace) -> Sandbox:
        async def die(_: Command) -> Done:
            await sandbox.machine.destroy()
            return await asyncio.Future()

        sandbox = memory_sandbox(of, die)
        return sandbox

    workspace, patch = patched(trial.folder, {"calc.py": CODE}, {"calc.py": FIXED})
    with pytest.raises(SandboxDied):
        await verify(workspace, patch, TreeRuns(SandboxesAhead(workspace.store, dying), trial.folder))


async def test_each_run_has_a_sandbox_of_its_own_that_is_closed(trial: Trial) -> None:
    made: list[Sandbox] = []
    fresh = trial.fresh

    def noted(of: Workspace) -> Sandbox:
        made.append(fresh(of))
        return made[-1]

    workspace, patch = patched(trial.folder, {"calc.py": CODE, "test_calc.py": TESTS}, {"calc.py": FIXED})
    await verify(workspace, patch, TreeRuns(SandboxesAhead(workspace.store, noted), trial.folder), 1)
    assert len(made) == len(set(map(id, made))) == 6, "two of the repeated runs have one together"
    trees = trees_to_compare(PatchedFiles(workspace, patch))
    assert {sandbox.workspace.base for sandbox in made} == {trees.old, trees.new}
    for sandbox in made:
        with pytest.raises(SandboxDied):
            await sandbox.ping()


@pytest.mark.parametrize(
    ("changes", "selected"),
    [
        ({"test_a.py": "def test_x(): pass\ndef test_y(): pass\n"}, (["./test_a.py"], {"test_a.py::test_y"})),
        ({"test_a.py": "X = 1\ndef test_x(): pass\n"}, (["./test_a.py"], {"test_a.py"})),
        (
            {"test_a.py": "def test_x(): assert 1\n", "test_new.py": "def test_z(): pass\n"},
            (["./test_a.py"], {"test_a.py::test_x"}),
        ),
        ({"test_a.py": "# a comment\ndef test_x(): pass\n"}, None),
        ({"test_a.py": None}, None),
        ({"test_a.py": "def test_x(): assert 1\n", "conftest.py": ""}, ((".",), ())),
        ({"test_a.py": "def test_x(): assert 1\n", "tests/data.json": ""}, ((".",), ())),
    ],
)
def test_selection_of_changed_tests(
    tmp_path: Path, changes: dict[str, str | None], selected: tuple[object, object] | None
) -> None:
    workspace, patch = patched(
        tmp_path, {"test_a.py": "def test_x(): pass\n", "tests/data.json": "{}"}, changes
    )
    runs = TreeRuns(SandboxesAhead(workspace.store, memory_sandbox), tmp_path)
    found = gathering._changed_tests(PatchedFiles(workspace, patch), runs, 0)
    assert (found and (found.selection.targets, found.selection.only)) == selected


async def test_few_changed_tests_run_beside_the_old_ones(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are new functions of a file of real Python; the old tests show nothing."""
    old, new = "def test_x(): pass\n", "def test_x(): pass\ndef test_y(): open('calc.py')\n"

    def run_tests(files: Mapping[str, str], targets: Sequence[str], _: bool) -> tuple[dict[str, str], bool]:
        outcomes = {"test_calc.py::test_x": "passed"}
        if "test_y" in files["test_calc.py"]:
            outcomes["test_calc.py::test_y"] = "passed" if "a+b" in files["calc.py"] else "failed"
        return outcomes, True

    monkeypatch.setattr(trial, "run_tests", run_tests)
    found = await trial({"calc.py": FIXED, "test_calc.py": new}, tests=old, reruns=0)
    assert (found.verdict, found.fixed) == ("verified", ids("test_y"))
    assert trial.selections == [["test_calc.py::test_y"]] * 2
    assert sorted(targets for _, _, targets in trial.made) == [["."]] * 2 + [["./test_calc.py"]] * 2


async def test_the_same_tests_of_the_same_tree_run_once(trial: Trial) -> None:
    """The model adds a test to an existing file: then the new code with the old tests is as before."""
    base = {"calc.py": CODE, "test_calc.py": GREEN}
    workspace, patch = patched(trial.folder, base, {"calc.py": FIXED})
    runs = TreeRuns(SandboxesAhead(workspace.store, trial.fresh), trial.folder)
    first = await verify(workspace, patch, runs, 0)
    assert first.verdict == "unverified"
    assert len(trial.made) == 2
    tests = [("test_calc.py", REGULAR, f"{GREEN}plus a+b\n".encode())]
    again = workspace.patch(workspace.commit_changes(patch.tree, tests, []))
    second = await verify(workspace, again, runs, 0)
    assert (second.verdict, second.after) == ("verified", first.after)
    assert [targets for _, _, targets in trial.made[2:]] == [["./test_calc.py"]] * 2


async def test_a_run_that_was_cut_short_is_made_again(trial: Trial) -> None:
    workspace, patch = patched(
        trial.folder, {"calc.py": CODE, "test_calc.py": "hang a+b\n"}, {"calc.py": "a"}
    )
    runs = TreeRuns(SandboxesAhead(workspace.store, trial.fresh), trial.folder)
    for _ in range(2):
        await verify(workspace, patch, runs, 0)
    assert len(trial.made) == 4


async def test_a_new_test_in_an_existing_file_counts_beside_red_tests_elsewhere(trial: Trial) -> None:
    more = {"test_other.py": "other never\n"}
    result = await trial({"calc.py": FIXED, "test_calc.py": GREEN + "plus a+b\n"}, tests=GREEN, more=more)
    assert (result.verdict, result.fixed) == ("verified", ids("plus"))
    assert result.reason == (
        "1 test added by the patch: red on the old code, green on the new; 1 test elsewhere still red; "
        "shown only by the patch's own tests"
    )
    assert result.still_red == ("test_other.py::other",)
    wrong = await trial({"calc.py": "a a*2", "test_calc.py": GREEN + "plus a+b\n"}, tests=GREEN, more=more)
    assert (wrong.verdict, wrong.added_red) == ("failed", ids("plus"))
    nothing = await trial({"calc.py": FIXED, "test_calc.py": GREEN + "sum a\n"}, tests=GREEN, more=more)
    assert (nothing.verdict, nothing.reason) == (
        "failed",
        "no test turned green: 1 test red before and after the patch",
    )


class Compared(str):
    """A path that counts how often paths are compared."""

    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)


def test_many_changed_test_files_are_not_compared_with_each_other(tmp_path: Path) -> None:
    paths = [f"tests/test_{number:03}.py" for number in range(200)]
    workspace, patch = patched(tmp_path, dict.fromkeys(paths, "one a\n"), dict.fromkeys(paths, "one a+b\n"))
    files = PatchedFiles(workspace, replace(patch, paths=tuple(map(Compared, patch.paths))))
    Compared.times = 0
    trees_to_compare(files)
    assert files.contents(files.patch.paths) == {}
    assert Compared.times < 30 * len(paths)
