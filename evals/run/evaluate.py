"""Create or resume a run folder and make its missing attempts. A folder of another experiment is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import AttemptRecord, RunConfig, Verdict
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.run.attempt import LocalMaker
from m3agent.evals.run.progress import RunProgress
from m3agent.evals.run.protocols import AttemptParts, Maker
from m3agent.evals.run.run import run_all


@dataclass(frozen=True)
class Experiment:
    """The requested run."""

    instances: Sequence[Instance]
    digest: str
    """Digest of their content."""
    agent: str
    """See `evals.data.results.RunConfig`."""
    seconds: dict[str, float]
    """Time limit of each phase, in seconds: `environment`, `agent` and `tests`."""
    command: tuple[str, ...] = ()
    """See `evals.data.results.RunConfig`."""
    settings: dict[str, str] = field(default_factory=dict)
    """See `evals.data.results.RunConfig`."""
    attempts: int = 1
    """Number of attempts at each instance."""
    workers: int = 1
    """Number of attempts at a time; results do not depend on it."""

    @property
    def config(self) -> RunConfig:
        """The configuration; equal configurations are the same experiment."""
        return RunConfig(
            data=self.digest,
            instances=tuple(instance.id for instance in self.instances),
            agent=self.agent,
            command=self.command,
            settings=self.settings,
            attempts=self.attempts,
            timeouts=self.seconds,
        )


def evaluate(
    wanted: Experiment,
    output: Path,
    parts_of: Callable[[Callable[[str], None]], AttemptParts],
    say: Callable[[str], None],
    run: Callable[[Coroutine[Any, Any, None]], None],
    *,
    cluster: str | None = None,
) -> RunFolder:
    """Make every attempt that the folder `output` lacks.

    Args:
        wanted: The experiment.
        output: The run's folder.
        parts_of: Creates the parts; its argument receives notes for the user during the run.
        say: Receives notes for the user before the run.
        run: Runs the attempts, and raises KeyboardInterrupt where they are interrupted.
        cluster: Address of a Ray cluster whose nodes make the attempts; `parts_of` is then pickled and called
            there. None for this machine.

    Raises:
        UsageError: The folder has results of another experiment or is in use, or the cluster's address is
            malformed.
        EnvironmentFault: The folder cannot be written, or the cluster cannot be used.
        KeyboardInterrupt: The user interrupted the run; finished results remain.
    """
    repos = {instance.id: instance.task.repo for instance in wanted.instances}
    folder = RunFolder.create(output.absolute(), wanted.config, repos)
    with folder.locked(say) as lock:
        if not folder.left():
            say(f"all attempts of {output} have a result already: nothing was left to do")
        progress = RunProgress(len(folder.wanted()), folder.kept(), wanted.workers)
        with progress, _maker(parts_of, progress.say, lock, cluster) as maker:
            run(run_all(folder, wanted.instances, maker, progress, workers=wanted.workers))
    return folder


@contextlib.contextmanager
def _maker(
    parts_of: Callable[[Callable[[str], None]], AttemptParts],
    say: Callable[[str], None],
    lock: int,
    cluster: str | None,
) -> Iterator[Maker]:
    parts = parts_of(say)
    if cluster is None:
        yield LocalMaker(parts, (lock,))
        return
    from m3agent.evals.run.cluster.ray_cluster import connected

    with connected(cluster, parts_of, say, shares_prefix=parts.agent.shares_prefix) as maker:
        yield maker


def unfinished(folder: RunFolder) -> list[AttemptRecord]:
    """Return the results with the verdict `infra`. While there are any, the run has no final score."""
    return [result for result in folder.results() if result.verdict is Verdict.INFRA]
