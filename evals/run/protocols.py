"""Interfaces of the parts of an attempt, as the runner uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.results import AttemptRecord, AttemptUsage, Grade, OfficialGrade, Verdict


class EnvironmentProvider(Protocol):
    """Provides images with the environments of instances."""

    async def image(self, task: Task) -> str:
        """Return the name of the image with the instance's environment. Building it may take minutes.

        Raises:
            EnvironmentBuildFailed: The image cannot be built on any machine.
            SandboxError, M3AgentError: This machine cannot build it.
            DataError: The instance's data is wrong.
        """
        ...


class PatchGrader(Protocol):
    """Grades patches."""

    async def grade(
        self, instance: Instance, patch: bytes, image: str, folder: Path
    ) -> tuple[Grade, OfficialGrade | None]:
        """Grade a patch; logs go to `folder`, which exists.

        Raises:
            DataError: The instance cannot be graded.
            SandboxError, M3AgentError: The machine failed, not the patch.
        """
        ...


class Proof(Protocol):
    """The result of inspecting a checkout for other history."""

    @property
    def clean(self) -> bool:
        """Whether the checkout contains nothing but the base commit."""
        ...

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return all findings as JSON."""
        ...


Checkout = Callable[[Task, Path], Proof]
"""Check out a task's repository in a new folder. Blocks; raises the errors of `EnvironmentProvider.image`."""


@dataclass(frozen=True)
class Assignment:
    """The inputs of an agent for one attempt.

    Attributes:
        task: The task.
        number: Number of the attempt, from 1.
        repo: The checkout.
        image: Image with the instance's environment.
        folder: The attempt's folder, for the agent's files.
        hold: File descriptors that the agent's processes keep open.
        warm: Callback for the moment when the model has read the repository: other attempts then find it in
            the server's prefix cache.
    """

    task: Task
    number: int
    repo: Path
    image: str
    folder: Path
    hold: tuple[int, ...] = ()
    warm: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Delivery:
    """The result of an agent's work.

    Attributes:
        status: End status that the agent reports.
        reason: The reason that it reports.
        patch: The patch; may be empty.
        fault: A verdict if the patch must not be graded; else None.
        timed_out: Whether the agent was stopped because of its time limit.
        session: Folder of its session log; None if it has none.
        usage: Its model usage.
        stalls: Number of detected stalls, by kind.
    """

    status: str
    reason: str = ""
    patch: bytes = b""
    fault: Verdict | None = None
    timed_out: bool = False
    session: Path | None = None
    usage: AttemptUsage = field(default_factory=AttemptUsage)
    stalls: dict[str, int] = field(default_factory=dict)


class EvaluatedAgent(Protocol):
    """Turns a repository and an issue into a diff."""

    @property
    def shares_prefix(self) -> bool:
        """Whether attempts at the same commit share their prompt in the server's prefix cache."""
        ...

    async def work(self, given: Assignment) -> Delivery:
        """Make one attempt. After a cancellation nothing is left running."""
        ...


@dataclass(frozen=True)
class AttemptListener:
    """Callbacks for the events of a running attempt.

    Attributes:
        phase: Receives the name of each phase when it begins.
        warm: Called when other attempts can use this one's prefix cache (see `Assignment`).
        say: Receives notes for the user.
    """

    phase: Callable[[str], None] = lambda _: None
    warm: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda _: None


class Maker(Protocol):
    """Makes attempts, on this machine or on others."""

    @property
    def shares_prefix(self) -> bool:
        """See `EvaluatedAgent`."""
        ...

    async def make(
        self, instance: Instance, number: int, folder: Path, listener: AttemptListener
    ) -> tuple[AttemptRecord, bytes]:
        """Make an attempt. Its other files remain in `folder`, which exists and is empty.

        A failure becomes a result; only a cancellation is raised. After a cancellation nothing is left
        running.

        Returns:
            The result and the patch.
        """
        ...


@dataclass(frozen=True)
class AttemptParts:
    """All parts of attempts.

    Attributes:
        checkout: Checks out a task's repository.
        environments: Provides images.
        grader: Grades patches.
        agent: The agent.
        seconds: Time limits of the phases `environment` and `tests`, in seconds.
        invalid: Ids of instances that cannot be graded, with the reason.
    """

    checkout: Checkout
    environments: EnvironmentProvider
    grader: PatchGrader
    agent: EvaluatedAgent
    seconds: dict[str, float]
    invalid: Mapping[str, str] = field(default_factory=dict)
