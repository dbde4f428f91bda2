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
    """The inputs of an agent for one attempt."""

    task: Task
    number: int
    """Number of the attempt, from 1."""
    repo: Path
    """The checkout."""
    image: str
    """Image with the instance's environment."""
    folder: Path
    """The attempt's folder, for the agent's files."""
    hold: tuple[int, ...] = ()
    """File descriptors that the agent's processes keep open."""
    warm: Callable[[], None] = lambda: None
    """Callback for the moment when the model has read the repository: other attempts then find it in the
    server's prefix cache.
    """


@dataclass(frozen=True)
class Delivery:
    """The result of an agent's work."""

    status: str
    """End status that the agent reports."""
    reason: str = ""
    """The reason that it reports."""
    patch: bytes = b""
    """The patch; may be empty."""
    fault: Verdict | None = None
    """A verdict if the patch must not be graded; else None."""
    timed_out: bool = False
    """Whether the agent was stopped because of its time limit."""
    session: Path | None = None
    """Folder of its session log; None if it has none."""
    usage: AttemptUsage = field(default_factory=AttemptUsage)
    """Its model usage."""
    stalls: dict[str, int] = field(default_factory=dict)
    """Number of detected stalls, by kind."""


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
    """Callbacks for the events of a running attempt."""

    phase: Callable[[str], None] = lambda _: None
    """Receives the name of each phase when it begins."""
    warm: Callable[[], None] = lambda: None
    """Called when other attempts can use this one's prefix cache (see `Assignment`)."""
    say: Callable[[str], None] = lambda _: None
    """Receives notes for the user."""


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
    """All parts of attempts."""

    checkout: Checkout
    """Checks out a task's repository."""
    environments: EnvironmentProvider
    """Provides images."""
    grader: PatchGrader
    """Grades patches."""
    agent: EvaluatedAgent
    seconds: dict[str, float]
    """Time limits of the phases `environment` and `tests`, in seconds."""
    invalid: Mapping[str, str] = field(default_factory=dict)
    """Ids of instances that cannot be graded, with the reason."""
