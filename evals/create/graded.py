"""Validate a mined instance with the grader: run its tests once without the fix and several times with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import GREEN, Grader, InvalidInstance
from m3agent.evals.grade.strict import MOST_LINE, TestRun
from m3agent.evals.grade.trees import DoesNotApply
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.util.sanitize import last_line

RUNS = 2
"""Number of runs with the fix. A test counts only if it passes in each of them."""


@dataclass(frozen=True)
class Validated:
    """The result of running an instance's tests without and with its patch."""

    fail_to_pass: tuple[str, ...] = ()
    """Ids of tests that do not pass before the patch and pass in every run after it."""
    pass_to_pass: tuple[str, ...] = ()
    """Ids of tests that pass before the patch and in every run after it."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Errors raised before the patch, by test id. If a file could not be imported, the key is its name."""
    reason: str = ""
    """Why the candidate is not an instance; empty if it is one."""


@dataclass(frozen=True)
class GradedValidator:
    """Builds an instance's environment and runs the test files that its test patch touches, as grading does.

    An instance that it finds valid is therefore valid for grading, too.
    """

    environments: Environments
    grader: Grader
    timeout: float = 600.0
    """Time limit of one test run, in seconds."""

    async def __call__(self, instance: Instance, folder: Path) -> Validated:
        """Run the tests before and after the patch.

        Args:
            instance: Its source is an archive with its base commit; its lists of tests are empty.

        Raises:
            SandboxError: This machine failed, for example because the engine is unreachable. Faults of the
                instance are returned as `reason` instead.
        """
        instance = instance.with_answer(timeout=self.timeout)
        try:
            image = await self.environments.image(instance.task)
            runs = [
                await self.grader.run(instance, patch, image)
                for patch in (b"", *[instance.answer.reference] * RUNS)
            ]
        except (DataError, EnvironmentBuildFailed, DoesNotApply, InvalidInstance) as error:
            return Validated(reason=str(error))
        for number, run in enumerate(runs):
            (folder / f"run-{number}.log").write_text(run.output, "utf-8")
        return compared(runs[0], runs[1:])


def compared(before: TestRun, after: Sequence[TestRun]) -> Validated:
    """Combine the runs. A test counts only if it passes in each run with the fix."""
    for run in after:
        if run.timed_out:
            return Validated(reason="the tests take too long with the fix")
        if not run.complete or not _green(run):
            return Validated(reason=f"the tests cannot be run with the fix: {_why(run)}")
        if forged := run.signs.beyond(before.signs, ()):
            return Validated(reason=f"with the fix the tests were tampered with: {forged[0]}")
    passed = set.intersection(*map(_green, after))
    kept = passed & _green(before)
    # a test that is skipped at the base does not prove that it needs the fix
    skipped = {ident for ident, outcome in before.outcomes.items() if outcome == "skipped"}
    fixed = passed - kept - skipped
    return Validated(tuple(sorted(fixed)), tuple(sorted(kept)), dict(before.errors))


def _green(run: TestRun) -> set[str]:
    return {ident for ident, outcome in run.outcomes.items() if outcome in GREEN}


def _why(run: TestRun) -> str:
    """Return the last line of the runner's output, or of the first error that it reported."""
    return last_line(next(iter(run.errors.values()), "") or run.output)[:MOST_LINE] or "none ran"
