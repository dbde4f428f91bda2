"""Compare two runs on their common instances: which is better, by how much, and on which instances."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.evals.report.counting import Tally
from m3agent.evals.report.statistics import Paired, paired
from m3agent.evals.report.usage import UsageSummary, used


@dataclass(frozen=True)
class RunComparison:
    """This run compared with another, on common instances that are complete and valid in both.

    In pairs, this run comes first.
    """

    other: str
    agents: tuple[str, str]
    """Names of the agents."""
    attempts: tuple[int, int]
    """Attempts at each instance."""
    instances: int
    """Number of compared instances."""
    rates: tuple[float, float] | None
    """Mean rates; None if there are no such instances."""
    paired: Paired | None
    """The statistical test; None if there are no such instances."""
    won: tuple[str, ...]
    """Instances on which this run has the higher rate."""
    lost: tuple[str, ...]
    """Instances on which this run has the lower rate."""
    only_here: tuple[str, ...]
    """Instances of this run only."""
    only_there: tuple[str, ...]
    """Instances of the other run only."""
    left_out: tuple[str, ...]
    """Common instances that are invalid or incomplete in a run."""
    used: tuple[UsageSummary, UsageSummary]
    """What the runs used on the compared instances."""
    notes: tuple[str, ...]
    """Reasons for caution."""


def compare(here: Tally, there: Tally, other: str = "") -> RunComparison:
    """Compare two runs. Instances are matched by id; `notes` mentions differences between the runs' data.

    Args:
        other: Folder of the other run, as the user wrote it.
    """
    shared = [ident for ident in here.instances if ident in set(there.instances)]
    unfit = {*here.invalid, *there.invalid, *here.missing_of, *there.missing_of}
    counted = [ident for ident in shared if ident not in unfit]
    first, second = ([tally.rate(ident) for ident in counted] for tally in (here, there))
    found = paired(
        first,
        second,
        [here.repo(ident) for ident in counted],
        single=here.config.attempts == there.config.attempts == 1,
    )
    rows = list(zip(counted, first, second, strict=True))
    return RunComparison(
        other=other,
        agents=(here.config.agent, there.config.agent),
        attempts=(here.config.attempts, there.config.attempts),
        instances=len(counted),
        rates=(sum(first) / len(counted), sum(second) / len(counted)) if counted else None,
        paired=found,
        won=tuple(ident for ident, a, b in rows if a > b),
        lost=tuple(ident for ident, a, b in rows if a < b),
        only_here=tuple(ident for ident in here.instances if ident not in set(shared)),
        only_there=tuple(ident for ident in there.instances if ident not in set(shared)),
        left_out=tuple(ident for ident in shared if ident in unfit),
        used=(_used(here, counted), _used(there, counted)),
        notes=tuple(_notes(here, there)),
    )


def _used(tally: Tally, counted: list[str]) -> UsageSummary:
    wanted = set(counted)
    return used([result for result in tally.counting() if result.instance_id in wanted])


def _limit(tally: Tally, name: str) -> str:
    seconds = tally.config.timeouts.get(name)
    return "none" if seconds is None else f"{seconds:g} s"


def _notes(here: Tally, there: Tally) -> list[str]:
    notes: list[str] = []
    if here.config == there.config:
        notes.append("both runs have the same configuration: the differences are chance")
    if here.config.data != there.config.data:
        if here.instances == there.instances:
            notes.append(
                "the runs have the same ids but different data: their instances may not be the same tasks"
            )
        else:
            notes.append(
                "the runs attempted different instances; those with the same id are compared as the same task"
            )
    if here.config.timeouts != there.config.timeouts:
        differ = sorted(
            name
            for name in {**here.config.timeouts, **there.config.timeouts}
            if here.config.timeouts.get(name) != there.config.timeouts.get(name)
        )
        limits = ", ".join(f"{name} {_limit(here, name)} and {_limit(there, name)}" for name in differ)
        notes.append(f"the runs had different time limits: {limits}")
    return notes
