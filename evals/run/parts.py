"""What an attempt is made with, as the runner sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.results import Grade, OfficialGrade, Result, Usage, Verdict


class Environments(Protocol):
    """Images with what instances need."""

    async def image(self, task: Task) -> str:
        """The name of the image with the instance's environment, which may take minutes to build.

        Raises:
            EnvironmentFailed: it cannot be built, whoever tries.
            SandboxError, M3AgentError: this machine cannot. DataError: the instance is at fault.
        """
        ...


class Grader(Protocol):
    """Says what a patch is worth."""

    async def grade(
        self, instance: Instance, patch: bytes, image: str, folder: Path
    ) -> tuple[Grade, OfficialGrade | None]:
        """Grade a patch; logs go to the folder, which is there.

        Raises:
            DataError: the instance cannot be graded. SandboxError, M3AgentError: the machine fails, not the patch.
        """
        ...


class Proof(Protocol):
    """What was looked for in a checkout. clean: there is no more in it than the base commit."""

    @property
    def clean(self) -> bool:
        """Whether nothing speaks against it."""
        ...

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """All of it, to be kept."""
        ...


Checkout = Callable[[Task, Path], Proof]
"""Lays a task's repository down in a folder that is not there yet. Blocking. Raises as `Environments.image`."""


@dataclass(frozen=True)
class Assignment:
    """What an agent is given for one attempt.

    number: of the attempt, from 1. repo: the checkout. image: with the instance's environment. folder: of the attempt,
    for whatever the agent leaves. hold: descriptors that its processes keep open. warm: to be called once the model has
    read the repository, from when on others find that in the server's cache.
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
    """What came back from an agent.

    status, reason: how it says that it ended. fault: the verdict if there is nothing to grade whatever it left. timed_out: it
    was ended for taking too long. session: the folder of its session log.
    """

    status: str
    reason: str = ""
    patch: bytes = b""
    fault: Verdict | None = None
    timed_out: bool = False
    session: Path | None = None
    usage: Usage = field(default_factory=Usage)
    stalls: dict[str, int] = field(default_factory=dict)


class Agent(Protocol):
    """Whatever turns a repository and an issue into a diff."""

    @property
    def shares_prefix(self) -> bool:
        """Whether attempts at one commit find each other's prompt in the server's cache."""
        ...

    async def work(self, given: Assignment) -> Delivery:
        """One attempt. Cancelled, it leaves nothing running."""
        ...


@dataclass(frozen=True)
class Listener:
    """Who is told of an attempt while it is made: the name of each phase as it begins; that others find what it has in
    common with them in the server's cache (see `Assignment`); notes for the person."""

    phase: Callable[[str], None] = lambda _: None
    warm: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda _: None


class Maker(Protocol):
    """Makes attempts, on this machine or on others."""

    @property
    def shares_prefix(self) -> bool:
        """See `Agent`."""
        ...

    async def make(
        self, instance: Instance, number: int, folder: Path, told: Listener
    ) -> tuple[Result, bytes]:
        """Make an attempt; what came of it, and the patch. All else is left in the folder, which is there and empty.

        Nothing but a cancellation is raised: a failure is a result. Cancelled, nothing is left running.
        """
        ...


@dataclass(frozen=True)
class Parts:
    """All that attempts are made with. seconds: the longest that a phase may take: `environment` and `tests`. invalid:
    instances that are known not to be gradable, and why."""

    checkout: Checkout
    environments: Environments
    grader: Grader
    agent: Agent
    seconds: dict[str, float]
    invalid: Mapping[str, str] = field(default_factory=dict)
