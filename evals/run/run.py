"""Make all missing attempts of a run, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from m3agent.evals.data.instance import Instance
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.run.progress import RunProgress
from m3agent.evals.run.protocols import AttemptListener, Maker
from m3agent.evals.run.schedule import Group, Schedule


async def run_all(
    folder: RunFolder,
    instances: Sequence[Instance],
    maker: Maker,
    progress: RunProgress,
    *,
    workers: int,
) -> None:
    """Make the attempts that the folder lacks, up to `workers` at a time.

    After a cancellation nothing is left running.

    Raises:
        EnvironmentFault: The folder cannot be written.
    """
    known = {instance.id: instance for instance in instances}

    def group_of(instance_id: str) -> Group:
        task = known[instance_id].task
        return task.repo, task.base_commit

    schedule = Schedule(folder.left(), group_of, leads=maker.shares_prefix)
    warmed = asyncio.Event()

    def warm(instance_id: str) -> None:
        schedule.warm(instance_id)
        warmed.set()

    async def make(instance_id: str, number: int) -> None:
        try:
            place = folder.begin(instance_id, number)
            listener = AttemptListener(
                lambda phase: progress.phase(instance_id, number, phase),
                lambda: warm(instance_id),
                progress.say,
            )
            result, patch = await maker.make(known[instance_id], number, place, listener)
            folder.finish(result, patch)
            progress.finished(result)
        finally:
            warm(instance_id)

    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            while len(running) < workers and (attempt := schedule.take()) is not None:
                running.add(asyncio.create_task(make(*attempt)))
            if not running:
                return
            warmed.clear()
            waiter = asyncio.create_task(warmed.wait())
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
