"""What came of attempts at instances: the records that a run keeps and a report is made of."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Verdict(StrEnum):
    """What came of an attempt.

    `error`: the agent itself failed; `infra`: the machine or the model server did, so it is no result and is tried
    again on resume; `timeout`: the agent, or the tests of its patch, took longer than allowed; `invalid`: the instance
    cannot be graded, whoever tries.
    """

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EMPTY = "empty"
    ERROR = "error"
    INFRA = "infra"
    TIMEOUT = "timeout"
    INVALID = "invalid"


FAILED = (Verdict.UNRESOLVED, Verdict.EMPTY, Verdict.ERROR, Verdict.TIMEOUT)
"""Verdicts that count against an agent; `infra` and `invalid` say nothing about it."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TestCount(_Record):
    """How many of a list of tests passed, and the ids of those that did not."""

    __test__ = False

    passed: int
    failed: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Tests in the list."""
        return self.passed + len(self.failed)


class Grade(_Record):
    """What grading a patch found, under our own rules.

    undone: paths of the patch that were put back as they were. forged: what in the run was tampered with.
    test_seconds: of the processes that ran tests; seconds: of all of it.
    """

    verdict: Verdict
    reason: str = ""
    fail_to_pass: TestCount = TestCount(passed=0)
    pass_to_pass: TestCount = TestCount(passed=0)
    undone: tuple[str, ...] = ()
    forged: tuple[str, ...] = ()
    seconds: float = 0.0
    test_seconds: float = 0.0


class OfficialGrade(_Record):
    """What the official package's rules say of the same patch; resolved: None where they could not be asked."""

    resolved: bool | None
    reason: str = ""
    seconds: float = 0.0
    test_seconds: float = 0.0


class Usage(_Record):
    """What an attempt used of a model; None is unknown, which is not 0. cost: dollars."""

    turns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None


class Seconds(_Record):
    """Wall seconds of an attempt's phases."""

    environment: float = 0.0
    agent: float = 0.0
    grade: float = 0.0


class Result(_Record):
    """What came of one attempt at one instance.

    attempt: 1 and up. status: how the agent says that it ended. session: the folder of its session log, relative to the
    run's folder; None for agents that have none. stalls: how often each kind of stall was noticed.
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
    usage: Usage = Usage()
    stalls: dict[str, int] = Field(default_factory=dict)
    seconds: Seconds = Seconds()
    started: datetime


class RunConfig(_Record):
    """What a run's results depend on: two runs with equal ones are the same experiment.

    data: digest of the instances' content. agent: `m3agent` or the name of an adapter, with its version. command:
    the adapter's command; empty for our own agent. settings: what the agent was told. attempts: at each instance.
    timeouts: seconds for a phase, by name.
    """

    version: int = 1
    data: str
    instances: tuple[str, ...]
    agent: str
    command: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    attempts: int = Field(1, ge=1)
    timeouts: dict[str, float] = Field(default_factory=dict)
