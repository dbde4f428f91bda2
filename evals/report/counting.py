"""Decide which attempts of a run count, count the results of each instance, and sum up what the attempts used.

All numbers of a report use these rules. Unknown amounts are counted as unknown, never as 0.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from m3agent.evals.data.instance import INSTANCE_ID
from m3agent.evals.data.results import Attempt, AttemptRecord, RunConfig, Seconds, Verdict
from m3agent.evals.data.run_folder import RUN, RunFolder
from m3agent.util.errors import UsageError


@dataclass(frozen=True)
class Amount:
    """Statistics of an amount that is known for some attempts only.

    If `unknown` is above 0, `total` and `per_resolved` are lower bounds.
    """

    known: int
    """Number of attempts with a known amount."""
    unknown: int
    total: float | None = None
    """Sum over the known ones; None if there are none, as for the next three."""
    mean: float | None = None
    median: float | None = None
    largest: float | None = None
    per_resolved: float | None = None
    """The total divided by the number of attempts that resolved their instance; None if none did."""


@dataclass(frozen=True)
class CacheShare:
    """The share of prompt tokens that came from the server's prefix cache."""

    share: float | None
    """The share, from 0 to 1; None if it is unknown."""
    known: int
    """Number of attempts with both counts known; only these are used."""
    unknown: int


@dataclass(frozen=True)
class Stalls:
    """Stalls that m3agent detected."""

    kinds: dict[str, tuple[int, int]]
    """By kind, the number of stalls and the number of attempts with such a stall."""
    attempts: int
    """Number of attempts with any stall."""
    known: int
    """Number of attempts with a session log."""
    unknown: int
    """Number of attempts without a session log."""


@dataclass(frozen=True)
class UsageSummary:
    """What a set of attempts used. `tokens` are prompt and completion tokens. Seconds are wall time.

    `test_seconds` are those of the processes that ran tests.
    """

    attempts: int
    resolved: int
    tokens: Amount
    prompt_tokens: Amount
    completion_tokens: Amount
    reasoning_tokens: Amount
    turns: Amount
    cost: Amount
    cache: CacheShare
    stalls: Stalls
    seconds: Amount
    environment_seconds: Amount
    agent_seconds: Amount
    grade_seconds: Amount
    test_seconds: Amount


def tokens_of(result: AttemptRecord) -> int | None:
    """Return the prompt and completion tokens of an attempt; None if one of the counts is unknown."""
    prompt, completion = result.usage.prompt_tokens, result.usage.completion_tokens
    return None if prompt is None or completion is None else prompt + completion


def seconds_of(result: AttemptRecord) -> float:
    """Return the wall time of all phases of an attempt, in seconds."""
    return math.fsum((result.seconds.environment, result.seconds.agent, result.seconds.grade))


def used(results: Sequence[AttemptRecord]) -> UsageSummary:
    """Return what the attempts used; their order does not matter."""
    resolved = sum(result.verdict is Verdict.RESOLVED for result in results)

    def amount(values: Iterable[float | None]) -> Amount:
        return _amount(list(values), resolved)

    counts = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "turns", "cost")
    return UsageSummary(
        attempts=len(results),
        resolved=resolved,
        tokens=amount(map(tokens_of, results)),
        **{name: amount(getattr(result.usage, name) for result in results) for name in counts},
        cache=_cache(results),
        stalls=_stalls(results),
        seconds=amount(map(seconds_of, results)),
        **{
            f"{name}_seconds": amount(getattr(r.seconds, name) for r in results)
            for name in Seconds.model_fields
        },
        # an attempt without a grade ran no tests, so its amount is known: 0
        test_seconds=amount(result.grade.test_seconds if result.grade else 0.0 for result in results),
    )


def _amount(values: Sequence[float | None], resolved: int) -> Amount:
    known = [value for value in values if value is not None]
    unknown = len(values) - len(known)
    if not known:
        return Amount(0, unknown)
    total = math.fsum(known)  # independent of the order
    return Amount(
        len(known), unknown, total, total / len(known), statistics.median(known), max(known),
        total / resolved if resolved else None,
    )  # fmt: skip


def _cache(results: Sequence[AttemptRecord]) -> CacheShare:
    pairs = [
        (result.usage.cached_tokens, result.usage.prompt_tokens)
        for result in results
        if result.usage.cached_tokens is not None and result.usage.prompt_tokens is not None
    ]
    prompt = sum(prompt for _, prompt in pairs)
    share = sum(cached for cached, _ in pairs) / prompt if prompt else None
    return CacheShare(share, len(pairs), len(results) - len(pairs))


