"""Grade a patch under m3agent's own rules, in a fresh sandbox.

The instance determines the tests and everything that decides how they run. The patch cannot change them and
cannot write the results.

"Resolved" means: every test in the row's fail-to-pass and pass-to-pass lists passed, the run completed, and
nothing in it was tampered with. The exit status alone does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from m3agent.agent.verify.comparisons import comparison_changes
from m3agent.agent.verify.inverted_runs import SECONDS, copies_of, run_copies
from m3agent.agent.verify.tree_runs import changes_while_running
from m3agent.evals.data.instance import Answer, Instance
from m3agent.evals.data.results import Grade, TestCount, Verdict
from m3agent.evals.grade import unittest_program
from m3agent.evals.grade.matching import Outcomes, failed_ids, is_junk
from m3agent.evals.grade.row_suites import RowCommand, parse_command, targets_of_row
from m3agent.evals.grade.trees import Trees
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.tools.in_sandbox import runner
from m3agent.tools.in_sandbox.guard import NO_HOOKS
from m3agent.tools.report_reader import Reading
from m3agent.tools.run_tests import Bytecode, Selection, Variant, run_program, run_tests, run_variants
from m3agent.tools.runners.suites import tree_files
from m3agent.tools.test_report import NO_SIGNS, Signs, TestReport, exception_line
from m3agent.util.counted import counted
from m3agent.util.sanitize import last_line, printable_line

PER_TEST_SHARE, LEAST_PER_TEST, MOST_PER_TEST = 1 / 3, 2.0, 300.0
"""Time limit of one test: a share of the whole limit, and its bounds in seconds.

After each test that hangs, the next tests get a third of the limit (`tools.in_sandbox.runner`). A run therefore
survives many hanging tests. The limit is generous: a slow test on a busy machine must not count as hanging.
"""
MOST_TEXT, MOST_LINE, MOST_OUTPUT = 500, 200, 4000  # characters


@dataclass
class TestRun:
    """The results of a test run."""

    __test__ = False

    outcomes: dict[str, str] = field(default_factory=dict)
    """`passed`, `xfailed`, `skipped`, `failed` or `error`, by node id."""
    errors: dict[str, str] = field(default_factory=dict)
    forged: list[str] = field(default_factory=list)
    """Those of them that a run without the patch does not have; `Grader.tried` sets it."""
    signs: Signs = NO_SIGNS
    ids: Mapping[str, str] | None = None
    """The ids of the row's names that are not ids themselves, for another language than Python; None for
    Python.
    """
    registrations: Mapping[str, str] = field(default_factory=dict)
    """What the build says about each test program (`m3agent.tools.test_report.TestReport`)."""
    not_run: Mapping[str, str] = field(default_factory=dict)
    """Why suites could not run at all, by the suite's name."""
    complete: bool = False
    timed_out: bool = False
    test_seconds: float = 0.0
    """Duration of the test process."""
    output: str = ""
    """The end of its standard error."""
    python: str = ""
    """Version of the Python on which the tests ran; empty if it is not known."""

    @property
    def found(self) -> Outcomes:
        """The outcomes, by the names of the row."""
        return Outcomes(self.outcomes, self.ids)


