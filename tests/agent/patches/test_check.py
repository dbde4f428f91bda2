"""Test what is said about a certificate that does not hold in every detail."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.certificate.statement import Statement, SuiteCommand
from m3agent.agent.patches.check import Difference, differences
from tests.agent.certificate.test_certificate import made


def with_suites(statement: Statement, *suites: SuiteCommand) -> Statement:
    return statement.model_copy(
        update={"predicate": statement.predicate.model_copy(update={"suites": suites})}
    )


def test_suites_differ_by_name(tmp_path: Path) -> None:
    python = SuiteCommand(runner="pytest", folder="", evidence="test_a.py", ran=True)
    go = SuiteCommand(runner="go", folder="tool", evidence="go.mod", ran=False)
    statement = made(tmp_path)
    [found] = differences(with_suites(statement, python), with_suites(statement, python, go))
    assert found == Difference("suites", "only here go in tool (not run)", decides=False)
