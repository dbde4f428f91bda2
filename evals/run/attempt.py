"""Make one attempt at one instance: checkout and image, agent, grade. Every failure becomes a verdict."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.report.text import duration
from m3agent.evals.code.checkout import LeakProof
from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.results import AttemptRecord, Grade, OfficialGrade, Seconds, Verdict
from m3agent.evals.run.other_agent import STORE
from m3agent.evals.run.own_agent import NO_CONFIG, STATE
from m3agent.evals.run.parts import Assignment, AttemptListener, AttemptParts, Delivery
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.util.sanitize import printable_line

CHECKOUT, LEAK_PROOF, GRADING = "repo", "leak-proof.json", "grading"
"""In an attempt's folder: the repository while the agent works, the leak proof, and the grader's logs."""

MOST_REASON = 1000  # characters


@dataclass
class EvalAttempt:
    """One attempt: its inputs, and its state so far."""

    instance: Instance
    number: int
    """Number of the attempt, from 1."""
    folder: Path
    """The attempt's folder, empty at first."""
    parts: AttemptParts
    listener: AttemptListener = field(default_factory=AttemptListener)
    hold: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase so far, in seconds."""
    delivery: Delivery = field(default_factory=lambda: Delivery(""))
    grade: Grade | None = None
    """M3agent's grade; None if the attempt was not graded."""
    official: OfficialGrade | None = None
    """The official grade; None if the official package did not grade the attempt."""

    async def make(self) -> tuple[AttemptRecord, bytes]:
        """Make the attempt; return the result and the patch. A failure becomes a result; only a cancellation is raised."""
        started = datetime.now(UTC)
        try:
            verdict, reason = await self._make()
        except _OutOfTime as late:
            verdict, reason = late.verdict, str(late)
        except DataError as error:
            verdict, reason = Verdict.INVALID, str(error)
        except FAILURES as error:
            verdict, reason = Verdict.INFRA, str(error)
        except Exception as error:  # noqa: BLE001  # any error: record it, so that the attempt is repeated
            verdict, reason = Verdict.INFRA, f"{type(error).__name__}: {error}"
        finally:
            self._tidy()
        return self._result(verdict, reason, started), self.delivery.patch

    async def _make(self) -> tuple[Verdict, str]:
        task, limits = self.instance.task, self.parts.seconds
        if reason := self.parts.invalid.get(task.instance_id):
            return Verdict.INVALID, reason
        checkout = self.folder / CHECKOUT
        async with self._phase(
            "environment", limits["environment"], Verdict.INFRA, "the environment was not ready"
        ):
            try:
                proof = await asyncio.to_thread(self.parts.checkout, task, checkout)
                self._keep(proof)
                if not proof.clean:
                    raise DataError("the checkout holds more than its own commit: the fix might be in it")
                image = await self.parts.image(task)
                if leaks := await self.parts.leaks(image, task, checkout):
                    self._keep(proof.model_copy(update={"image": leaks}))
            except EnvironmentBuildFailed as error:  # the checkout may be that of an image
                raise DataError(str(error)) from error
        async with self._phase("agent", None):
            self.delivery = await self.parts.agent.work(
                Assignment(task, self.number, checkout, image, self.folder, self.hold, self.listener.warm)
            )
        ended = self.delivery
        if ended.fault is not None:
            return ended.fault, ended.reason
        if not ended.patch and ended.timed_out:
            return Verdict.TIMEOUT, "the agent ran out of time"
        if not ended.patch:
            return Verdict.EMPTY, ended.reason
        grading = self.folder / GRADING
        grading.mkdir()
        async with self._phase(
            "grade", limits["tests"], Verdict.TIMEOUT, "the tests of the patch had not finished"
        ):
            self.grade, self.official = await self.parts.grade(self.instance, ended.patch, image, grading)
        late = "the agent ran out of time, and its unfinished work was graded" if ended.timed_out else ""
        return self.grade.verdict, "; ".join(filter(None, (late, self.grade.reason)))

    def _keep(self, proof: LeakProof) -> None:
        (self.folder / LEAK_PROOF).write_text(proof.model_dump_json(indent=2) + "\n", "utf-8")

    @asynccontextmanager
    async def _phase(
        self, name: str, most: float | None, verdict: Verdict = Verdict.INFRA, late: str = ""
    ) -> AsyncIterator[None]:
        """Measure a phase; after more than `most` seconds it ends with the verdict and the reason `late`."""
        self.listener.phase(name)
        started, limit = time.monotonic(), asyncio.timeout(most)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise _OutOfTime(verdict, f"{late} after {duration(most)}") from None
        finally:
            self.seconds[name] = round(time.monotonic() - started, 3)

    def _result(self, verdict: Verdict, reason: str, started: datetime) -> AttemptRecord:
        ended, session = self.delivery, self.delivery.session
        run = self.folder.parent.parent.parent
        made = {
            "status": ended.status,
            "grade": self.grade,
            "official": self.official,
            "patch_bytes": len(ended.patch),
            "session": None if session is None else str(session.relative_to(run)),
            "usage": ended.usage,
            "stalls": ended.stalls,
            "seconds": Seconds(**self.seconds),
        }
        return not_made(self.instance, self.number, verdict, reason, started).model_copy(update=made)

    def _tidy(self) -> None:
        """Delete data that can be recreated; with hundreds of attempts it would fill the disk."""
        bulky = [self.folder / name for name in (CHECKOUT, STORE, NO_CONFIG)]
        state = self.folder / STATE
        bulky += [path for path in state.glob("*") if path.name != "sessions"]
        bulky += state.glob(f"sessions/*/{TREES}")
        for path in bulky:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def not_made(
    instance: Instance, number: int, verdict: Verdict, reason: str, started: datetime
) -> AttemptRecord:
    """Return the result of an attempt on another machine that did not run or did not come back."""
    return AttemptRecord(
        instance_id=instance.id,
        repo=instance.task.repo,
        attempt=number,
        verdict=verdict,
        reason=printable_line(reason, MOST_REASON),
        started=started,
    )


class _OutOfTime(Exception):
    """A phase exceeded its time limit; the text says which."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
