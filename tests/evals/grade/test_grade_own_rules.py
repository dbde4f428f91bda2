"""Grading by the rules of a row's benchmark: parsers, verdicts, and instances that only these rules can grade."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.data.instance import Environment, Instance, OwnRules
from m3agent.evals.data.results import OfficialGrade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade import grader as grading
from m3agent.evals.grade import log_reader, official, own_rules, validate
from m3agent.evals.grade.container import ContainerRun
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.own_rules import GRADING, ParserFailed, grade_by_own_rules, verdict
from m3agent.evals.grade.validate import HARMLESS
from tests.conftest import docker_here
from tests.evals.bases import needs_base
from tests.evals.calc_instance import TO_FIX, TO_KEEP, small_instance
from tests.evals.grade.test_validate import OneImage

RULES = OwnRules(benchmark="SWE-bench-Live", to_pass=("a", "b"), not_to_fail=("c",))
LINES = """\
def parser(log):
    return dict(line.split(' ', 1) for line in log.splitlines())
"""


# -- parsers -----------------------------------------------------------------------------------------------------------


def parsed(folder: Path, parser: str, form: str, entry: str, out: str, err: str = "") -> Any:
    """Return the outcomes that a parser finds, or the last line of its error."""
    for name, text in {"parser.py": parser, "out": out, "err": err}.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", str(log_reader.__file__)],
        cwd=folder,
        env={"TMPDIR": str(folder)},
        input=json.dumps({"form": form, "entry": entry}),
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


FUNCTION = "print('not an outcome')\n" + LINES
NAMED = """\
from lib.agent.swe_constants import TestStatus
def parse_log_x(log):
    return {log.strip(): TestStatus.PASSED.value}
NAME_TO_PARSER = {'x': parse_log_x}
"""
PROGRAM = """\
import json, sys
tests = [{'name': open(sys.argv[1]).read(), 'status': 'PASSED'}, {'name': open(sys.argv[2]).read(), 'status': 'FAILED'}]
json.dump({'tests': tests}, open(sys.argv[3], 'w'))
"""
CLASS = """\
from multi_swe_bench.harness.image import Config, File, Image
from multi_swe_bench.harness.instance import Instance, TestResult
class ImageOfCalc(Image): pass
@Instance.register('someone', 'calc')
class Calc(Instance):
    def __init__(self, pr, config): raise RuntimeError
    def parse_log(self, test_log):
        passed, failed = (set(line.split()) for line in test_log.splitlines())
        return TestResult(passed_count=len(passed), failed_count=1, skipped_count=0, passed_tests=passed,
                          failed_tests=failed, skipped_tests=set())
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("parser", "form", "entry", "found"),
    [
        (FUNCTION, "function", "parser", {"a": "pass", "b": "fail"}),
        (NAMED, "function", "x", {"a pass\nb fail": "PASSED"}),
        (NAMED, "function", "parse_log_x", {"a pass\nb fail": "PASSED"}),
        (PROGRAM, "program", "", {"a pass\n": "PASSED", "b fail\n": "FAILED"}),
        (CLASS, "class", "someone/calc", {"a": "PASS", "pass": "PASS", "b": "FAIL", "fail": "FAIL"}),
        (NAMED, "function", "y", "LookupError: it has no function y"),
        (CLASS, "class", "someone/other", "LookupError: it registers no class for someone/other"),
        (
            "import sys; sys.exit(3)",
            "program",
            "",
            "LookupError: it wrote no result, and its exit status is 3",
        ),
        ("import numpyish", "function", "parser", "ModuleNotFoundError: No module named 'numpyish'"),
    ],
)
def test_parsers_of_each_form(tmp_path: Path, parser: str, form: str, entry: str, found: object) -> None:
    assert parsed(tmp_path, parser, form, entry, "a pass\n", "b fail\n") == found


