"""Grade patches under both sets of rules, and run an instance's tests without a patch."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from m3agent import __version__
from m3agent.agent.verify.baseline import KeptRuns
from m3agent.agent.verify.review import Finding, changed_registrations, findings_at
from m3agent.evals.code.checkout import codebase
from m3agent.evals.data.instance import Instance, RewardRules
from m3agent.evals.data.results import Grade, OfficialGrade, Record, Verdict, stored
from m3agent.evals.grade.matching import ids_of
from m3agent.evals.grade.official import can_grade, official_grade
from m3agent.evals.grade.strict import TestRun, check_that_tests_can_fail, judge, run_suites_of, run_tests_of
from m3agent.evals.grade.trees import DoesNotApply, Trees, grading_trees, open_store
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.declared.accepted_pythons import minor_of
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners.suites import version
from m3agent.tools.test_report import ORDINARY, Signs
from m3agent.util.atomic_write import write_whole

LIMITS = SandboxLimits(pids=512)
GREEN = frozenset({"passed", "xfailed"})


class Expected(Record):
    """The tests that decide the verdict if a row does not list them.

    They are found by running the base and the reference.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


def grade_of(official: OfficialGrade, problem: str) -> Grade:
    """Return the verdict of a benchmark's own rules as a grade; `problem` is why m3agent's own rules have none."""
    why = f"only by the benchmark's own rules, because {problem}"
    if official.resolved is None:
        return Grade(verdict=Verdict.INVALID, reason=f"{problem}; {official.reason}")
    return Grade(
        verdict=Verdict.RESOLVED if official.resolved else Verdict.UNRESOLVED,
        reason=f"{official.reason} ({why})" if official.reason else why,
        seconds=official.seconds,
        test_seconds=official.test_seconds,
    )


def with_python(grade: Grade, python: str, wanted: str | None) -> Grade:
    """Return a grade with the Python on which the tests ran; the reason says if the row wants another one."""
    other = wanted and python and minor_of(python) != minor_of(wanted)
    note = f"ran on Python {python}, not {wanted}" if other else ""
    return grade.model_copy(
        update={"python": python, "reason": "; ".join(filter(None, (grade.reason, note)))}
    )