def _stalls(results: Sequence[AttemptRecord]) -> Stalls:
    logged = [result for result in results if result.session is not None]
    kinds: dict[str, tuple[int, int]] = {}
    for kind in sorted({kind for result in logged for kind in result.stalls}):
        counts = [count for result in logged if (count := result.stalls.get(kind, 0)) > 0]
        kinds[kind] = (sum(counts), len(counts))
    stalled = sum(any(result.stalls.values()) for result in logged)
    return Stalls(kinds, stalled, len(logged), len(results) - len(logged))


ORDER = (
    Verdict.ERROR,
    Verdict.TIMEOUT,
    Verdict.EMPTY,
    Verdict.UNRESOLVED,
    Verdict.INFRA,
    Verdict.INVALID,
    Verdict.RESOLVED,
)
"""Display order: failures, then verdicts that do not count, then successes."""

UNKNOWN_REPOSITORY = "unknown"


class Tally:
    """The results of a run by instance; the order of the results does not matter.

    Attributes:
        missing: Attempts without a result, or with the verdict `infra`.
        invalid: Instances with an attempt whose verdict is `invalid`: the instance itself is at fault.
    """

    def __init__(self, config: RunConfig, repos: Mapping[str, str], results: Iterable[AttemptRecord]) -> None:
        self.config = config
        self.results = {(result.instance_id, result.attempt): result for result in results}
        self.instances = tuple(sorted(set(config.instances)))
        self.repos = {result.instance_id: result.repo for result in self.results.values()} | dict(repos)
        every = itertools.product(self.instances, range(1, config.attempts + 1))
        verdicts = {attempt: self.verdict(*attempt) for attempt in every}
        self.missing = tuple(
            attempt for attempt, verdict in verdicts.items() if verdict in (None, Verdict.INFRA)
        )
        self.missing_of = Counter(ident for ident, _ in self.missing)
        self.resolved = _instances_with(verdicts, Verdict.RESOLVED)
        invalid = _instances_with(verdicts, Verdict.INVALID)
        self.invalid = tuple(sorted(invalid))
        self.counted = tuple(ident for ident in self.instances if ident not in invalid)

    def verdict(self, ident: str, number: int) -> Verdict | None:
        """Return an attempt's verdict; None if it has no result."""
        result = self.results.get((ident, number))
        return None if result is None else result.verdict

    def repo(self, ident: str) -> str:
        """Return the repository of an instance; `UNKNOWN_REPOSITORY` if it is not known."""
        return self.repos.get(ident, UNKNOWN_REPOSITORY)

    def rate(self, ident: str) -> float:
        """Return the share of an instance's attempts that resolved it; missing attempts count as failed."""
        return self.resolved[ident] / self.config.attempts

    def counting(self) -> list[AttemptRecord]:
        """Return the results that count for or against the agent, failures first."""
        return counting(self.ordered(), self.invalid)

    def ordered(self) -> list[AttemptRecord]:
        """Return all results: failures first, then by instance and attempt number."""
        return sorted(
            self.results.values(),
            key=lambda result: (ORDER.index(result.verdict), result.instance_id, result.attempt),
        )


def _instances_with(verdicts: Mapping[Attempt, Verdict | None], wanted: Verdict) -> Counter[str]:
    """Return how many attempts at each instance have this verdict."""
    return Counter(ident for (ident, _), verdict in verdicts.items() if verdict is wanted)


def counting(results: Iterable[AttemptRecord], invalid: Iterable[str]) -> list[AttemptRecord]:
    """Return the results that count for or against the agent; `invalid` are the instances at fault."""
    left_out = set(invalid)
    return [
        result
        for result in results
        if result.verdict is not Verdict.INFRA and result.instance_id not in left_out
    ]


def tally_of(run: RunFolder) -> Tally:
    """Read a run's results from the disk.

    Raises:
        UsageError: A record is damaged.
    """
    for ident in run.config.instances:
        if not INSTANCE_ID.fullmatch(ident):  # it becomes a file name; the run may be foreign
            raise UsageError(f"{run.path / RUN} names an instance {ident!r}, which is not an instance id.")
    results = {attempt: result for attempt in run.wanted() if (result := run.result(*attempt)) is not None}
    for attempt, result in results.items():
        if (result.instance_id, result.attempt) != attempt:
            raise UsageError(
                f"{run.attempt(*attempt)} holds the result of {result.instance_id}, attempt {result.attempt}: "
                "remove it to repeat it."
            )
    return Tally(run.config, run.repos, results.values())