@pytest.mark.parametrize(
    ("rules", "outcomes", "reason"),
    [
        ({}, {"a": "pass", "b": "XFAIL", "c": "PASSED"}, ""),
        ({}, {"a": "pass", "b": "pass"}, ""),
        ({}, {"a": "pass", "c": "pass"}, "1 tests did not pass, such as b"),
        ({}, {"a": "pass", "b": "skip"}, "1 tests did not pass, such as b"),
        ({}, {"a": "pass", "b": "pass", "c": "ERROR"}, "1 tests did not pass, such as c"),
        ({}, {}, "no result could be read from the log"),
        ({"exact": True}, {"a": "pass", "b": "pass", "d": "fail"}, ""),
        (
            {"exact": True},
            {"a": "pass", "b": "pass", "d": "pass"},
            "1 tests passed that the row does not list, such as d",
        ),
        ({"to_pass": ["a (2 ms)"]}, {"a (3 ms)": "pass"}, "1 tests did not pass, such as a (2 ms)"),
        ({"to_pass": ["a (2 ms)", "b in 3 sec"], "untimed": True}, {"a [0.3s]": "pass", "b": "pass"}, ""),
    ],
)
def test_which_outcomes_resolve(rules: dict[str, Any], outcomes: dict[str, str], reason: str) -> None:
    given = OwnRules.model_validate({**RULES.model_dump(), **rules})
    assert verdict(given, outcomes) == reason


# -- from a patch to a verdict -----------------------------------------------------------------------------------------


def given_log(
    monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes], *, timed_out: bool = False
) -> None:
    """Let containers leave these files, by name."""
    left = {f"{GRADING}/{name}": content for name, content in files.items()}

    async def run(*_: object) -> ContainerRun:
        return ContainerRun("", left, timed_out)

    monkeypatch.setattr(own_rules, "run_in_container", run)


async def graded(folder: Path, parser: str = LINES, **rules: Any) -> OfficialGrade:
    given = RULES.model_copy(update={"parser": parser, "entry": "parser", **rules})
    return await grade_by_own_rules(small_instance(folder / "instance"), given, b"patch", "image", folder)


@pytest.mark.docker
@pytest.mark.skipif(not docker_here(), reason="no Docker engine")
async def test_a_parser_that_fails_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_log(monkeypatch, {"out": b"a pass\nb pass\n", "applied": b""})
    grade = await graded(tmp_path)
    assert (grade.resolved, grade.reason) == (True, "")
    assert (tmp_path / "test_output.txt").read_text() == "a pass\nb pass\n"
    grade = await graded(tmp_path / "b", LINES.replace("log.", "x."))
    assert grade.resolved is False
    assert grade.reason == "the parser of SWE-bench-Live failed: NameError: name 'x' is not defined"


async def test_what_keeps_a_log_from_being_read_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_log(monkeypatch, {"out": b"error"})
    assert (await graded(tmp_path)).reason == "the patch does not apply"
    given_log(monkeypatch, {"applied": b""}, timed_out=True)
    assert (await graded(tmp_path / "b")).reason == "the tests took too long"
    grade = await graded(tmp_path / "c", unusable="its files are missing")
    assert (grade.resolved, grade.reason) == (
        None,
        "the rules of SWE-bench-Live cannot be used: its files are missing",
    )


# -- instances that m3agent's own rules cannot grade -------------------------------------------------------------------

JAVASCRIPT = {
    "package.json": '{"scripts": {"test": "karma start"}, "devDependencies": {"karma": "6"}}\n',
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": "from calc import add\n",
    "tests/calc.spec.js": "it('adds', () => {});\n",
}


def javascript_instance(folder: Path, rules: OwnRules | None) -> Instance:
    """Return an instance whose tests need a runner that m3agent does not have."""
    patch = "--- /dev/null\n+++ b/new.js\n@@ -0,0 +1 @@\n+1\n"
    return small_instance(
        folder,
        {name: text for name, text in JAVASCRIPT.items() if not name.endswith(".py")},
        patch="diff --git a/new.js b/new.js\nnew file mode 100644\n" + patch,
        test_patch="",
        runner="",
        test_command="",
        fail_to_pass=("adds",),
        pass_to_pass=(),
        rules=rules,
    )


def given_verdicts(monkeypatch: pytest.MonkeyPatch, *resolved: bool | None) -> None:
    left = list(resolved)

    async def official_grade(*_: object) -> OfficialGrade:
        good = left.pop(0)
        return OfficialGrade(resolved=good, reason="" if good else "1 tests did not pass, such as adds")

    for module in (grading, official, validate):
        monkeypatch.setattr(module, "official_grade", official_grade)


