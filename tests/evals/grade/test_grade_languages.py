"""Grading of rows in other languages than Python: which suites, which files, which names. The results of tests are given."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.verify.review import Finding
from m3agent.evals.data.files import commit_folder
from m3agent.evals.data.instance import Answer, Instance
from m3agent.evals.data.results import Grade, Verdict
from m3agent.evals.grade import grader as grader_module
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.matching import Outcomes, ids_of
from m3agent.evals.grade.row_suites import suites_of_row, targets_of_row
from m3agent.evals.grade.strict import TestRun, run_of
from m3agent.evals.grade.trees import Trees, grading_trees
from m3agent.evals.grade.validate import HARMLESS
from m3agent.sandbox.store.git import TreeStore
from m3agent.tools.runners.base import Tree
from m3agent.tools.test_report import EMPTY, Signs, exception_line
from tests.agent.repositories import write_files
from tests.evals.calc_instance import diff, small_instance

pytestmark = pytest.mark.integration  # each test starts git many times

GO = ("go.mod", "add.go", "add_test.go", "tools/cli_test.go")
JS = ("web/package.json", "web/add.js", "web/add.test.js")
MIXED = (*GO, *JS, "service/test_calc.py")
MANIFEST = b'{"scripts": {"test": "node --test"}}'


def tree_of(*paths: str) -> Tree:
    return Tree(paths, lambda path: MANIFEST if path.endswith("package.json") else b"")


def answer_of(*names: str, runner: str = "", touches: str = "", command: str = "") -> Answer:
    patch = f"--- a/{touches}\n+++ b/{touches}\n" if touches else ""
    return Answer(
        patch="", test_patch=patch, fail_to_pass=names, runner=runner, test_command=command, timeout=60
    )


@pytest.mark.parametrize(
    ("answer", "paths", "graded"),
    [
        (answer_of("TestAdd"), GO, ["go:."]),
        (answer_of("add_test.go::TestAdd"), MIXED, ["go:."]),
        (answer_of("adds", touches="web/add.test.js"), MIXED, ["node-test:web"]),
        (answer_of("TestAdd"), (*GO, *JS), ["go:.", "node-test:web"]),
        (answer_of("TestAdd", runner="go", touches="web/add.test.js"), MIXED, ["go:."]),
        (answer_of("test_add (service.test_calc.Case)", touches="service/test_calc.py"), MIXED, []),
        (answer_of("test_add"), ("test_calc.py",), []),
        (answer_of("TestAdd", runner="pytest"), GO, []),
        (answer_of("TestAdd", runner="django"), GO, []),
    ],
    ids=[
        "the only one", "file of an id", "file of the test patch", "no file", "named",
        "Python's file", "only Python", "named Python", "Django",
    ],
)  # fmt: skip
def test_the_rows_own_tests_decide_the_suites(
    answer: Answer, paths: tuple[str, ...], graded: list[str]
) -> None:
    assert [suite.name for suite in suites_of_row(answer, tree_of(*paths)).graded] == graded


@pytest.mark.parametrize(
    ("answer", "paths", "why"),
    [
        (
            answer_of("Adds"),
            ("calc.cs", "CalcTests.cs"),
            r"no test runner .* fits its code \(no tests were found\)",
        ),
        (answer_of("adds", runner="jest"), JS, r"has no tests for jest \(found: node-test in web"),
        (answer_of("adds"), MIXED, "in which language its tests are .* environment.test_runner"),
        (answer_of("adds", touches="x.txt"), MIXED, "in which language"),
    ],
    ids=["no runner", "another runner", "unclear", "no test file"],
)
def test_a_row_that_no_runner_fits_says_why(answer: Answer, paths: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        suites_of_row(answer, tree_of(*paths))


def test_a_repositorys_own_command_grades_nothing() -> None:
    text = b'[tests]\ncommand = "./run"\nreport = "tap"\n'
    tree = Tree([".m3agent.toml", "run"], lambda _: text)
    with pytest.raises(ValueError, match="found: command"):
        suites_of_row(answer_of("adds"), tree)


@pytest.mark.parametrize(
    ("answer", "targets"),
    [
        (answer_of("add_test.go::TestAdd", "go:.::tools/cli_test.go::TestX"), ["add_test.go", "tools/cli_test.go"]),
        (answer_of("TestAdd", "add_test.go::TestAdd"), ["."]),
        (answer_of("TestAdd", command="CI=1 go test -v ./tools/... tools"), ["tools"]),
        (answer_of("adds", command="npx node --test web/add.test.js web/none.js"), ["web/add.test.js"]),
        (answer_of("TestAdd", command="go test ./..."), ["."]),
    ],
)  # fmt: skip
def test_only_the_named_tests_run(answer: Answer, targets: list[str]) -> None:
    assert targets_of_row(answer, tree_of(*MIXED)) == targets


IDS = [
    "add_test.go::TestAdd",
    "add_test.go::TestAdd/two_words",
    "web/add.test.js::cart > adds two numbers",
    "web/add.test.js::cart > is empty",
    "web/list.test.js::list > is empty",
    "pytest:.::web/c.test.js::is total",
    "src/test/java/p/ATest.java::p.ATest > works",
    "tools",
]


@pytest.mark.parametrize(
    ("name", "ident"),
    [
        ("add_test.go::TestAdd", 0),
        ("TestAdd", 0),
        ("TestAdd/two_words", 1),
        ("cart adds two numbers", 2),
        ("cart \u203a adds two numbers (5 ms)", 2),
        ("adds two numbers", 2),
        ("web/list.test.js > list > is empty", 4),
        ("web/c.test.js::is total", 5),
        ("p.ATest#works", 6),
    ],
)
def test_a_name_of_a_runner_is_an_id(name: str, ident: int) -> None:
    assert ids_of([name, name], IDS) == {name: IDS[ident]}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["two numbers"], "no test with the reference patch has the name two numbers"),
        (["TestSub"], "has the name TestSub"),
        ([""], "no test with"),
        (["is empty"], "fits several tests, such as web/add.test.js.* and web/list.test.js"),
        (["TestAdd", "add_test.go::TestAdd"], "TestAdd and add_test.go::TestAdd fit the same test"),
    ],
)
def test_a_name_that_is_not_that_of_one_test_is_refused(names: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ids_of(names, IDS)


def test_many_names_take_no_longer_than_their_number() -> None:
    idents = [f"a.test.js::suite > case {number}" for number in range(20_000)]
    started = time.process_time()
    assert ids_of(idents, dict.fromkeys(idents)).keys() == set(idents)
    assert time.process_time() - started < 3


def test_a_test_that_vanished_is_not_looked_for_under_another_name() -> None:
    of_others = {"b_test.go::TestAdd": "passed", "b_test.go::42": "failed"}
    outcomes = Outcomes(of_others, {"TestAdd": "add_test.go::TestAdd"})
    assert not outcomes.passed("TestAdd") and not outcomes.passed("add_test.go::TestAdd")
    assert outcomes.counts("42")  # junk only of pytest
    assert Outcomes(of_others).passed("TestAdd")  # Python's names are looser


def trees_of(
    folder: Path,
    files: Mapping[str, str],
    fix: Mapping[str, str],
    patch: Mapping[str, str | None],
    tests: Mapping[str, str] | None = None,
) -> tuple[Trees, dict[str, str]]:
    """Return the trees of a row without test ids, and the graded files."""
    write_files(folder / "code", files)
    store = TreeStore(folder / "store.git")
    base = commit_folder(store, folder / "code")
    answer = Answer(
        patch=diff(folder / "fix", files, fix).decode(),
        test_patch=diff(folder / "tests", files, tests or {}).decode(),
        fail_to_pass=(),
        runner="",
    )
    trees = grading_trees(store, base, answer, diff(folder / "patch", files, patch))
    return trees, {entry.path: store.get_blob(entry.sha).decode() for entry in store.list_tree(trees.tree)}


WEB = {
    "package.json": '{"scripts": {"test": "node --test"}}\n',
    "add.js": "wrong\n",
    "add.test.js": "old test\n",
}


def test_tests_and_what_decides_how_they_run_are_the_rows_own(tmp_path: Path) -> None:
    trees, files = trees_of(
        tmp_path,
        WEB,
        {"add.js": "right\n"},
        {
            "package.json": '{"exports": "./add.js", "scripts": {"test": "true"}}\n',
            "add.js": "a patch\n",
            "add.test.js": "weaker\n",
            "more.test.js": "forged\n",
            ".npmrc": "node-options=--require ./x.js\n",
        },
        {"add.test.js": "new test\n"},
    )
    assert (files["add.js"], files["add.test.js"]) == ("a patch\n", "new test\n")
    assert files.keys() == {"package.json", "add.js", "add.test.js"}
    assert '"./add.js"' in files["package.json"] and "node --test" in files["package.json"]
    assert set(trees.undone) == {"package.json", "add.test.js", "more.test.js", ".npmrc"}
    assert trees.tests == ("add.test.js",)
    assert [suite.name for suite in trees.suites.graded] == ["node-test:."]


MODULE = {"go.mod": "module a\n", "add.go": "wrong\n", "add_test.go": "test\n"}


@pytest.mark.parametrize(
    ("changed", "content", "undone"),
    [
        ("module a\nrequire b v1\n", "module a\nrequire b v1\n", ()),
        ("module a\nrequire forged v1\n", "module a\n", ("go.mod",)),
    ],
    ids=["as the reference", "otherwise"],
)
def test_a_manifest_counts_only_as_the_row_has_it(
    tmp_path: Path, changed: str, content: str, undone: tuple[str, ...]
) -> None:
    fix = {"go.mod": "module a\nrequire b v1\n", "add.go": "right\n"}
    trees, files = trees_of(tmp_path, MODULE, fix, {"go.mod": changed, "add.go": "mine\n"})
    assert (files["go.mod"], files["add.go"], trees.undone) == (content, "mine\n", undone)


RUST = "pub fn add() -> u8 { 1 }\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() { OLD }\n}\n"


def test_tests_beside_the_code_are_those_of_the_reference(tmp_path: Path) -> None:
    files = {"Cargo.toml": '[package]\nname = "a"\n', "src/lib.rs": RUST, "src/b.rs": RUST}
    right = RUST.replace("OLD", "NEW")
    weaker = RUST.replace("OLD", "").replace("{ 1 }", "{ 2 }")
    fix = {"src/lib.rs": right.replace("{ 1 }", "{ 3 }"), "src/b.rs": right}
    trees, graded = trees_of(tmp_path, files, fix, {"src/lib.rs": weaker})
    assert "{ 2 }" in graded["src/lib.rs"] and "NEW" in graded["src/lib.rs"]
    assert "NEW" in graded["src/b.rs"]
    assert trees.review == ()
    inside = {"src/lib.rs": "mod a {\n    #[test]\n    fn b() {}\n}\n"}
    trees, _ = trees_of(tmp_path / "inside", files, fix, inside)
    assert trees.review == (
        Finding("src/lib.rs", 1, "", "has tests that cannot be told apart from its code"),
    )


def test_a_redefined_macro_of_assertions_needs_a_reader_unless_the_reference_has_it(tmp_path: Path) -> None:
    files = {
        "CMakeLists.txt": "enable_testing()\nadd_test(NAME t COMMAND t)\n",
        "add.c": "int a;\n",
        "t.c": "",
    }
    known = "#define NDEBUG\nint a;\n"
    found = []
    for name, fix in (("a", {"add.c": "int b;\n"}), ("b", {"add.c": known})):
        trees, _ = trees_of(tmp_path / name, files, fix, {"add.c": known + "int mine;\n"})
        found.append([finding.what for finding in trees.review])
    assert found == [["redefines the macro NDEBUG"], []]


FIX, KEEP = "add.test.js::cart > adds", "add.test.js::cart > is empty"
BOTH = {FIX: "passed", KEEP: "passed"}
BEFORE = {FIX: "failed", KEEP: "passed"}
Runs = Mapping[str, TestRun]


def a_run(outcomes: Mapping[str, str] = BOTH, **more: Any) -> TestRun:
    return TestRun(dict(outcomes), ids={}, **{"complete": True, **more})


class GivenRuns:
    """Grades patches with given results of the tests, by the content of `add.js`: `right`, `wrong`, `mine`.

    Attributes:
        ran: The contents that ran, in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results: Runs = {}
        self.ran: list[str] = []
        self._patches = {
            word: diff(folder / word, WEB, {"add.js": f"{word}\n"}) for word in ("right", "mine")
        }
        self._instance = small_instance(
            folder,
            WEB,
            patch=self._patches["right"].decode(),
            test_patch=diff(folder / "new", WEB, {"add.test.js": "new\n"}).decode(),
            runner="",
            test_command="node --test",
        )

    async def run(self, _: Instance, trees: Trees, *__: object) -> TestRun:
        entries = {entry.path: entry.sha for entry in trees.store.list_tree(trees.tree)}
        self.ran.append(trees.store.get_blob(entries["add.js"]).decode().strip())
        return self._results[self.ran[-1]]

    async def grade(self, results: Runs, patch: str = "mine", names: tuple[str, str] = (FIX, KEEP)) -> Grade:
        self._results = results
        self.ran.clear()
        update = {"fail_to_pass": names[:1], "pass_to_pass": names[1:]}
        instance = self._instance.with_answer(**update)
        text = HARMLESS if patch == "wrong" else self._patches[patch]
        return await Grader(self._folder / "state", print).strict(instance, text, None, self._folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> GivenRuns:
    return GivenRuns(tmp_path_factory.mktemp("row"))


@pytest.fixture
def given(prepared: GivenRuns, monkeypatch: pytest.MonkeyPatch) -> GivenRuns:
    monkeypatch.setattr(grader_module, "run_suites_of", prepared.run)
    return prepared


RESULTS: Runs = {"right": a_run(), "wrong": a_run(BEFORE), "mine": a_run()}


async def test_ids_and_names_of_the_runner_are_graded_alike(given: GivenRuns) -> None:
    for names in ((FIX, KEEP), ("cart adds", "cart is empty (2 ms)")):
        for patch in ("right", "mine"):
            grade = await given.grade(RESULTS, patch, names=names)
            assert (grade.verdict, grade.reason) == (Verdict.RESOLVED, "")
            assert (grade.fail_to_pass.passed, grade.pass_to_pass.passed) == (1, 1)
        harmless = await given.grade(RESULTS, "wrong", names=names)
        assert harmless.verdict is Verdict.UNRESOLVED
        assert harmless.reason == f"1 test to fix did not pass, such as {names[0]}"


async def test_a_run_with_the_ids_of_the_row_needs_no_other_run(given: GivenRuns) -> None:
    await given.grade(RESULTS)
    assert given.ran == ["mine"]


@pytest.mark.parametrize(
    ("mine", "why"),
    [
        (a_run({KEEP: "passed"}), "1 test to fix did not pass, such as cart adds"),
        (a_run({"b.test.js::cart > adds": "passed", KEEP: "passed"}), "1 test to fix"),
        (a_run({FIX: "passed", KEEP: "skipped"}), "1 test to keep"),
        (a_run(complete=False), "the test run did not finish"),
        (a_run(signs=Signs(forged=("a test that cannot pass passed",))), "tampered with: a test that"),
        (a_run({FIX: "failed", KEEP: "passed"}, errors={FIX: "2 is not 5"}), "cart adds: 2 is not 5"),
        (
            a_run({}, not_run={"node-test:.": "the process ended"}, output="the process ended"),
            "no tests ran: the process ended",
        ),
    ],
    ids=["vanished", "another test", "skipped", "cut short", "forged", "red", "ended the process"],
)
async def test_a_patch_that_only_seems_green_is_unresolved(given: GivenRuns, mine: TestRun, why: str) -> None:
    grade = await given.grade({**RESULTS, "mine": mine}, names=("cart adds", "is empty"))
    assert grade.verdict is Verdict.UNRESOLVED
    assert why in grade.reason


MISSING = a_run({}, not_run={"go:.": "go is not installed"})


@pytest.mark.parametrize(
    ("right", "names", "why"),
    [
        (MISSING, ("cart adds", "is empty"), "its tests cannot run here, because those of go:. could not: go is not"),
        (a_run(), ("cart adds", "is full"), "no test with the reference patch has the name is full"),
        (a_run({**BOTH, "b.test.js::is empty": "passed"}), ("cart adds", "empty"), "has the name empty"),
        (a_run({**BOTH, "b.test.js::cart > is empty": "passed"}), ("cart adds", "is empty"), "fits several tests"),
        (
            a_run({FIX: "passed"}, complete=False),
            ("cart adds", "is empty"),
            "and the test run with the reference patch did not finish",
        ),
    ],
    ids=["no toolchain", "unknown name", "part of a title", "ambiguous name", "cut short"],
)  # fmt: skip
async def test_a_row_that_cannot_be_graded_is_invalid_for_every_patch(
    given: GivenRuns, right: TestRun, names: tuple[str, str], why: str
) -> None:
    for patch in ("mine", "right", "wrong"):
        grade = await given.grade({**RESULTS, "right": right}, patch, names=names)
        assert grade.verdict is Verdict.INVALID and why in grade.reason


def registered(argv: str) -> Mapping[str, str]:
    facts = '"env": [], "cwd": "", "expected to fail": false, "disabled": false, "skip": [], "facts": {}'
    return {"add.test.js::t": f'{{"argv": ["{argv}"], {facts}, "sources": []}}'}


@pytest.mark.parametrize(
    ("mine", "right", "verdict"),
    [
        ("t", "t", Verdict.RESOLVED),
        ("true", "t", Verdict.UNRESOLVED),
        ("t --new", "t --new", Verdict.RESOLVED),
    ],
    ids=["unchanged", "another command", "as the reference"],
)
async def test_a_build_that_changes_tests_otherwise_than_the_reference_needs_a_reader(
    given: GivenRuns, mine: str, right: str, verdict: Verdict
) -> None:
    grade = await given.grade(
        {
            "wrong": a_run(BEFORE, registrations=registered("t")),
            "right": a_run(registrations=registered(right)),
            "mine": a_run(registrations=registered(mine)),
        }
    )
    assert grade.verdict is verdict
    if verdict is Verdict.UNRESOLVED:
        assert grade.reason.startswith(
            "needs review: add.test.js:1 is built or run in another way (its command"
        )


def test_a_report_becomes_results() -> None:
    report = EMPTY.__class__(
        ("a",), ("b",), ("c",), ("d",), {"b": "no"}, complete=True, timed_out=False, seconds=1.5, exit=1,
        output="said", truncated=False, signs=Signs(forged=("x",)), not_run={"go:.": "no go"},
    )  # fmt: skip
    run = run_of(report, ["a was changed while the tests ran"])
    assert run.outcomes == {"a": "passed", "b": "failed", "c": "error", "d": "skipped"}
    assert run.signs.forged == ("x", "a was changed while the tests ran")
    assert (run.ids, run.errors, run.output, run.test_seconds) == ({}, {"b": "no"}, "said\nno go", 1.5)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "t.py:3: in test_x\nassert f() == 150\nE assert 137.5 == 150\nE + where 137.5 = f()",
            "assert 137.5 == 150",
        ),
        ("E ValueError: x\n\nDuring handling:\nE KeyError: 'y'\nE more", "KeyError: 'y'"),
        ("ImportError: no\nlast\n", "last"),
        ("", ""),
    ],
)
def test_the_reason_names_the_exception_and_not_its_explanation(text: str, line: str) -> None:
    assert exception_line(text) == line