async def run_tests_of(
    instance: Instance,
    trees: Trees,
    sandboxes: SandboxesAhead,
    *,
    bytecode: Bytecode,
    keep_bytecode: bool = False,
) -> TestRun:
    """Run an instance's tests in Python on a tree in a fresh sandbox.

    Args:
        bytecode, keep_bytecode: As for `m3agent.tools.run_tests.run_in_sandbox`.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    answer, command = instance.answer, parse_command(instance.answer.test_command)
    files = {entry.path for entry in trees.store.list_tree(trees.tree)}
    targets = targets_of(command, answer, trees.tests, files)
    by_program = answer.runner in {"django", "unittest"} and command.program
    if not targets and not by_program:
        return TestRun()
    program: ModuleType = runner
    request: dict[str, object] = {
        "framework": "pytest",
        "limit": limit_of_test(answer),
        "options": command.options,
        "targets": targets,
        "guard": {
            "wanted": [name for name in answer.fail_to_pass if not is_junk(name)],
            "added": trees.added,
        },
    }
    if by_program:
        program, request = unittest_program, {"program": command.program, "words": command.words}
    async with sandboxes.sandbox(trees.tree) as sandbox:
        read, done = await run_program(
            sandbox,
            program,
            request,
            timeout=answer.timeout,
            interpreter=interpreter_of(command),
            env={**instance.task.environment.variables, **command.env},
            bytecode=bytecode,
            keep_bytecode=keep_bytecode,
        )
        changes = await changes_while_running(sandbox, set(trees.tests).__contains__)
    if read.running is not None:
        read.outcomes[read.running] = "failed"
        read.errors[read.running] = "the run ended in the middle of this test"
    return TestRun(
        outcomes=read.outcomes,
        errors=read.errors,
        signs=replace(read.signs, forged=(*read.signs.forged, *changes)),
        complete=read.status in {"0", "1"},
        timed_out=done.timed_out,
        test_seconds=done.seconds,
        output=done.stderr[-4000:].decode(errors="replace"),
        python=sandbox.python,
    )


async def run_suites_of(instance: Instance, trees: Trees, sandboxes: SandboxesAhead) -> TestRun:
    """Run the tests of a row in another language than Python in a fresh sandbox, as `fix` runs them.

    The suites are those of the base with the row's own tests. Each has a reporter of m3agent's (`m3agent.tools.runners`).

    Raises:
        SandboxError: The sandbox itself failed.
    """
    answer, tree = instance.answer, tree_files(trees.store, trees.tree)
    async with sandboxes.sandbox(trees.tree) as sandbox:
        report = await run_tests(
            sandbox,
            trees.suites.graded,
            tree,
            Selection(targets_of_row(answer, tree)),
            timeout=answer.timeout,
            per_test=limit_of_test(answer),
            env={**instance.task.environment.variables, **parse_command(answer.test_command).env},
            among=trees.suites.every,
        )
        changes = await changes_while_running(sandbox, set(trees.tests).__contains__)
    return run_of(report, changes)


def run_of(report: TestReport, changes: list[str]) -> TestRun:
    """Return a report as the results of grading."""
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


def limit_of_test(answer: Answer) -> float:
    """Return the time limit of one test, in seconds."""
    return min(max(LEAST_PER_TEST, answer.timeout * PER_TEST_SHARE), MOST_PER_TEST)


async def check_that_tests_can_fail(
    instance: Instance, trees: Trees, run: TestRun, sandboxes: SandboxesAhead, *, bytecode: Bytecode
) -> tuple[Trees, TestRun]:
    """Run inverted copies of the tests that the patch should fix (`m3agent.agent.verify.inverted_tests`).

    Returns:
        The trees and the results, with what the copies that pass show.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    answer = instance.answer
    fixed = [ident for ident in answer.fail_to_pass if run.outcomes.get(ident) == "passed"]
    if len(fixed) < len(answer.fail_to_pass) or not run.complete:
        return trees, run
    made = await asyncio.to_thread(copies_of, trees.store, trees.tree, fixed)
    if made is None:
        return trees, run
    command = parse_command(answer.test_command)

    async def run_them(variants: Sequence[Variant], idents: Collection[str]) -> list[Reading]:
        async with sandboxes.sandbox(trees.tree) as sandbox:
            return await run_variants(
                sandbox,
                variants,
                idents,
                per_test=limit_of_test(answer),
                seconds=min(answer.timeout, SECONDS),
                interpreter=interpreter_of(command),
                options=command.options,
                env={**instance.task.environment.variables, **command.env},
                bytecode=bytecode,
            )

    changed = await asyncio.to_thread(comparison_changes, trees.kept)
    copies = await run_copies(
        made, run_them, with_hidden=bool(trees.review), with_unchanged="code" in changed
    )
    lines = await asyncio.to_thread(copies.to_read, lambda: trees.kept)
    forged = replace(run.signs, forged=(*run.signs.forged, *copies.reasons(trees.review)))
    return replace(trees, review=(*trees.review, *lines)), replace(run, signs=forged)


