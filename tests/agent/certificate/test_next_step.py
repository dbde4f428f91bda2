"""What a person does after a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.certificate.next_step import BY_VERDICT, CONTRADICTS, RESTORE, next_step
from m3agent.agent.certificate.statement import Predicate
from m3agent.agent.verify.rules import STATES, WEAKER, Verdict
from tests.agent.certificate.test_certificate import made


@pytest.fixture
def said(tmp_path: Path) -> Predicate:
    return made(tmp_path).predicate


@pytest.mark.parametrize(
    ("verdict", "reason", "step"),
    [
        ("failed", "a test is red", BY_VERDICT["failed"]),
        ("unverified", "there are no tests", BY_VERDICT["unverified"]),
        ("unverified", f"{WEAKER}: a.py::test_a may check less now", RESTORE),
        ("unverified", f"1 test states {STATES}: a.py::test_a", CONTRADICTS),
    ],
)
def test_the_step_follows_from_the_reason(said: Predicate, verdict: Verdict, reason: str, step: str) -> None:
    assert next_step(said.model_copy(update={"verdict": verdict, "reason": reason})) == step


@pytest.mark.parametrize(
    ("broken", "is_named"),
    [("test_a.py test_a.py::test_b", True), ("test_a.py::test_b", False), ("program", False)],
)
def test_a_file_that_does_not_start_is_named(said: Predicate, broken: str, is_named: bool) -> None:
    """A program that is one test has an id without a test's name, too."""
    test = said.tests.red_to_green[0]
    tests = said.tests.model_copy(
        update={"broken": [test.model_copy(update={"id": ident}) for ident in broken.split()]}
    )
    step = next_step(said.model_copy(update={"verdict": "failed", "reason": "", "tests": tests}))
    assert (step != BY_VERDICT["failed"]) == is_named
