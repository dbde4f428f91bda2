"""The parts of an attempt: what an agent gets and delivers, and what checks out, builds and grades."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.code.checkout import LeakProof, checkout, code_folder
from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.results import AttemptRecord, AttemptUsage, Grade, OfficialGrade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.image_leaks import leaks_in


@dataclass(frozen=True)
class Assignment:
    """The inputs of an agent for one attempt."""

    task: Task
    number: int
    """Number of the attempt, from 1."""
    repo: Path
    image: str
    """Image with the instance's environment."""
    folder: Path
    """The attempt's folder, for the agent's files."""
    hold: tuple[int, ...] = ()
    """File descriptors that the agent's processes keep open."""
    warm: Callable[[], None] = lambda: None
    """Called when the model has read the repository: other attempts then find it in the server's prefix cache."""


@dataclass(frozen=True)
class Delivery:
    """The result of an agent's work."""

    status: str
    """End status that the agent reports."""
    reason: str = ""
    patch: bytes = b""
    fault: Verdict | None = None
    """A verdict if the patch must not be graded; else None."""
    timed_out: bool = False
    """Whether the agent was stopped because of its time limit."""
    session: Path | None = None
    """Folder of its session log; None if it has none."""
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
    """Callbacks for the events of a running attempt."""

    phase: Callable[[str], None] = lambda _: None
    """Receives the name of each phase when it begins."""
    warm: Callable[[], None] = lambda: None
    """Called when other attempts can use this one's prefix cache (see `Assignment`)."""
    say: Callable[[str], None] = lambda _: None
    """Receives notes for the user."""


async def no_search(image: str, task: Task, code: Path) -> tuple[str, ...]:
    """Return no leaks, without a search."""
    return ()


@dataclass(frozen=True)
class AttemptParts:
    """All parts of attempts. Their functions raise the errors of the functions that `standard_parts` uses."""

    checkout: Callable[[Task, Path], LeakProof]
    """Checks out a task's repository in a new folder, and inspects it for other history. It blocks."""
    image: Callable[[Task], Awaitable[str]]
    """Returns the name of the image with a task's environment. Building it may take minutes."""
    grade: Callable[[Instance, bytes, str, Path], Awaitable[tuple[Grade, OfficialGrade | None]]]
    """Grades a patch, from the instance, the patch, the image, and a folder for logs."""
    agent: EvaluatedAgent
    seconds: dict[str, float]
    """Time limits of the phases `environment` and `tests`, in seconds."""
    invalid: Mapping[str, str] = field(default_factory=dict)
    """Ids of instances that cannot be graded, with the reason."""
    leaks: Callable[[str, Task, Path], Awaitable[tuple[str, ...]]] = no_search
    """Returns what a task's image contains of the time after its base, whose checkout is the path."""


PartsOf: TypeAlias = Callable[[Callable[[str], None]], AttemptParts]
"""Creates the parts of attempts; its argument receives notes for the user during the run."""
Make: TypeAlias = Callable[
    [Instance, int, Path, AttemptListener], Coroutine[Any, Any, tuple[AttemptRecord, bytes]]
]
"""Makes an attempt, from the instance, the attempt's number, its empty folder, and what receives its events.

Returned are the result and the patch. A failure becomes a result; only a cancellation is raised, and nothing is left
running after it.
"""


def standard_parts(
    agent: EvaluatedAgent,
    seconds: dict[str, float],
    say: Callable[[str], None],
    *,
    official: bool = False,
    invalid: Mapping[str, str] | None = None,
) -> AttemptParts:
    """Return the parts of a real run, which cache their data in this machine's state folder."""
    state = state_dir(os.environ)
    return AttemptParts(
        partial(checkout, cache=code_folder(state)),
        Environments(state, say).image,
        Grader(state, say, official=official).grade,
        agent,
        seconds,
        invalid or {},
        leaks_in,
    )
