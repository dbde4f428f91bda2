"""Sum up a card: one line of figures for each agent, the agents in pairs, and each attempt.

The page and the JSON show this object. It depends only on the files of the runs.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.evals.card.run import VERIFICATION
from m3agent.evals.data.results import AttemptRecord, Verdict, stored
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.report.counting import Tally, tally_of
from m3agent.evals.report.model import RunComparison, RunReport, compare, report_of
from m3agent.evals.run.attempt import LEAK_PROOF
from m3agent.evals.run.other_agent import TRAFFIC
from m3agent.evals.run.traffic import Traffic
from m3agent.util.json_value import json_object

FORMAT = 1
"""Version of the JSON; it changes when a field changes its meaning."""
VERIFIED = "verified"
BLAME = ("agent", "budget", "model", "environment", "grader")
"""To what an attempt without success is put down."""
SUMS = (
    "requests",
    "failed",
    "repeated",
    "refused",
    "continuing",
    "broken_prefixes",
    "thought",
    "returned_thinking",
)
"""Fields of `Traffic` that are added up."""


@dataclass(frozen=True)
class CardAttempt:
    """One attempt of one agent."""

    instance: str
    number: int
    """Number of the attempt, from 1."""
    verdict: str
    """Its verdict; empty while it has none."""
    state: str
    """`done`, `running` or `waiting`."""
    reason: str
    blame: str
    """One of `BLAME`; empty if the instance is resolved or left out, or the attempt has no verdict."""
    verified: str
    """What `m3agent verify` said about the patch; empty if it was not asked or did not end."""
    leak: bool
    """Whether the checkout contained more than its own commit, or the image something later than the base."""
    leaks: tuple[str, ...]
    """What the image contained of the time after the base."""
    traffic: Traffic | None
    """How the agent used the server; None if that is not known."""


@dataclass(frozen=True)
class Done:
    """What an agent's finished patches are worth, by the hidden tests and by `m3agent verify`."""

    verified_resolved: int
    verified_unresolved: int
    other_resolved: int
    other_unresolved: int


@dataclass(frozen=True)
class AgentResult:
    """The figures of one agent."""

    name: str
    """Name of its folder."""
    report: RunReport
    traffic: dict[str, int]
    """Sums of `SUMS` over its attempts."""
    first_seconds: float | None
    """Median over its attempts of the median time until an answer began, in seconds."""
    tools: tuple[str, ...]
    """Names of the tools that it offered the model."""
    sampling: dict[str, Any]
    blame: dict[str, int]
    """Number of attempts without success by what they are put down to."""
    done: Done
    forged: int
    """Number of attempts with signs of tampering."""
    leaks: int
    """Number of attempts with a leak."""
    attempts: tuple[CardAttempt, ...]


@dataclass(frozen=True)
class CardReport:
    """A whole card."""

    agents: tuple[AgentResult, ...]
    instances: tuple[str, ...]
    numbers: int
    """Attempts of each agent at each instance."""
    pairs: tuple[RunComparison, ...]
    """The agents in pairs; empty while attempts are missing."""
    missing: int
    leaks: dict[str, tuple[str, ...]]
    """By instance, what its image contains of the time after the base."""
    left_out: dict[str, str]
    """Why an instance cannot be graded and counts for no agent, by its id; a flaky instance is one of them."""
    flaky: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By instance, tests that are left out because runs of the reference differ."""
    command: tuple[str, ...] = ()
    """The command that made the card; empty if it is not known."""
    config: dict[str, Any] | None = None
    """Its configuration; None if it is not known."""


def report_on(folders: Sequence[RunFolder]) -> CardReport:
    """Return the card of some agents' runs.

    Raises:
        UsageError: A record is damaged.
    """
    tallies = [tally_of(folder) for folder in folders]
    agents = tuple(_agent(folder, tally) for folder, tally in zip(folders, tallies, strict=True))
    missing = sum(len(tally.missing) for tally in tallies)
    pairs = () if missing else tuple(_pairs([agent.name for agent in agents], tallies))
    return CardReport(
        agents=agents,
        instances=folders[0].config.instances,
        numbers=folders[0].config.attempts,
        pairs=pairs,
        missing=missing,
        leaks={each.instance: each.leaks for agent in agents for each in agent.attempts if each.leaks},
        left_out={
            attempt.instance: attempt.reason
            for agent in agents
            for attempt in agent.attempts
            if attempt.verdict == Verdict.INVALID
        },
    )


def _pairs(names: Sequence[str], tallies: Sequence[Tally]) -> Iterable[RunComparison]:
    for (_, first), (other, second) in itertools.combinations(zip(names, tallies, strict=True), 2):
        yield compare(first, second, other)


def _agent(folder: RunFolder, tally: Tally) -> AgentResult:
    attempts = tuple(_attempt(folder, ident, number) for ident, number in folder.wanted())
    known = [attempt.traffic for attempt in attempts if attempt.traffic is not None]
    firsts = [traffic.first_seconds for traffic in known if traffic.first_seconds is not None]
    report = report_of(tally)
    return AgentResult(
        name=folder.path.name,
        report=report,
        traffic={name: sum(getattr(traffic, name) for traffic in known) for name in SUMS},
        first_seconds=statistics.median(firsts) if firsts else None,
        tools=tuple(sorted({tool for traffic in known for tool in traffic.tools})),
        sampling=known[-1].sampling if known else {},
        blame=dict(Counter(attempt.blame for attempt in attempts if attempt.blame)),
        done=_done(attempts),
        forged=len(report.forged),
        leaks=sum(attempt.leak for attempt in attempts),
        attempts=attempts,
    )


def _done(attempts: Sequence[CardAttempt]) -> Done:
    pairs = Counter(
        (attempt.verified == VERIFIED, attempt.verdict == Verdict.RESOLVED)
        for attempt in attempts
        if attempt.verified
    )
    return Done(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])


def _attempt(folder: RunFolder, ident: str, number: int) -> CardAttempt:
    place = folder.attempt(ident, number)
    result = folder.result(ident, number)
    traffic, proof = stored(Traffic, place / TRAFFIC), _json(place / LEAK_PROOF)
    leaks = tuple(map(str, proof.get("image") or ()))
    state, verdict, reason, blame = "running" if place.exists() else "waiting", "", "", ""
    if result is not None:
        state, verdict, reason = "done", str(result.verdict), result.reason
        blame = blame_of(result, traffic)
    return CardAttempt(
        instance=ident,
        number=number,
        verdict=verdict,
        state=state,
        reason=reason,
        blame=blame,
        verified=str(_json(place / VERIFICATION).get("verdict", "")),
        leak=proof.get("clean") is False or bool(leaks),
        leaks=leaks,
        traffic=traffic,
    )


def blame_of(result: AttemptRecord, traffic: Traffic | None) -> str:
    """Return to what an attempt without success is put down, one of `BLAME`; empty if it resolved the instance or does not count."""
    if result.verdict in (Verdict.RESOLVED, Verdict.INVALID):
        return ""
    if result.verdict is Verdict.INFRA:
        if result.seconds.grade:
            return "grader"
        return "model" if traffic is not None and traffic.failed else "environment"
    if traffic is not None and traffic.spent:
        return "budget"
    no_answer = traffic is not None and traffic.requests > 0 and traffic.failed == traffic.requests
    return "model" if no_answer else "agent"


def _json(file: Path) -> dict[str, Any]:
    try:
        return json_object(file.read_bytes())
    except OSError:
        return {}