class Grader:
    """Grade patches.

    Args:
        official: Whether to compute the official verdict, too.

    For the `image` of its methods, None means the default image of the sandboxes.
    """

    def __init__(self, state: Path, say: Callable[[str], None], *, official: bool = False) -> None:
        self._state = state
        self._say = say
        self._official = official
        self._locks: dict[str, asyncio.Lock] = {}
        self._runs: dict[str, TestRun] = {}
        self._kept = KeptRuns(state / "evals" / "runs", TestRun)

    async def grade(
        self, instance: Instance, patch: bytes, image: str | None, folder: Path
    ) -> tuple[Grade, OfficialGrade | None]:
        """Grade a patch under m3agent's rules and, if requested, under those of the row's benchmark.

        If only the latter can grade it, their verdict counts. Keep the logs in `folder`.

        Raises:
            SandboxError: The machine failed.
            DataError: The data of the instance's code is wrong.
            EnvironmentFault: The instance's code cannot be checked out.
        """
        grade = await self.strict(instance, patch, image, folder)
        only_official = grade.verdict is Verdict.INVALID and image is not None and can_grade(instance)
        official = None
        if image is not None and (self._official or only_official):
            official = await official_grade(instance, patch, image, folder)
        if only_official and official is not None:
            grade = grade_of(official, grade.reason)
        return grade, official

    async def strict(self, instance: Instance, patch: bytes, image: str | None, folder: Path) -> Grade:
        """Grade a patch under m3agent's own rules."""
        started = time.monotonic()
        if not patch.strip():
            return Grade(verdict=Verdict.EMPTY, reason="the patch is empty")
        try:
            decided = await self.decided(instance, image)
            trees, run = await self.tried(decided, patch, image)
        except DoesNotApply as error:
            return Grade(verdict=Verdict.ERROR, reason=str(error), seconds=time.monotonic() - started)
        except InvalidInstance as error:
            return Grade(verdict=Verdict.INVALID, reason=str(error), seconds=time.monotonic() - started)
        (folder / "tests.log").write_text(run.output, "utf-8")
        grade = judge(decided.answer, run, trees, time.monotonic() - started)
        return with_python(grade, run.python, instance.task.environment.python)

    async def tried(self, instance: Instance, patch: bytes, image: str | None) -> tuple[Trees, TestRun]:
        """Run an instance's tests on its code with a patch; also return the trees.

        Suspicious effects that occur without any patch are not reported as tampering.
        """
        bytecode = await self._bytecode_of(instance, image)
        trees, run = await self._run(instance, patch, image, bytecode=bytecode, doubt=True)
        if run.signs.beyond(ORDINARY, trees.changed):
            usual = await self._known(instance, b"", image)
            run.forged = run.signs.beyond(usual.signs, trees.changed)
        return trees, run

    async def decided(self, instance: Instance, image: str | None) -> Instance:
        """Return the instance with the tests that decide.

        If the row lists none, they are determined once.

        Raises:
            InvalidInstance: No test shows whether a patch resolves the instance.
        """
        if isinstance(instance.answer.rules, RewardRules):
            raise InvalidInstance("a task of Harbor names no tests")
        if instance.answer.fail_to_pass:
            return instance
        key = _key(instance, image)
        async with self._locks.setdefault(key, asyncio.Lock()):
            expected = await self._find(instance, image, key)
        return instance.with_answer(**expected.model_dump())

    async def _known(self, instance: Instance, patch: bytes, image: str | None) -> TestRun:
        """Return what is kept of the results without a patch, or with the reference; the tests run once.

        Outcomes and texts are left out, because a grader may meet thousands of instances.
        """
        key = f"{_key(instance, image)} {bool(patch)}"
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._runs:
                kept = await asyncio.to_thread(self._kept.read, _name(instance, patch, image))
                self._runs[key] = kept or _without_results(await self.run(instance, patch, image))
        return self._runs[key]

    async def run(self, instance: Instance, patch: bytes, image: str | None) -> TestRun:
        """Run an instance's tests without a patch, or with the reference, and keep what grading needs later.

        Raises:
            DoesNotApply: The patch does not apply.
            InvalidInstance: The instance cannot be graded, for example because its own patches do not apply.
            SandboxError, DataError, EnvironmentFault: As in `grade`.
        """
        bytecode = await self._bytecode_of(instance, image) if patch else Bytecode()
        _, run = await self._run(instance, patch, image, bytecode=bytecode, keep=not patch)
        if image is not None:  # the default image may change under the same name
            content = b"" if patch else bytecode.content
            name = _name(instance, patch, image)
            await asyncio.to_thread(self._kept.write, name, _without_results(run), content)
        return run

    async def _bytecode_of(self, instance: Instance, image: str | None) -> Bytecode:
        """Return the bytecode of the run without a patch; an empty one as long as it is not known.

        It is read each time: with a thousand instances, it would fill the memory.
        """
        return Bytecode(await asyncio.to_thread(self._kept.read_bytecode, _name(instance, b"", image)))

    async def _find(self, instance: Instance, image: str | None, key: str) -> Expected:
        file = self._state / "evals" / "expected" / f"{key}.json"
        if known := stored(Expected, file):
            return known
        before = await self.run(instance, b"", image)
        after = await self.run(instance, instance.answer.reference, image)
        green = {ident for ident, outcome in after.outcomes.items() if outcome in GREEN}
        were = before.found
        fixed = sorted(ident for ident in green if not were.passed(ident))
        if not fixed or not after.complete or after.signs.beyond(before.signs, ()):
            why = (
                "the reference makes no test pass that did not"
                if not fixed
                else "the reference's run cannot be trusted"
            )
            raise InvalidInstance(f"{why}, so the verdict is unknown")
        expected = Expected(fail_to_pass=tuple(fixed), pass_to_pass=tuple(sorted(green - set(fixed))))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, expected.model_dump_json().encode())
        return expected

    async def _run(
        self,
        instance: Instance,
        patch: bytes,
        image: str | None,
        *,
        bytecode: Bytecode,
        keep: bool = False,
        doubt: bool = False,
    ) -> tuple[Trees, TestRun]:
        """Run an instance's tests.

        Args:
            doubt: Whether to check also that the tests which the patch should fix can fail.
        """
        answer = instance.answer
        code = await asyncio.to_thread(codebase, instance.task, self._state)
        with tempfile.TemporaryDirectory(prefix="m3agent-grade-") as temporary:

            def make() -> Trees:
                store, base = open_store(code.path, Path(temporary) / "trees.git")
                return grading_trees(store, base, answer, patch)

            try:
                trees = await asyncio.to_thread(make)
            except DoesNotApply:
                raise
            except ValueError as error:
                raise InvalidInstance(str(error)) from None
            spec = SandboxSpec("docker", image, LIMITS)
            sandboxes = SandboxesAhead(trees.store, lambda of: new_sandbox("docker", spec, of, self._say))
            if trees.suites.graded:
                run = await run_suites_of(instance, trees, sandboxes)
                run = await self._with_ids(instance, patch, image, run)
                if doubt and judge(answer, run, trees, 0.0).verdict is Verdict.RESOLVED:
                    builds = await self._changed_builds(instance, patch, image, run)
                    trees = replace(trees, review=(*trees.review, *builds))
                return trees, run
            # While the tests run, the sandbox starts in which it is checked that they can fail.
            sandboxes.start(trees.tree, 2 if doubt else 1)
            try:
                run = await run_tests_of(instance, trees, sandboxes, bytecode=bytecode, keep_bytecode=keep)
                if not doubt:
                    return trees, run
                if run.signs.reached_beyond(ORDINARY, trees.changed):
                    usual = await self._known(instance, b"", image)
                    lines = await asyncio.to_thread(_findings_at, trees, run, usual.signs)
                    trees = replace(trees, review=(*trees.review, *lines))
                return await check_that_tests_can_fail(instance, trees, run, sandboxes, bytecode=bytecode)
            finally:
                await sandboxes.close_unused()

    async def _with_ids(self, instance: Instance, patch: bytes, image: str | None, run: TestRun) -> TestRun:
        """Return the results of tests in another language than Python, with the ids of the row's names.

        A run with the reference decides them, so that no patch has a part in it.
        """
        names, reference_patch = instance.answer.tests, instance.answer.reference
        if run.outcomes and run.outcomes.keys() >= set(names):
            return run
        if patch != reference_patch:
            reference = await self._known(instance, reference_patch, image)
            return replace(run, ids=reference.ids)
        if not run.outcomes:
            raise InvalidInstance(_why(run, "no test has a result with the reference patch"))
        try:
            return replace(run, ids=ids_of(names, run.outcomes))
        except ValueError as error:
            raise InvalidInstance(_why(run, str(error))) from None

    async def _changed_builds(
        self, instance: Instance, patch: bytes, image: str | None, run: TestRun
    ) -> tuple[Finding, ...]:
        """Return what a patch changes in how tests are built and run, unless the reference changes it in the same way."""
        reference = instance.answer.reference
        if patch == reference or not run.registrations:
            return ()
        before = await self._known(instance, b"", image)
        changed = changed_registrations(before.registrations, run.registrations)
        if not changed:
            return ()
        right = await self._known(instance, reference, image)
        also = changed_registrations(right.registrations, run.registrations)
        return tuple(finding for finding in changed if finding in also)


