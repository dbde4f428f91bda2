"""What grading parses: commands and names of tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.data.results import Grade, Verdict
from m3agent.evals.grade.grader import with_python
from m3agent.evals.grade.matching import Outcomes, failed_ids, is_junk
from m3agent.evals.grade.row_suites import RowCommand, parse_command
from tests.abuse.forgeries import FORGERIES


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("pytest -rA tests/test_a.py", RowCommand(targets=("tests/test_a.py",))),
        (
            "python -X dev -m pytest -rA --durations 25 tests/a.py tests/b.py",
            RowCommand(python=("-X", "dev"), targets=("tests/a.py", "tests/b.py")),
        ),
        (
            "pytest --no-header -rA --tb=no -p no:cacheprovider -W ignore::UserWarning a.py",
            RowCommand(options=("-p", "no:cacheprovider", "-W", "ignore::UserWarning"), targets=("a.py",)),
        ),
        (
            "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose sympy/tests/test_x.py",
            RowCommand(
                env={"PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning"},
                targets=("sympy/tests/test_x.py",),
                program="bin/test",
                words=("-C", "--verbose", "sympy/tests/test_x.py"),
            ),
        ),
        (
            "pytest -n0 -rA --maxfail 1 --timeout=30 a.py",
            RowCommand(options=("--timeout=30",), targets=("a.py",)),
        ),
        ("pytest 'not closed", RowCommand()),
        ("", RowCommand()),
    ],
)
def test_a_command_is_taken_apart(text: str, command: RowCommand) -> None:
    assert parse_command(text) == command


@given(st.text(max_size=60))
def test_any_text_is_a_command(text: str) -> None:
    assert isinstance(parse_command(text), RowCommand)


OUTCOMES = Outcomes(
    {
        "t/test_a.py::test_one": "passed",
        "t/test_a.py::test_two[a b]": "passed",
        "t/test_a.py::test_two[a c]": "failed",
        "t/test_a.py::test_three[x-1]": "passed",
        "t/test_a.py::test_three[x-2]": "xfailed",
        "t/test_a.py::test_four[/tmp/some/path]": "passed",
        "t/test_a.py::Case::test_five": "passed",
        "t/test_a.py::test_six": "skipped",
        "t/test_b.py::test_bare": "passed",
    }
)


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("t/test_a.py::test_one", True),
        ("t/test_a.py::test_two[a b]", True),
        ("t/test_a.py::test_two[a", False),  # cut at the blank: it matches two tests, and one failed
        ("t/test_a.py::test_three[x", True),  # cut inside its parameter
        ("t/test_a.py::test_four[/path]", True),
        ("test_five (t.test_a.Case)", True),
        ("test_bare", True),
        ("test_six", False),  # a skipped test proves nothing
        ("test_seven", False),
        ("t/test_a.py::test_on", False),  # an id without a parameter must match completely
    ],
)
def test_names_in_rows_are_found(name: str, passed: bool) -> None:
    assert OUTCOMES.passed(name) is passed


@pytest.mark.parametrize(
    ("name", "junk"), [("[", True), ("[100%]", True), ("[ 7%]", False), ("test_x", False)]
)
def test_junk_names_are_known(name: str, junk: bool) -> None:
    assert is_junk(name) is junk


def test_junk_is_not_counted() -> None:
    assert failed_ids(["[", "[100%]", "test_bare", "test_six"], OUTCOMES) == (1, ["test_six"])


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.sampled_from(["passed", "failed"]), max_size=8))
def test_whole_ids_always_mean_themselves(outcomes: dict[str, str]) -> None:
    found = Outcomes(outcomes)
    assert all(found.passed(ident) == (outcome == "passed") for ident, outcome in outcomes.items())


def test_the_documented_forgeries_are_those_of_the_tests() -> None:
    text = (Path(__file__).parents[3] / "docs" / "eval.md").read_text()
    tried = re.findall(r"^\| ([^*|]+) \| unresolved \|", text, re.MULTILINE)
    rows = re.findall(r"^\| ([^*|]+) \| (?:unresolved|not tried) \|", text, re.MULTILINE)
    lucky = re.findall(r"^\| ([^*|]+) \| by luck \|", text, re.MULTILINE)
    assert lucky == [name for name, forged in FORGERIES.items() if forged.kind == "instability"]
    assert rows == [name for name in FORGERIES if name not in lucky]
    assert f"none of {len(tried)} kinds" in " ".join(text.split())


@pytest.mark.parametrize(
    ("python", "wanted", "reason"),
    [
        ("3.9.2", "3.9", "two tests failed"),
        ("3.9.2", None, "two tests failed"),
        ("3.9.2", "3.6", "two tests failed; ran on Python 3.9.2, not 3.6"),
        ("", "3.6", "two tests failed"),
    ],
)
def test_a_grade_says_if_another_python_than_the_rows_ran_the_tests(
    python: str, wanted: str | None, reason: str
) -> None:
    grade = with_python(Grade(verdict=Verdict.UNRESOLVED, reason="two tests failed"), python, wanted)
    assert (grade.python, grade.reason) == (python, reason)
