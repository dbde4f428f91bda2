"""Check that instances can be graded, and grade predictions with what is known of their instances.

The reference patch must resolve an instance in every run. An empty patch and a harmless patch must not. In both cases every
instance gets a result, even if an error occurs.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field, ValidationError

from m3agent.agent.exit_codes import FAILURES
from m3agent.evals.data.instance import Answer, DataError, Instance
from m3agent.evals.data.load import digest
from m3agent.evals.data.results import Grade, OfficialGrade, Record, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader, InvalidInstance, grade_of
from m3agent.evals.grade.official import can_grade, official_grade, official_grade_of_reference
from m3agent.evals.grade.strict import judge
from m3agent.evals.grade.trees import DoesNotApply
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.util.concurrency import some_at_a_time
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of

PHASES = {"environment": "code and image", "tests": "running its tests"}
"""The phases of a validation by their names, in order, with what happens in them."""
RUNS = 2
"""Default number of runs with the reference patch."""
HARMLESS_FILE = "M3AGENT-HARMLESS.txt"
HARMLESS = f"""\
diff --git a/{HARMLESS_FILE} b/{HARMLESS_FILE}
new file mode 100644
--- /dev/null
+++ b/{HARMLESS_FILE}
@@ -0,0 +1 @@
+This file changes nothing.
""".encode()
"""A patch that only adds a text file and fixes nothing."""


class Validation(Record):
    """The result of validating an instance."""

    instance_id: str
    valid: bool
    reason: str = ""
    """Why it cannot; empty if it can."""
    image: str = ""
    """Image of the environment; empty if it could not be built."""
    fail_to_pass: tuple[str, ...] = ()
    """Tests that fail without the reference patch and pass with it."""
    pass_to_pass: tuple[str, ...] = ()
    """Tests that pass without and with it, flaky ones left out."""
    flaky: tuple[str, ...] = ()
    """Tests with different outcomes in different runs of the reference."""
    before: int = 0
    """How many of `fail_to_pass` fail without the reference patch."""
    reference: tuple[Verdict, ...] = ()
    """Verdict of each run with the reference patch."""
    empty: Verdict = Verdict.EMPTY
    harmless: Verdict | None = None
    """Verdict of the harmless patch; None if it was not tried."""
    official: tuple[OfficialGrade, OfficialGrade] | None = None
    """Official grades of the reference and of the harmless patch; None if not requested."""
    not_strict: str = ""
    """Why only the rules of the row's benchmark can grade it; empty if m3agent's own rules can."""
    seconds: float = 0.0
    """Wall time of the validation."""
    content: str = ""
    """Hash of the instance and of how it was validated; empty if the image was not available."""
    machine_failed: bool = False
    """Whether this machine failed, so that nothing is known about the instance. Such a result is not stored.
    """
    spent: dict[str, float] = Field(default_factory=dict, exclude=True)
    """Wall time of each phase, in seconds. It is not stored."""


@dataclass(frozen=True)
class Validations:
    """Results of an earlier validation, by instance id; stored as a JSON file."""

    found: dict[str, Validation]

    @classmethod
    def read(cls, path: Path) -> Validations:
        """Read the file.

        Raises:
            UsageError: It cannot be read, or it is not a file that a validation wrote.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({reason_of(error)}): `m3agent eval validate -o` writes such a file."
            ) from None
        try:
            values = json.loads(data)
            return cls({v["instance_id"]: Validation.model_validate(v) for v in values["instances"]})
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            raise UsageError(
                f"{path} is not a file that `m3agent eval validate -o` wrote: {error}."
            ) from None

    def flaky(self) -> dict[str, tuple[str, ...]]:
        """Return the flaky tests of each instance that has some."""
        return {ident: one.flaky for ident, one in self.found.items() if one.flaky}

    @staticmethod
    def text(found: Iterable[Validation]) -> str:
        """Return the content of the file."""
        known = [one for one in found if not one.machine_failed]
        values = [one.model_dump(mode="json", exclude={"machine_failed"}) for one in known]
        return json.dumps({"v": 1, "instances": values}, indent=2) + "\n"

    def applied(self, instance: Instance) -> Instance:
        """Return the instance without its flaky tests.

        Raises:
            DataError: The instance is invalid or was not validated.
        """
        known = self.found.get(instance.id)
        if known is None:
            raise DataError(f"{instance.id} was not validated")
        if not known.valid:
            raise DataError(known.reason)
        return instance.with_answer(fail_to_pass=known.fail_to_pass, pass_to_pass=known.pass_to_pass)

    def sorted_out(self, instances: Sequence[Instance]) -> tuple[list[Instance], dict[str, str]]:
        """Apply the validation to all instances.

        Returns:
            All instances, the valid ones without their flaky tests; and the reason for each other instance,
            by id.
        """
        done, invalid = [], {}
        for instance in instances:
            try:
                done.append(self.applied(instance))
            except DataError as error:
                done.append(instance)
                invalid[instance.id] = str(error)
        return done, invalid


