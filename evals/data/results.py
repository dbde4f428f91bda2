"""Records of attempts: a run stores them, and reports are computed from them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


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


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TestCount(_Record):
    """The number of passed tests in a list, and the ids of the other tests."""

    __test__ = False

    passed: int
    failed: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of tests in the list."""
        return self.passed + len(self.failed)


class Grade(_Record):
    """The result of grading a patch under m3agent's own (strict) rules.

    Attributes:
        verdict: The outcome.
        reason: One sentence that explains the verdict; may be empty.
        fail_to_pass: Counts for the tests that the fix must make pass.
        pass_to_pass: Counts for the tests that must keep passing.
        undone: Paths of the patch that the grader reset to their original content.
        forged: Signs that something tampered with the test run.
        means: By which means tampering was looked for, such as `canaries` and `audit hooks`.
        blind: What these means could not see in the environment's Python; empty if they saw everything.
        review: Lines of the patch that a person must read before the verdict can be believed.
        seconds: Wall time of the whole grading.
        test_seconds: Time of the processes that ran tests.
        python: Version of the Python on which tests ran; empty if it is not known. If it is not the row's, the reason
            says so.
    """

    verdict: Verdict
    reason: str = ""
    fail_to_pass: TestCount = TestCount(passed=0)
    pass_to_pass: TestCount = TestCount(passed=0)
    undone: tuple[str, ...] = ()
    forged: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    blind: str = ""
    review: tuple[str, ...] = ()
    seconds: float = 0.0
    test_seconds: float = 0.0
    python: str = ""


class OfficialGrade(_Record):
    """The official package's verdict on the same patch.

    Attributes:
        resolved: Whether the patch resolves the instance; None if the official rules could not run.
        reason: Why `resolved` is not true; may be empty.
        seconds: Wall time of the whole grading.
        test_seconds: Time of the processes that ran tests.
    """

    resolved: bool | None
    reason: str = ""
    seconds: float = 0.0
    test_seconds: float = 0.0


class AttemptUsage(_Record):
    """Model usage of an attempt. None means unknown, which differs from 0. `cost` is in dollars."""

    turns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None


class Seconds(_Record):
    """Wall time of each phase of an attempt, in seconds."""

    environment: float = 0.0
    agent: float = 0.0
    grade: float = 0.0


class AttemptRecord(_Record):
    """The record of one attempt at one instance.

    Attributes:
        attempt: Number of the attempt, from 1.
        status: The end status that the agent reports.
        session: Folder of the session log, relative to the run's folder; None for agents without one.
        stalls: How often each kind of stall was detected.
    """

    instance_id: str
    repo: str
    attempt: int = Field(ge=1)
    verdict: Verdict
    reason: str = ""
    status: str = ""
    grade: Grade | None = None
    official: OfficialGrade | None = None
    patch_bytes: int = 0
    session: str | None = None
    usage: AttemptUsage = AttemptUsage()
    stalls: dict[str, int] = Field(default_factory=dict)
    seconds: Seconds = Seconds()
    started: datetime


class RunConfig(_Record):
    """Everything that a run's results depend on. Two runs with equal configurations are the same experiment.

    Attributes:
        data: Digest of the instances' content.
        instances: Ids of the instances.
        agent: `m3agent` or the name of an adapter, with its version.
        command: The adapter's command; empty for m3agent itself.
        settings: The settings that the agent received.
        attempts: Number of attempts at each instance.
        timeouts: Time limit of each phase, in seconds, by the phase's name.
    """

    version: int = 1
    data: str
    instances: tuple[str, ...]
    agent: str
    command: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    attempts: int = Field(1, ge=1)
    timeouts: dict[str, float] = Field(default_factory=dict)
