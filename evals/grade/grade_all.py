"""Grade a set of predictions. Every instance gets a verdict, even if an error occurs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from m3agent.agent.exit_codes import FAILURES
from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.results import Grade, OfficialGrade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.validate import Validations
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.util.concurrency import some_at_a_time


class Graded(BaseModel):
    """Both verdicts on one prediction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