def _why(run: TestRun, problem: str) -> str:
    """Return why a row in another language than Python cannot be graded, from a run with its reference."""
    if run.not_run:
        name, reason = min(run.not_run.items())
        return f"its tests cannot run here, because those of {name} could not: {reason}"
    if run.timed_out or not run.complete:
        return f"{problem}, and the test run with the reference patch did not finish"
    return problem


def _key(instance: Instance, image: str | None) -> str:
    return hashlib.sha256(f"{instance.model_dump_json()}{image}".encode()).hexdigest()[:24]


def _without_results(run: TestRun) -> TestRun:
    """Return what is kept of a run: everything but the results of the tests and their output."""
    return replace(run, outcomes={}, errors={}, output="")


def _name(instance: Instance, patch: bytes, image: str | None) -> str:
    """Return the name under which a run without a patch, or with the reference, is kept."""
    made_from = (__version__, version(), _key(instance, image), bool(patch))
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:32]


class InvalidInstance(ValueError):
    """The instance cannot be graded, whatever the patch; the message says why."""


def _findings_at(trees: Trees, run: TestRun, usual: Signs) -> tuple[Finding, ...]:
    """Return the lines at which changed code read something under a name that its source does not show."""
    files = {entry.path: entry.sha for entry in trees.store.list_tree(trees.tree)}
    places = [place for place in run.signs.reached_beyond(usual, trees.changed) if place.path in files]
    return findings_at(places, lambda path: trees.store.get_blob(files[path]))
