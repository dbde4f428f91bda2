"""Test the verification of large suites: which tests are selected, what has no time, and what the verdict says of it.

All in memory: see tests/fakes. test_verify_sandboxes.py has a large suite in a real sandbox.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from m3agent.agent.verify import scope as scopes
from m3agent.agent.verify.feedback import feedback_on
from m3agent.agent.verify.pair import FREE_SECONDS, Repeats
from m3agent.agent.verify.related import files_of_tests_near
from m3agent.agent.verify.scope import Scope, compared, divided, hung, selected_tests
from m3agent.agent.verify.tree_runs import PER_RECORDED_TEST, PER_TEST, TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.execution_map import ExecutionMap, pack
from m3agent.tools.in_sandbox.runner import Selection
from m3agent.tools.test_report import TestReport
from tests.agent.verify.test_verify import patched
from tests.fakes.machine import Command, Done, memory_sandbox
from tests.tools.report_lines import report_of, request_of

CODE = "def first():\n    return 1\n\n\ndef second():\n    return 2\n"
FIXED = CODE.replace("return 1", "return 10")
FUNCTIONS = (("code.py", 1, "first"), ("code.py", 5, "second"))
WORDS = {"test_a.py::fix": "return 10", "test_a.py::near": "first", "test_b.py::far": "return 2"}
"""Each test and the text that the code must contain."""


def at_import(executed: Mapping[str, Collection[int]]) -> ExecutionMap:
    """Return what runs while tests are imported, by path."""
    return ExecutionMap(FUNCTIONS, {path: pack(numbers) for path, numbers in executed.items()}, ())


def suite_of(executed: Mapping[str, Collection[int]] | None = None, **changes: object) -> TestReport:
    """Return the result of all tests on the base tree, with what they execute."""
    ran = (
        {"test_a.py::fix": [0], "test_a.py::near": [0], "test_b.py::far": [1]}
        if executed is None
        else executed
    )
    known = ExecutionMap(
        FUNCTIONS, {ident: pack(numbers) for ident, numbers in ran.items()}, (), at_import({".": []})
    )
    report = TestReport(
        passed=("test_a.py::near", "test_b.py::far"),
        failed=("test_a.py::fix",),
        errored=(),
        skipped=(),
        errors={"test_a.py::fix": "assert 1 == 10"},
        complete=True,
        timed_out=False,
        seconds=1000.0,
        exit=1,
        output="",
        truncated=False,
        executed=known,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


@dataclass
class Trial:
    """Verifies changes of a repository with a large suite.

    least: Seconds that a run must have so that its tests start; others are stopped before their first test.
    late: Ids of tests before which each run is stopped.
    needs: Ids of tests that are red unless another one is in the same run, and the other one's id.
    """

    folder: Path
    least: float = 0.0
    late: tuple[str, ...] = ()
    needs: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=lambda: dict(WORDS))
    selections: list[dict[str, object]] = field(default_factory=list)
    _reports: dict[str, bytes] = field(default_factory=dict)

    async def __call__(
        self,
        changes: Mapping[str, str | None],
        baseline: TestReport,
        seconds: float = 300.0,
        more: Mapping[str, str] = {},  # never modified
        reruns: int = 0,
    ) -> Verification:
        base = {"code.py": CODE, "test_a.py": "", "test_b.py": "", **more}
        workspace, patch = patched(self.folder, base, changes)

        async def known() -> TestReport | None:
            return baseline

        return await verify(
            workspace,
            patch,
            TreeRuns(SandboxesAhead(workspace.store, self.fresh), self.folder),
            reruns,
            known,
            seconds,
        )

    def fresh(self, of: Workspace) -> Sandbox:
        return memory_sandbox(of, self._answer)

    async def _answer(self, command: Command) -> Done | None:
        if (given := request_of(command)) is not None:
            request = given["request"]
            self.selections.append(request)
            selection = Selection(request)
            stopped = request["until"] is not None and request["until"] < self.least
            code = "".join(text for path, text in command.files.texts().items() if path == "code.py")
            lines = [
                (
                    "result",
                    ident,
                    "passed" if word in code and self._has_need(ident, selection) else "failed",
                    "0",
                    "E",
                )
                for ident, word in self.words.items()
                if selection.has(ident) and ident.partition("::")[0] in command.files.texts() and not stopped
            ]
            in_time = [line for line in lines if line[1] not in self.late]
            stopped, lines = stopped or in_time != lines, in_time
            end = ("end", "2", "1") if stopped else ("end", "0", "")
            self._reports[given["report"]] = report_of([*lines, end], bytes.fromhex(given["key"]))
            return Done()
        match command.argv:
            case ["sh", "-c", program, "sh", report] if "cat" in program:
                return Done(stdout=self._reports.pop(report, b""))
        return None

    def _has_need(self, ident: str, selection: Selection) -> bool:
        return ident not in self.needs or selection.has(self.needs[ident])


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


async def test_tests_that_execute_the_change_run_first_and_others_after_them(trial: Trial) -> None:
    found = await trial({"code.py": FIXED}, suite_of())
    assert (found.verdict, found.fixed) == ("verified", ("test_a.py::fix",))
    assert found.scope == Scope(3, 2, 2, 1)
    assert found.reason == (
        "1 test red before, green after; nothing else turned red "
        "(2 of 3 tests execute the change or may do so: all ran; 1 other ran)"
    )
    first, rest = trial.selections
    assert first["only"] == ["test_a.py::fix", "test_a.py::near"]
    assert first["until"] == 300.0
    assert rest["skip"] == first["only"]
    assert 140 < float(str(rest["until"])) < 150, "the remaining time is for reruns"
    assert (first["limit"], first["targets"]) == (PER_RECORDED_TEST, ["./test_a.py"])


async def test_further_runs_take_only_the_time_that_is_left(trial: Trial) -> None:
    found = await trial({"code.py": FIXED}, suite_of(), reruns=1)
    assert (found.verdict, found.repeats.runs) == ("verified", 3)
    first, *others = trial.selections
    again = [other for other in others if other["only"] == first["only"]]
    assert [other["targets"] for other in again] == [first["targets"]] * 3
    assert all(290 < float(str(other["until"])) < 300 for other in again)
    trial.selections.clear()
    await trial({"code.py": FIXED}, suite_of(), seconds=1.0, reruns=1)
    assert FREE_SECONDS in [other["until"] for other in trial.selections], (
        "there is always time for some tests"
    )


async def test_a_test_far_away_that_executes_the_change_is_broken(trial: Trial) -> None:
    found = await trial({"code.py": FIXED.replace("return 2", "return 3")}, suite_of())
    assert (found.verdict, found.broken) == ("failed", ("test_b.py::far",))


async def test_other_tests_that_turn_red_count(trial: Trial) -> None:
    """The record of `far` is wrong: it reads the constant of a function that it does not execute."""
    executed = {"test_a.py::fix": [0], "test_a.py::near": [0], "test_b.py::far": []}
    found = await trial({"code.py": FIXED.replace("return 2", "return 3")}, suite_of(executed))
    assert (found.verdict, found.broken) == ("failed", ("test_b.py::far",))


async def test_without_time_for_others_they_count_neither_way(trial: Trial) -> None:
    trial.least = 290
    trial.words["test_b.py::far"] = "no such text"
    found = await trial({"code.py": FIXED}, suite_of())
    assert (found.verdict, found.broken, found.scope) == ("verified", (), Scope(3, 2, 2, 0))
    assert found.reason.endswith("(2 of 3 tests execute the change or may do so: all ran)")


async def test_without_time_for_selected_tests_a_patch_is_unverified(trial: Trial) -> None:
    trial.least = 400
    found = await trial({"code.py": FIXED}, suite_of())
    assert (found.verdict, found.broken, found.still_red) == ("unverified", (), ())
    assert found.reason == (
        "not all tests that may execute the change had time within 5 minutes (--verify-minutes) "
        "(2 of 3 tests execute the change or may do so: 0 ran)"
    )
    assert feedback_on(found, 1, 2) is None, "the model cannot do anything about it"


async def test_a_patch_that_cannot_be_verified_in_time_gets_no_further_runs(trial: Trial) -> None:
    trial.late = ("test_a.py::near",)
    found = await trial({"code.py": FIXED}, suite_of(), reruns=1)
    assert (found.verdict, found.fixed, found.repeats) == ("unverified", ("test_a.py::fix",), Repeats())
    assert "1 ran" in found.reason
    assert [each for each in trial.selections if each["only"] == ["test_a.py::fix", "test_a.py::near"]] == [
        trial.selections[0]
    ]


async def test_a_small_suite_runs_whole(trial: Trial) -> None:
    found = await trial({"code.py": FIXED}, suite_of(seconds=299.0))
    assert (found.verdict, found.scope) == ("verified", None)
    assert [(request["limit"], request["targets"]) for request in trial.selections] == [(PER_TEST, ["."])]


async def test_tests_that_hung_on_the_old_tree_show_nothing(trial: Trial) -> None:
    """A slow test that is green in the faster run is no fix."""
    slow = suite_of(errors={"test_a.py::fix": "timed out after 20 s\n"})
    found = await trial({"code.py": FIXED}, slow)
    assert (found.verdict, found.fixed) == ("unverified", ())
    assert hung(slow) == {"test_a.py::fix"}


async def test_a_baseline_without_time_for_all(trial: Trial) -> None:
    """Tests without a result count neither way, unless their files are near the change: these run on both trees."""
    trial.words |= {"test_code.py::new": "return 10", "test_other.py::x": "no such text"}
    part = suite_of(complete=False, stopped=True, seconds=10.0)
    more = {"test_code.py": "", "test_other.py": ""}
    found = await trial({"code.py": FIXED}, part, more=more)
    assert (found.verdict, found.fixed) == ("verified", ("test_a.py::fix", "test_code.py::new"))
    assert found.scope is not None
    assert not found.scope.complete
    assert "the unchanged tree's run had no time for more tests" in found.reason


CONFIG = {"code.py": CODE, "data.json": "{}", "test_a.py": "", "test_b.py": ""}


@pytest.mark.parametrize(
    ("changes", "report", "selected", "why"),
    [
        ({"code.py": FIXED}, suite_of(), "fix near", ""),
        ({"code.py": CODE.replace("2", "3")}, suite_of(), "far", ""),
        ({"code.py": CODE + "# nothing\n"}, suite_of(), "", ""),
        ({"data.json": "[]"}, suite_of(), "fix near far", "data.json"),
        ({"code.py": FIXED}, suite_of(executed=None, passed=()), "fix", ""),
        (
            {"code.py": FIXED},
            replace(suite_of(), executed=None),
            "fix near far",
            "it is not known which tests",
        ),
        ({"code.py": CODE.replace("2", "3")}, suite_of({"test_a.py::fix": [0]}), "near far", ""),
        ({"test_a.py": "x = 1\n"}, suite_of(), "", ""),
    ],
)
def test_which_tests_are_selected(
    tmp_path: Path, changes: Mapping[str, str], report: TestReport, selected: str, why: str
) -> None:
    workspace, patch = patched(tmp_path, CONFIG, changes)
    found, everything = selected_tests(workspace, patch.base, patch.tree, report)
    assert {ident.partition("::")[2] for ident in found} == set(selected.split())
    assert why in everything
    assert bool(why) == bool(everything)


@pytest.mark.parametrize(
    ("idents", "number", "parts"),
    [
        (["a::1", "a::2", "b::1"], 2, [{"a::1", "a::2"}, {"b::1"}]),
        (["a::1", "b::1", "b::2", "c::1"], 2, [{"b::1", "b::2"}, {"a::1", "c::1"}]),
        (["a::1", "a::2"], 2, [{"a::1", "a::2"}]),
        (["a::1", "b::1"], 1, [{"a::1", "b::1"}]),
        ([], 2, []),
    ],
)
def test_the_tests_of_a_file_stay_together(idents: list[str], number: int, parts: list[set[str]]) -> None:
    assert divided(idents, number) == parts


async def test_files_run_beside_each_other(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "PARTS", 2)
    found = await trial({"code.py": FIXED.replace("2", "3")}, suite_of())
    assert found.broken == ("test_b.py::far",)
    assert found.scope == Scope(3, 3, 3, 0)
    first = [selection["only"] for selection in trial.selections[:2]]
    assert sorted(map(str, first)) == ["['test_a.py::fix', 'test_a.py::near']", "['test_b.py::far']"]


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_test_that_needs_one_of_another_sandbox_is_not_broken(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(scopes, "PARTS", parts)
    trial.needs["test_b.py::far"] = "test_a.py::near"
    change = FIXED.replace("return 2", "pass\n    return 2")
    found = await trial({"code.py": change}, suite_of(), reruns=1)
    assert (found.verdict, found.broken) == ("verified", ())
    assert found.flaky == (() if parts == 1 else ("test_b.py::far",))


def test_tests_that_start_other_processes_are_always_selected(tmp_path: Path) -> None:
    workspace, patch = patched(tmp_path, CONFIG, {"code.py": FIXED})
    known = suite_of()
    assert known.executed is not None
    known = replace(known, executed=replace(known.executed, elsewhere=("test_b.py::far",)))
    assert "test_b.py::far" in selected_tests(workspace, patch.base, patch.tree, known)[0]


@pytest.mark.parametrize(
    ("executed", "selected", "why"),
    [
        ({".": [1]}, "fix near", ""),
        ({".": [1, 0]}, "fix near far", "first in code.py runs while the tests are imported"),
        (
            {".": [1], "conftest.py": [0]},
            "fix near far",
            "first in code.py runs while the tests are imported",
        ),
        ({".": [1], "test_b.py": [0]}, "fix near far", ""),
        ({".": [1], "test_b.py": [1]}, "fix near", ""),
        (None, "fix near far", "it is not known which tests execute which code"),
    ],
)
def test_a_function_that_runs_at_import(
    tmp_path: Path, executed: Mapping[str, Collection[int]] | None, selected: str, why: str
) -> None:
    """The tests of a file depend on what it calls while it is imported, and all tests on what other modules call."""
    workspace, patch = patched(tmp_path, CONFIG, {"code.py": FIXED})
    known = suite_of()
    assert known.executed is not None
    imports = executed if executed is None else at_import(executed)
    report = replace(known, executed=replace(known.executed, imports=imports))
    found, everything = selected_tests(workspace, patch.base, patch.tree, report)
    assert {ident.partition("::")[2] for ident in found} == set(selected.split())
    assert everything == why


def test_a_mode_that_changes_selects_all(tmp_path: Path) -> None:
    workspace, patch = patched(tmp_path, CONFIG, {})
    tree = workspace.commit_changes(workspace.base, [("code.py", 0o100755, CODE.encode())], [])
    assert selected_tests(workspace, patch.base, tree, suite_of()) == (
        suite_of().ids,
        "code.py has another file mode",
    )


def test_what_is_compared() -> None:
    known, after = suite_of(), replace(suite_of(), passed=("test_a.py::near",), failed=())
    before, scope = compared(known, after, ["test_a.py::near", "test_a.py::fix"], stopped=False)
    assert before.ids == {"test_a.py::near", "test_a.py::fix"}
    assert scope == Scope(3, 2, 2, 0)
    before, scope = compared(known, after, ["test_a.py::near", "test_a.py::fix"], stopped=True)
    assert (before.ids, scope.untimed) == ({"test_a.py::near"}, 1)
    skipped = replace(after, passed=(), skipped=("test_b.py::far",))
    assert compared(known, skipped, [], stopped=False)[0].passed == ("test_b.py::far",), "it is lost"


def test_a_file_that_cannot_be_imported_any_more_has_results() -> None:
    after = replace(suite_of(), passed=(), failed=(), errored=("test_b.py",))
    before, _ = compared(suite_of(), after, [], stopped=False)
    assert before.passed == ("test_b.py::far",)


def test_files_of_tests_near_a_change_in_another_language(tmp_path: Path) -> None:
    near = {"shop/other_test.go": "", "tests/cart_test.go": "", "cmd/shop/cart_test.go": ""}
    far = {"go.mod": "module shop", "cmd/main_test.go": "", "cmd/main.go": "", "test_cart.py": "import cart"}
    workspace, patch = patched(
        tmp_path, {**near, **far, "shop/cart.go": ""}, {"shop/cart.go": "package shop"}
    )
    assert files_of_tests_near(workspace, patch.base, ["shop/cart.go", "README.md"]) == near.keys()


def test_files_of_tests_near_a_change(tmp_path: Path) -> None:
    files = {
        "src/shop/cart.py": "",
        "src/shop/__init__.py": "",
        "tests/test_cart.py": "",
        "tests/test_b.py": "from shop.cart import total\n",
        "tests/test_c.py": "from shop import cart\n",
        "tests/test_d.py": "import shop.cart as c\n",
        "tests/test_e.py": "import shopping.cart\nfrom shop import other\n",
        "tests/test_f.py": "this is no Python\n",
        "tests/cart.py": "",
    }
    workspace, patch = patched(tmp_path, files, {})
    found = files_of_tests_near(workspace, patch.base, ["src/shop/cart.py", "README.md"])
    assert found == {f"tests/test_{name}.py" for name in ("cart", "b", "c", "d")}
