"""What grading parses: commands, names of tests, and the guard's lines."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.grade.command import RowCommand, parse_command
from m3agent.evals.grade.matching import Outcomes, failed_ids, is_junk
from m3agent.evals.grade.strict import ReportListener
from tests.evals.forgeries import FORGERIES

KEY = b"k" * 32


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


def told(number: int, *fields: str, key: bytes = KEY) -> bytes:
    """Return a line as the guard writes it."""
    line = "\t".join([str(number), *(field.encode("unicode_escape").decode() for field in fields)])
    return f"{line}\t{hashlib.blake2b(line.encode(), key=key, digest_size=16).hexdigest()}\n".encode()


def heard(data: Sequence[bytes]) -> ReportListener:
    listener = ReportListener(KEY)
    for piece in data:
        listener.feed(piece)
    return listener


def test_lines_are_believed_in_their_order() -> None:
    lines = [told(1, "start", "a"), told(2, "result", "a", "passed", ""), told(3, "end", "0")]
    run = heard(lines).close()
    assert (run.outcomes, run.complete) == ({"a": "passed"}, True)
    assert heard(lines[::-1]).close().outcomes == {"a": "failed"}
    assert heard([lines[0], lines[2]]).close().complete is False
    again = [*lines[:2], told(2, "result", "b", "passed", ""), lines[2]]
    assert heard(again).close().outcomes == {"a": "passed"}


def test_a_test_that_began_and_did_not_end_has_failed() -> None:
    run = heard([told(1, "start", "a")]).close()
    assert run.outcomes == {"a": "failed"} and not run.complete


def test_a_failure_is_not_made_good_by_a_second_result() -> None:
    lines = [told(1, "result", "a", "failed", "why"), told(2, "result", "a", "passed", "")]
    assert heard(lines).close().outcomes == {"a": "failed"}


@given(st.binary(max_size=200), st.integers(0, 200))
def test_nothing_is_believed_without_the_key(noise: bytes, cut: int) -> None:
    forged = told(1, "result", "a", "passed", "", key=b"x" * 32) + told(2, "end", "0", key=b"x" * 32)
    run = heard([noise[:cut], forged, noise[cut:], b"\n", forged]).close()
    assert run.outcomes == {} and not run.complete


@given(st.text(alphabet=string.printable + "äß漢\t\n\\", max_size=40), st.integers(1, 50))
def test_any_text_comes_through_in_pieces_of_any_size(text: str, size: int) -> None:
    data = told(1, "result", text, "error", text)
    run = heard([data[i : i + size] for i in range(0, len(data), size)]).close()
    assert (run.outcomes, run.errors) == ({text: "error"}, {text: text})


def test_the_documented_forgeries_are_those_of_the_tests() -> None:
    text = (Path(__file__).parents[3] / "docs" / "eval.md").read_text()
    rows = re.findall(r"^\| ([^*|]+) \| unresolved \|", text, re.MULTILINE)
    assert rows == list(FORGERIES)
    assert f"none of {len(FORGERIES)} kinds" in " ".join(text.split())
