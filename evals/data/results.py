"""Records of attempts: a run stores them, and reports are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Verdict(StrEnum):
    """The outcome of an attempt.

    `error`: the agent itself failed.
    `infra`: the machine or the model server failed. This is no result, and resuming the run repeats the
    attempt.
    `timeout`: the agent, or the tests of its patch, exceeded their time limit.
    `invalid`: the instance cannot be graded, whatever the patch.
    """

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EMPTY = "empty"
    ERROR = "error"
    INFRA = "infra"
    TIMEOUT = "timeout"
    INVALID = "invalid"


FAILED = (Verdict.UNRESOLVED, Verdict.EMPTY, Verdict.ERROR, Verdict.TIMEOUT)
"""Verdicts that count against an agent. `infra` and `invalid` do not: the agent did not cause them."""


class Record(BaseModel):
    """Data that is stored as JSON. A field that is not known makes it malformed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TestCount(Record):
    """The number of passed tests in a list, and the ids of the other tests."""

    __test__ = False

    passed: int
    failed: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of tests in the list."""
        return self.passed + len(self.failed)


class Grade(Record):
    """The result of grading a patch under m3agent's own (strict) rules."""

    verdict: Verdict
    reason: str = ""
    """One sentence that explains the verdict; may be empty."""
    fail_to_pass: TestCount = TestCount(passed=0)
    """Counts for the tests that the fix must make pass."""
    pass_to_pass: TestCount = TestCount(passed=0)
    """Counts for the tests that must keep passing."""
    undone: tuple[str, ...] = ()
    """Paths of the patch that the grader reset to their original content."""
    forged: tuple[str, ...] = ()
    """Signs that something tampered with the test run."""
    means: tuple[str, ...] = ()
    """By which means tampering was looked for, such as `canaries` and `audit hooks`."""
    blind: str = ""
    """What these means could not see in the environment's Python; empty if they saw everything."""
    review: tuple[str, ...] = ()
    """Lines of the patch that a person must read before the verdict can be believed."""
    seconds: float = 0.0
    """Wall time of the whole grading."""
    test_seconds: float = 0.0
    """Time of the processes that ran tests."""
    python: str = ""
    """Version of the Python on which tests ran; empty if it is not known. If it is not the row's, the reason
    says so.
    """


class OfficialGrade(Record):
    """The official package's verdict on the same patch."""

    resolved: bool | None
    """Whether the patch resolves the instance; None if the official rules could not run."""
    reason: str = ""
    """Why `resolved` is not true; may be empty."""
    seconds: float = 0.0
    """Wall time of the whole grading."""
    test_seconds: float = 0.0
    """Time of the processes that ran tests."""


class AttemptUsage(Record):
    """Model usage of an attempt. None means unknown, which differs from 0. `cost` is in dollars."""

    turns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None


class Seconds(Record):
    """Wall time of each phase of an attempt, in seconds."""

    environment: float = 0.0
    agent: float = 0.0
    grade: float = 0.0


class AttemptRecord(Record):
    """The record of one attempt at one instance."""

    instance_id: str
    repo: str
    attempt: int = Field(ge=1)
    """Number of the attempt, from 1."""
    verdict: Verdict
    reason: str = ""
    status: str = ""
    grade: Grade | None = None
    official: OfficialGrade | None = None
    patch_bytes: int = 0
    session: str | None = None
    """Folder of the session log, relative to the run's folder; None for agents without one."""
    usage: AttemptUsage = AttemptUsage()
    stalls: dict[str, int] = Field(default_factory=dict)
    """How often each kind of stall was detected."""
    seconds: Seconds = Seconds()
    started: datetime


Attempt = tuple[str, int]
"""Instance id and number of the attempt."""


class RunConfig(Record):
    """Everything that a run's results depend on. Equal configurations are the same experiment."""

    version: int = 1
    data: str
    """Digest of the instances' content."""
    instances: tuple[str, ...]
    agent: str
    """`m3agent` or the name of an adapter, with its version."""
    command: tuple[str, ...] = ()
    """The adapter's command; empty for m3agent itself."""
    settings: dict[str, str] = Field(default_factory=dict)
    attempts: int = Field(1, ge=1)
    timeouts: dict[str, float] = Field(default_factory=dict)
    """Time limit of each phase, in seconds, by the phase's name."""

    def label(self, instance_id: str, attempt: int) -> str:
        """Return the name of an attempt: its instance, and its number if the run has several attempts."""
        return instance_id if self.attempts == 1 else f"{instance_id} #{attempt}"


def differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """Return the keys whose values differ, in alphabetical order."""
    return sorted(key for key in {**first, **second} if first.get(key) != second.get(key))


Stored = TypeVar("Stored", bound=BaseModel)


def stored(model: type[Stored], file: Path) -> Stored | None:
    """Return what a file of JSON holds; None if it cannot be read, or is malformed."""
    try:
        return model.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return where the first problem of data is, as names with dots between them, and what it is."""
    problem = error.errors()[0]
    return ".".join(map(str, problem["loc"])), problem["msg"]