def targets_of(command: RowCommand, answer: Answer, tests: Sequence[str], files: set[str]) -> list[str]:
    """Return the tests to run.

    They are the command's files, else the files in the row's test ids, else the test files among `tests`.
    """
    paths = {target: target.partition("::")[0].rstrip("/") for target in command.targets}
    named = [
        target
        for target, path in paths.items()
        if path in files or any(file.startswith(f"{path}/") for file in files)
    ]
    if named:
        return named
    of_ids = {name.partition("::")[0] for name in answer.tests} & files
    if of_ids:
        return sorted(of_ids)
    return [path for path in tests if path.endswith(".py") and Path(path).name.startswith("test")]


def interpreter_of(command: RowCommand) -> list[str]:
    """Return Python and its options."""
    return ["python3", "-I", *command.python, *warning_options(command)]


def warning_options(command: RowCommand) -> list[str]:
    """Return the command's PYTHONWARNINGS as options, because the interpreter ignores environment variables here."""
    entries = command.env.get("PYTHONWARNINGS", "").split(",")
    return [word for entry in entries if entry for word in ("-W", entry)]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def means_of(run: TestRun) -> tuple[str, ...]:
    """Return by which means a run looked for tampering."""
    means = ["authenticated report"]
    means += ["canaries"] if run.signs.canaries is not None else []
    if run.ids is None:  # tests in Python
        means += ["comparison of functions"]
        means += [] if NO_HOOKS in run.signs.blind else ["audit hooks"]
    return tuple(means)


def _verdict(
    answer: Answer, run: TestRun, trees: Trees, not_fixed: list[str], lost: list[str]
) -> tuple[Verdict, str]:
    if run.forged:
        return Verdict.UNRESOLVED, f"tampered with: {run.forged[0]}"
    if run.timed_out:
        return Verdict.TIMEOUT, f"the tests took longer than {answer.timeout:g} s"
    if not run.outcomes:
        return Verdict.UNRESOLVED, f"no tests ran: {last_line(run.output)[:MOST_LINE] or 'no output'}"
    if not_fixed or lost:
        return Verdict.UNRESOLVED, _failures(run, not_fixed, lost)
    if not run.complete:
        return Verdict.UNRESOLVED, "the test run did not finish"
    if trees.review:
        first = trees.review[0]
        return (
            Verdict.UNRESOLVED,
            f"needs review: {printable_line(f'{first.path}:{first.line}')} {first.what}",
        )
    return Verdict.RESOLVED, ""


def _failures(run: TestRun, not_fixed: list[str], lost: list[str]) -> str:
    """Return how many tests did not pass, with the error of the first."""
    counts = ((len(not_fixed), "to fix"), (len(lost), "to keep"))
    failed = " and ".join(f"{counted(count, 'test')} {what}" for count, what in counts if count)
    name = (not_fixed or lost)[0]
    text = run.errors.get((run.ids or {}).get(name, name), "")
    line = exception_line(text) if run.ids is None else _first_line(text)
    return f"{failed} did not pass, such as {name}" + (f": {line[:MOST_LINE]}" if line else "")


def judge(answer: Answer, run: TestRun, trees: Trees, seconds: float) -> Grade:
    """Return the grade of a test run."""
    outcomes = run.found
    fixed, not_fixed = failed_ids(answer.fail_to_pass, outcomes)
    kept, lost = failed_ids(answer.pass_to_pass, outcomes)
    verdict, reason = _verdict(answer, run, trees, not_fixed, lost)
    return Grade(
        verdict=verdict,
        reason=reason[:MOST_TEXT],
        fail_to_pass=TestCount(passed=fixed, failed=tuple(not_fixed)),
        pass_to_pass=TestCount(passed=kept, failed=tuple(lost)),
        undone=trees.undone,
        forged=tuple(run.forged),
        means=means_of(run),
        blind=run.signs.blind,
        review=tuple(printable_line(f"{f.path}:{f.line} {f.what}: {f.text}") for f in trees.review),
        seconds=round(seconds, 3),
        test_seconds=round(run.test_seconds, 3),
    )
