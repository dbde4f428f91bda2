"""Sum up what attempts used: tokens, money, time, stalls.

Unknown amounts are counted as unknown, never as 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.evals.data.results import AttemptRecord, Verdict


@dataclass(frozen=True)
class Amount:
    """Statistics of an amount that is known for some attempts only.

    If `unknown` is above 0, `total` and `per_resolved` are lower bounds.
    """

    known: int
    """Number of attempts with a known amount."""
    unknown: int
    """Number of attempts with an unknown amount."""
    total: float | None = None
    """Sum over the known ones; None if there are none, as for the next three."""
    mean: float | None = None
    """Mean of the known ones."""
    median: float | None = None
    """Median of the known ones."""
    largest: float | None = None
    """Largest of the known ones."""
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
    """Number of other attempts."""


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

    return UsageSummary(
        attempts=len(results),
        resolved=resolved,
        tokens=amount(map(tokens_of, results)),
        prompt_tokens=amount(result.usage.prompt_tokens for result in results),
        completion_tokens=amount(result.usage.completion_tokens for result in results),
        reasoning_tokens=amount(result.usage.reasoning_tokens for result in results),
        turns=amount(result.usage.turns for result in results),
        cost=amount(result.usage.cost for result in results),
        cache=_cache(results),
        stalls=_stalls(results),
        seconds=amount(map(seconds_of, results)),
        environment_seconds=amount(result.seconds.environment for result in results),
        agent_seconds=amount(result.seconds.agent for result in results),
        grade_seconds=amount(result.seconds.grade for result in results),
        # an attempt without a grade ran no tests, so its amount is known: 0
        test_seconds=amount(0.0 if one.grade is None else one.grade.test_seconds for one in results),
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
