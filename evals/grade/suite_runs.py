"""Run the tests of a row in another language than Python, as `fix` runs them.

The suites are those of the base with the row's own tests. Each runs in a fresh sandbox with a reporter of m3agent's
(`m3agent.tools.runners`).
"""

from __future__ import annotations

from dataclasses import replace

from m3agent.agent.verify.tree_runs import changes_while_running
from m3agent.evals.data.instance import Answer, Task
from m3agent.evals.grade.command import parse_command
from m3agent.evals.grade.row_suites import targets_of_row
from m3agent.evals.grade.strict import TestRun, limit_of_test
from m3agent.evals.grade.trees import Trees
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.tools.runners.suites import tree_files
from m3agent.tools.selection import Selection
from m3agent.tools.test_report import TestReport
from m3agent.tools.test_runs import run_tests

MOST_OUTPUT = 4000  # characters


async def run_suites_of(task: Task, answer: Answer, trees: Trees, sandboxes: SandboxesAhead) -> TestRun:
    """Run the tests of a row's suites on a tree in a fresh sandbox.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    tree = tree_files(trees.store, trees.tree)
    async with sandboxes.sandbox(trees.tree) as sandbox:
        report = await run_tests(
            sandbox,
            trees.suites.graded,
            tree,
            Selection(targets_of_row(answer, tree)),
            timeout=answer.timeout,
            per_test=limit_of_test(answer),
            env={**task.environment.variables, **parse_command(answer.test_command).env},
            among=trees.suites.every,
        )
        changes = await changes_while_running(sandbox, set(trees.tests).__contains__)
    return run_of(report, changes)


def run_of(report: TestReport, changes: list[str]) -> TestRun:
    """Return a report as the results of grading.

    Args:
        changes: Signs of tampering from outside of the run.
    """
    outcomes = {"passed": report.passed, "failed": report.failed}
    outcomes |= {"error": report.errored, "skipped": report.skipped}
    output = "\n".join([report.output, *report.not_run.values()])
    return TestRun(
        outcomes={ident: outcome for outcome, idents in outcomes.items() for ident in idents},
        errors=report.errors,
        signs=replace(report.signs, forged=(*report.signs.forged, *changes)),
        ids={},
        registrations=report.registrations,
        not_run=report.not_run,
        complete=report.complete,
        timed_out=report.timed_out,
        test_seconds=report.seconds,
        output=output[-MOST_OUTPUT:],
    )