async def validate(
    instance: Instance,
    environments: Environments,
    grader: Grader,
    *,
    runs: int = RUNS,
    official: bool = False,
    on_phase: Callable[[str], None] = lambda _: None,
) -> Validation:
    """Build an instance's environment and run its tests.

    The tests run without a patch, `runs` times with the reference patch, and once with a harmless patch. `on_phase` is called
    with the name of each of `PHASES` as it begins.

    Raises:
        SandboxError: This machine failed, which says nothing about the instance. EnvironmentBuildFailed and
            ImageMissing are not raised: they make the instance invalid.
        EnvironmentFault: This machine failed.
    """
    started = built = time.monotonic()
    image, content = "", _content(instance, runs, official)
    on_phase("environment")
    try:
        image = await environments.image(instance.task)
        built = time.monotonic()
        on_phase("tests")
        try:
            validation = await _validate(instance, grader, image, runs, official=official)
        except InvalidInstance as error:
            if not can_grade(instance):
                raise
            validation = await _validate_by_benchmark(instance, image, runs, str(error))
    except (EnvironmentBuildFailed, ImageMissing) as error:  # perhaps only because of the network: try again
        validation, content = Validation(instance_id=instance.id, valid=False, reason=str(error)), ""
    except (DataError, InvalidInstance, DoesNotApply) as error:
        validation = Validation(instance_id=instance.id, valid=False, reason=str(error), image=image)
    ended = time.monotonic()
    spent = {"environment": built - started, "tests": ended - built} if image else {}
    return validation.model_copy(
        update={"seconds": round(ended - started, 3), "content": content, "spent": spent}
    )


def _content(instance: Instance, runs: int, official: bool) -> str:
    return hashlib.sha256(f"{digest([instance])} {runs} {official}".encode()).hexdigest()[:32]


async def _validate(
    instance: Instance, grader: Grader, image: str, runs: int, *, official: bool
) -> Validation:
    decided = await grader.decided(instance, image)
    answer, reference = decided.answer, decided.answer.reference
    before = (await grader.run(decided, b"", image)).found
    passing = [name for name in answer.fail_to_pass if before.counts(name) and before.passed(name)]
    each = [await grader.tried(decided, reference, image) for _ in range(runs)]
    found = [run.found for _, run in each]
    flaky = [name for name in answer.tests if len({outcomes.passed(name) for outcomes in found}) > 1]
    kept = tuple(name for name in answer.pass_to_pass if name not in flaky)
    steady = decided.with_answer(pass_to_pass=kept)
    grades = [judge(steady.answer, run, trees, run.test_seconds) for trees, run in each]
    with tempfile.TemporaryDirectory(prefix="m3agent-validate-") as temporary:
        folder = Path(temporary)
        harmless = await grader.strict(steady, HARMLESS, image, folder)
        both = None
        if official:
            both = (
                await official_grade(instance, reference, image, folder),
                await official_grade(instance, HARMLESS, image, folder),
            )
    reason = _reason(passing, flaky, answer, grades, harmless.verdict)
    return Validation(
        instance_id=instance.id,
        valid=not reason,
        reason=reason,
        image=image,
        fail_to_pass=answer.fail_to_pass,
        pass_to_pass=kept,
        flaky=tuple(flaky),
        before=sum(map(before.counts, answer.fail_to_pass)) - len(passing),
        reference=tuple(grade.verdict for grade in grades),
        harmless=harmless.verdict,
        official=both,
    )