NO_RUNNER = "no test runner that can be graded fits its code"


async def test_without_a_runner_and_other_rules_it_is_invalid(tmp_path: Path) -> None:
    instance = javascript_instance(tmp_path / "instance", None)
    found = await validate.validate(
        instance, OneImage(tmp_path / "state", print), Grader(tmp_path / "state", print), runs=1
    )
    assert not found.valid
    assert found.reason.startswith(NO_RUNNER)


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        ([True, False], ""),
        ([False, False], "the reference patch does not resolve it: 1 tests did not pass, such as adds"),
        ([True, True], "a patch that changes nothing resolves it"),
    ],
)
async def test_without_a_runner_its_benchmarks_rules_validate_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdicts: Sequence[bool], reason: str
) -> None:
    given_verdicts(monkeypatch, *verdicts)
    instance = javascript_instance(tmp_path / "instance", RULES)
    found = await validate.validate(
        instance, OneImage(tmp_path / "state", print), Grader(tmp_path / "state", print), runs=1
    )
    assert (found.valid, found.reason.startswith(reason)) == (not reason, True)
    assert found.not_strict.startswith(NO_RUNNER)


async def test_a_parser_that_fails_makes_it_invalid_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outcomes_in(*_: object) -> dict[str, str]:
        raise ParserFailed("KeyError: 'tests'")

    given_log(monkeypatch, {"out": b"ok adds\n", "applied": b""})
    monkeypatch.setattr(own_rules, "outcomes_in", outcomes_in)
    state = tmp_path / "state"
    instance = javascript_instance(tmp_path / "instance", RULES)
    found = await validate.validate(instance, OneImage(state, print), Grader(state, print), runs=1)
    why = "the reference patch does not resolve it: the parser of SWE-bench-Live failed: KeyError: 'tests'"
    assert (found.valid, found.reason.partition(" (only by")[0]) == (False, why)


@pytest.mark.parametrize("asked", [True, False])
async def test_without_a_runner_its_benchmarks_verdict_counts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    given_verdicts(monkeypatch, True, False)
    instance = javascript_instance(tmp_path / "instance", RULES)
    grader = Grader(tmp_path / "state", print, official=asked)
    grade, by_benchmark = await grader.grade(instance, HARMLESS, "image", tmp_path)
    assert by_benchmark is not None
    assert grade.verdict is Verdict.RESOLVED
    assert grade.reason.startswith(f"only by the benchmark's own rules, because {NO_RUNNER}")
    grade, _ = await grader.grade(instance, HARMLESS, "image", tmp_path)
    assert grade.verdict is Verdict.UNRESOLVED
    assert grade.reason.startswith("1 tests did not pass, such as adds (only by")


@pytest.mark.slow  # quick: the tests above
@needs_base
async def test_a_row_is_graded_in_its_image_by_its_own_script_and_parser(tmp_path: Path) -> None:
    rules = OwnRules(
        benchmark="SWE-bench-Live",
        script="exec 3>&1 >/dev/null 2>&1\ngit apply $GRADING/tests.diff || exit\ngit apply $GRADING/patch.diff || exit\n"
        ": > $GRADING/applied\npython -m pytest -rA > log.txt\nexec 1>&3\ncat log.txt\n",
        parser="import re\ndef parser(log):\n    return {t: s for s, t in re.findall(r'^(PASSED|FAILED) (\\S+)', log, re.M)}\n",
        entry="parser",
        to_pass=TO_FIX,
        not_to_fail=TO_KEEP,
    )
    instance = small_instance(tmp_path / "instance", rules=rules)
    task = instance.task.model_copy(update={"environment": Environment(python="3.11")})
    instance = instance.model_copy(update={"task": task})
    state = tmp_path / "state"
    found = await validate.validate(
        instance, Environments(state, print), Grader(state, print), runs=1, official=True
    )
    assert found.valid, found
    assert (found.not_strict, found.official and [one.resolved for one in found.official]) == (
        "",
        [True, False],
    )
    grade = await grade_by_own_rules(instance, rules, b"no patch\n", found.image, tmp_path)
    assert (grade.resolved, grade.reason) == (False, "the patch does not apply")
