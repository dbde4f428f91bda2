"""What attempts used: tokens, money, time, stalls. What is unknown is counted as unknown, never as 0."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from m3agent.evals.results import Result, Verdict


@dataclass(frozen=True)
class Amount:
    """Something that each attempt used some of, and not each knows how much.

    known, unknown: attempts. total, mean, median, largest: of those that know; None where none does. per_resolved: the
    total by the number of attempts that resolved their instance; None where none did. With `unknown` above 0 the total and
    `per_resolved` are the least that it can have been.
    """

    known: int
    unknown: int
    total: float | None = None
    mean: float | None = None
    median: float | None = None
    largest: float | None = None
    per_resolved: float | None = None


@dataclass(frozen=True)
class CacheShare:
    """The share of prompt tokens that the server had cached, over the attempts that know both counts."""

    share: float | None
    known: int
    unknown: int


@dataclass(frozen=True)
class Stalls:
    """Stalls that our agent noticed. kinds: by kind, how often and in how many attempts. unknown: attempts without a log."""

    kinds: dict[str, tuple[int, int]]
    attempts: int
    known: int
    unknown: int


@dataclass(frozen=True)
class Used:
    """What some attempts used. tokens: prompt and completion. Seconds are wall time; tests: of the processes that ran tests."""

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


def tokens_of(result: Result) -> int | None:
    """Prompt and completion tokens of an attempt; None where one of them is unknown."""
    prompt, completion = result.usage.prompt_tokens, result.usage.completion_tokens
    return None if prompt is None or completion is None else prompt + completion


def seconds_of(result: Result) -> float:
    """Wall seconds of all phases of an attempt."""
    return math.fsum((result.seconds.environment, result.seconds.agent, result.seconds.grade))


def used(results: Sequence[Result]) -> Used:
    """What attempts used, in whatever order they come."""
    resolved = sum(result.verdict is Verdict.RESOLVED for result in results)

    def amount(values: Iterable[float | None]) -> Amount:
        return _amount(list(values), resolved)

    return Used(
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
        # an attempt that was not graded ran no tests: that is known
        test_seconds=amount(0.0 if one.grade is None else one.grade.test_seconds for one in results),
    )


def _amount(values: Sequence[float | None], resolved: int) -> Amount:
    known = [value for value in values if value is not None]
    unknown = len(values) - len(known)
    if not known:
        return Amount(0, unknown)
    total = math.fsum(known)  # the same in whatever order
    return Amount(
        len(known), unknown, total, total / len(known), statistics.median(known), max(known),
        total / resolved if resolved else None,
    )  # fmt: skip


def _cache(results: Sequence[Result]) -> CacheShare:
    pairs = [
        (result.usage.cached_tokens, result.usage.prompt_tokens)
        for result in results
        if result.usage.cached_tokens is not None and result.usage.prompt_tokens is not None
    ]
    prompt = sum(prompt for _, prompt in pairs)
    share = sum(cached for cached, _ in pairs) / prompt if prompt else None
    return CacheShare(share, len(pairs), len(results) - len(pairs))


def _stalls(results: Sequence[Result]) -> Stalls:
    logged = [result for result in results if result.session is not None]
    kinds: dict[str, tuple[int, int]] = {}
    for kind in sorted({kind for result in logged for kind in result.stalls}):
        counts = [count for result in logged if (count := result.stalls.get(kind, 0)) > 0]
        kinds[kind] = (sum(counts), len(counts))
    stalled = sum(any(result.stalls.values()) for result in logged)
    return Stalls(kinds, stalled, len(logged), len(results) - len(logged))