async def _validate_by_benchmark(instance: Instance, image: str, runs: int, not_strict: str) -> Validation:
    """Validate an instance that only the rules of its benchmark can grade."""
    answer = instance.answer
    with tempfile.TemporaryDirectory(prefix="m3agent-validate-") as temporary:
        each = [await official_grade_of_reference(instance, image, Path(temporary)) for _ in range(runs)]
        harmless = await official_grade(instance, HARMLESS, image, Path(temporary))
    grades = [grade_of(official, not_strict) for official in each]
    without = grade_of(harmless, not_strict)
    return Validation(
        instance_id=instance.id,
        valid=not (reason := _reason((), (), answer, grades, without.verdict)),
        reason=reason,
        image=image,
        fail_to_pass=answer.fail_to_pass,
        pass_to_pass=answer.pass_to_pass,
        reference=tuple(grade.verdict for grade in grades),
        harmless=without.verdict,
        official=(each[0], harmless),
        not_strict=not_strict,
    )


def _reason(
    passing: Sequence[str],
    flaky: Sequence[str],
    answer: Answer,
    reference: Sequence[Grade],
    harmless: Verdict,
) -> str:
    """Return why the instance is invalid; empty if it is valid."""
    if passing:
        return f"{len(passing)} of the tests to fix pass without the reference patch, such as {passing[0]}"
    if unsteady := [name for name in answer.fail_to_pass if name in flaky]:
        return f"{len(unsteady)} of the tests to fix are flaky, such as {unsteady[0]}"
    if failed := [grade for grade in reference if grade.verdict is not Verdict.RESOLVED]:
        times = "" if len(failed) == len(reference) else " every time"
        return f"the reference patch does not resolve it{times}: {failed[0].reason}"
    if harmless is Verdict.RESOLVED:
        return "a patch that changes nothing resolves it"
    return ""


async def validate_all(
    instances: Sequence[Instance],
    environments: Environments,
    grader: Grader,
    *,
    workers: int,
    runs: int = RUNS,
    official: bool = False,
    known: Mapping[str, Validation] | None = None,
    on_phase: Callable[[str, str], None] = lambda *_: None,
    on_done: Callable[[Validation], None] = lambda _: None,
) -> list[Validation]:
    """Validate instances, up to `workers` at a time. If this machine fails for one of them, the others continue.

    Args:
        known: Earlier results by instance id. They are used for instances that did not change.

    Raises:
        EngineUnavailable: No container engine answers.
    """

    async def one(instance: Instance) -> Validation:
        found = (known or {}).get(instance.id)
        if found is None or found.content != _content(instance, runs, official):
            tell = partial(on_phase, instance.id)
            try:
                found = await validate(
                    instance, environments, grader, runs=runs, official=official, on_phase=tell
                )
            except EngineUnavailable:
                raise
            except (SandboxError, EnvironmentFault, OSError) as error:
                reason = f"this machine failed: {error}"
                found = Validation(instance_id=instance.id, valid=False, reason=reason, machine_failed=True)
        on_done(found)
        return found

    return await some_at_a_time(workers, one, instances)


class Graded(Record):
    """Both verdicts on one prediction."""

    instance_id: str
    strict: Grade
    official: OfficialGrade | None = None

    @property
    def differs(self) -> bool:
        """Whether the two verdicts contradict each other."""
        if self.official is None or self.official.resolved is None:
            return False
        return self.official.resolved != (self.strict.verdict is Verdict.RESOLVED)


async def grade_all(
    instances: Sequence[Instance],
    patches: Mapping[str, bytes],
    environments: Environments,
    grader: Grader,
    *,
    workers: int,
    validations: Validations | None = None,
    folder: Path | None = None,
    on_done: Callable[[Graded], None] = lambda _: None,
) -> list[Graded]:
    """Grade the patch of each instance, up to `workers` at a time.

    Args:
        folder: Keeps the logs of each instance; None to discard them.
    """

    async def one(instance: Instance) -> Graded:
        official = None
        with tempfile.TemporaryDirectory(prefix="m3agent-grade-") as temporary:
            logs = Path(temporary) if folder is None else folder / instance.id
            logs.mkdir(parents=True, exist_ok=True)
            try:
                steady = instance if validations is None else validations.applied(instance)
                patch = patches[instance.id]
                image = await environments.image(steady.task) if patch.strip() else ""
                strict, official = await grader.grade(steady, patch, image, logs)
            except (DataError, EnvironmentBuildFailed) as error:
                strict = Grade(verdict=Verdict.INVALID, reason=str(error))
            except FAILURES as error:
                strict = Grade(verdict=Verdict.INFRA, reason=str(error))
        graded = Graded(instance_id=instance.id, strict=strict, official=official)
        on_done(graded)
        return graded

    return await some_at_a_time(workers, one, instances)
