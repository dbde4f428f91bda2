"""From what was asked to a complete run folder: the same experiment is gone on with, another one is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.agent.console import run
from m3agent.evals.data.instance import Instance
from m3agent.evals.results import Result, RunConfig, Verdict
from m3agent.evals.run.attempt import Here
from m3agent.evals.run.parts import Maker, Parts
from m3agent.evals.run.progress import Progress
from m3agent.evals.run.run import run_all
from m3agent.evals.run_folder import RunFolder


@dataclass(frozen=True)
class Experiment:
    """What is asked for.

    digest: of the instances' content. agent, command, settings: see `evals.results.RunConfig`. seconds: the longest that a
    phase may take: `environment`, `agent` and `tests`. workers: attempts at a time, which results do not depend on.
    """

    instances: Sequence[Instance]
    digest: str
    agent: str
    seconds: dict[str, float]
    command: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    attempts: int = 1
    workers: int = 1

    @property
    def config(self) -> RunConfig:
        """What two runs have in common that are one experiment."""
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
    parts_of: Callable[[Callable[[str], None]], Parts],
    say: Callable[[str], None],
    *,
    cluster: str | None = None,
) -> RunFolder:
    """Make every attempt that the folder `output` lacks. parts_of: the parts, given who is told notes for the
    person while it runs; say: told such a note before. cluster: the address of a Ray cluster whose nodes make the attempts
    (then `parts_of` is pickled and called there); None: this machine makes them.

    Raises:
        UsageError: the folder is another experiment's, or another process works in it; no address of a cluster.
        EnvironmentFault: it cannot be written; the cluster cannot be used.
        KeyboardInterrupt: it was interrupted; what is done stays.
    """
    repos = {instance.id: instance.task.repo for instance in wanted.instances}
    folder = RunFolder.create(output.absolute(), wanted.config, repos)
    with folder.locked(say) as lock:
        made = [result for result in folder.results() if result.verdict is not Verdict.INFRA]
        progress = Progress(len(folder.wanted()), made, wanted.workers)
        with progress, _maker(parts_of, progress.say, lock, cluster) as maker:
            run(run_all(folder, wanted.instances, maker, progress, workers=wanted.workers))
    return folder


@contextlib.contextmanager
def _maker(
    parts_of: Callable[[Callable[[str], None]], Parts],
    say: Callable[[str], None],
    lock: int,
    cluster: str | None,
) -> Iterator[Maker]:
    parts = parts_of(say)
    if cluster is None:
        yield Here(parts, (lock,))
        return
    from m3agent.evals.cluster.ray_cluster import connected

    with connected(cluster, parts_of, say, shares_prefix=parts.agent.shares_prefix) as maker:
        yield maker


def unfinished(folder: RunFolder) -> list[Result]:
    """Results of attempts that only the infrastructure kept from one: as long as there are any, there is no score."""
    return [result for result in folder.results() if result.verdict is Verdict.INFRA]
