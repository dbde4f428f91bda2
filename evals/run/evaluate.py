"""Create or resume a run folder and make its missing attempts. A folder of another experiment is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import Attempt, AttemptRecord, RunConfig
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.run.attempt import EvalAttempt
from m3agent.evals.run.parts import AttemptListener, AttemptParts, Make, PartsOf
from m3agent.evals.run.progress import RunProgress

T = TypeVar("T")
Group = tuple[str, str]
"""Repository and commit id."""


def evaluate(
    config: RunConfig,
    instances: Sequence[Instance],
    output: Path,
    parts_of: PartsOf,
    say: Callable[[str], None],
    run: Callable[[Coroutine[Any, Any, None]], None],
    *,
    workers: int = 1,
    cluster: str | None = None,
) -> RunFolder:
    """Make every attempt that the folder `output` lacks.

    Args:
        run: Runs the attempts, and raises KeyboardInterrupt where they are interrupted.
        workers: Number of attempts at a time; results do not depend on it.
        cluster: Address of a Ray cluster whose nodes make the attempts; `parts_of` is then pickled and called
            there. None for this machine.

    Raises:
        UsageError: The folder has results of another experiment or is in use, or the cluster's address is
            malformed.
        EnvironmentFault: The folder cannot be written, or the cluster cannot be used.
        KeyboardInterrupt: The user interrupted the run; finished results remain.
    """
    repos = {instance.id: instance.task.repo for instance in instances}
    folder = RunFolder.create(output.absolute(), config, repos)
    with folder.locked(say) as lock:
        if not folder.left():
            say(f"all attempts of {output} have a result already: nothing was left to do")
        progress = RunProgress(len(folder.wanted()), {config.agent: folder.kept()}, workers)
        with progress, contextlib.ExitStack() as stack:
            parts = parts_of(progress.say)
            make = maker_here(parts, lock)
            if cluster is not None:
                from m3agent.evals.run.cluster.ray_cluster import connected

                make = stack.enter_context(connected(cluster, parts_of, progress.say))
            leads = parts.agent.shares_prefix
            run(_run_all(folder, instances, make, progress, workers=workers, leads=leads))
    return folder


def maker_here(parts: AttemptParts, lock: int) -> Make:
    """Return what makes attempts on this machine; their processes keep the descriptor `lock` open."""

    async def make(
        instance: Instance, number: int, place: Path, listener: AttemptListener
    ) -> tuple[AttemptRecord, bytes]:
        return await EvalAttempt(instance, number, place, parts, listener, (lock,)).make()

    return make


async def _run_all(
    folder: RunFolder,
    instances: Sequence[Instance],
    make: Make,
    progress: RunProgress,
    *,
    workers: int,
    leads: bool,
) -> None:
    known = {instance.id: instance for instance in instances}

    def group_of(instance_id: str) -> Group:
        task = known[instance_id].task
        return task.repo, task.base_commit

    schedule = Schedule(folder.left(), group_of, leads=leads)
    warmed = asyncio.Event()

    def warm(instance_id: str) -> None:
        schedule.warm(instance_id)
        warmed.set()

    async def attempt(what: Attempt) -> None:
        ident, number = what
        try:
            await make_one(folder, known[ident], number, make, progress, warm=lambda: warm(ident))
        finally:
            warm(ident)

    await work_off(schedule.take, attempt, workers, warmed)


async def make_one(
    folder: RunFolder,
    instance: Instance,
    number: int,
    make: Make,
    progress: RunProgress,
    *,
    agent: str = "",
    warm: Callable[[], None] = lambda: None,
) -> None:
    """Make an attempt, and store and show its result.

    Args:
        agent: The agent's name for people; by default the one in the run's configuration.

    Raises:
        EnvironmentFault: The folder cannot be written.
    """
    agent = agent or folder.config.agent
    listener = AttemptListener(
        lambda phase: progress.phase(agent, instance.id, number, phase), warm, progress.say
    )
    result, patch = await make(instance, number, folder.begin(instance.id, number), listener)
    folder.finish(result, patch)
    progress.finished(agent, result)


async def work_off(
    take: Callable[[], T | None],
    work: Callable[[T], Coroutine[Any, Any, None]],
    workers: int,
    released: asyncio.Event,
) -> None:
    """Do pieces of work, up to `workers` at a time, until `take` has none and none is running.

    After an error of a piece, which is raised, or a cancellation nothing is left running. `released` is set when `take`
    may have a piece that it did not have before.
    """
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            while len(running) < workers and (piece := take()) is not None:
                running.add(asyncio.create_task(work(piece)))
            if not running:
                return
            released.clear()
            waiter = asyncio.create_task(released.wait())
            try:
                done, _ = await asyncio.wait({*running, waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
            for task in running & done:
                running.discard(task)
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Schedule:
    """A queue of attempts that keeps each group together, so that those at one commit share the server's prefix cache.

    Groups and attempts keep their original order otherwise.

    Args:
        leads: Whether the first attempt of a group runs ahead. The group's other attempts wait until `warm`
            is called for the group; attempts of later groups run in the meantime.
    """

    def __init__(self, attempts: Sequence[Attempt], group_of: Callable[[str], Group], *, leads: bool) -> None:
        groups: dict[Group, list[Attempt]] = {}
        for attempt in attempts:
            groups.setdefault(group_of(attempt[0]), []).append(attempt)
        self._group_of = group_of
        self._left = [attempt for group in groups.values() for attempt in group]
        self._leads = leads
        self._led: set[Group] = set()
        self._warm: set[Group] = set()

    def take(self) -> Attempt | None:
        """Return the next attempt; None if no attempt is left, or if all of them wait for the first of their group."""
        for position, attempt in enumerate(self._left):
            group = self._group_of(attempt[0])
            if not self._leads or group in self._warm or group not in self._led:
                self._led.add(group)
                return self._left.pop(position)
        return None

    def warm(self, instance_id: str) -> None:
        """Release the group of an instance.

        Its common prompt is in the server's cache now, or its first attempt has ended.
        """
        self._warm.add(self._group_of(instance_id))
