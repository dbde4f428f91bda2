"""Compare two runs on the same instances: is there a difference, and how large is it?

All functions are pure and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from m3agent.evals.report.statistics import CONFIDENCE, Interval, RobustMean, robust_mean, wilson
from m3agent.evals.report.student import t_quantile, t_tails


@dataclass(frozen=True)
class Paired:
    """The mean difference of two runs over `n` instances."""

    n: int
    """Number of instances."""
    difference: float
    """The mean of the first run's rate minus the second's, in [-1, 1]."""
    test: str
    """Name of the test that gives `p`."""
    p: float | None
    """Two-sided p value; None if the test is not defined."""
    method: str
    """Method of `interval`."""
    interval: Interval | None
    """Confidence interval of the difference; None if it is not defined."""
    clustered: Interval | None
    """The interval that treats the instances of a repository as related; None if it is not defined."""


def paired(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[str],
    *,
    single: bool,
    confidence: float = CONFIDENCE,
) -> Paired | None:
    """Compare the rates of the instances in two runs.

    If both runs have one attempt at each instance (`single`), the test is the exact McNemar test and the
    interval is Newcombe's. Otherwise it is a t test of the mean difference, clustered by repository if that
    is defined, else by instance. In both cases, `clustered` is the interval that treats the instances of a
    repository as related.

    Args:
        first: Rates in the first run.
        second: Rates in the second run, in the same order.
        clusters: Repository of each instance.
        single: Whether both runs have one attempt at each instance.
        confidence: Level of the intervals.

    Returns:
        None if there are no instances.
    """
    if not first:
        return None
    differences = [a - b for a, b in zip(first, second, strict=True)]
    n = len(differences)
    robust = robust_mean(differences, clusters)
    by_repository = None if robust is None else _interval(robust, confidence)
    difference = math.fsum(differences) / n
    if single:
        won, lost = (sum(d * sign > 0 for d in differences) for sign in (1, -1))
        both = sum(a == b == 1 for a, b in zip(first, second, strict=True))
        return Paired(
            n, difference, "exact McNemar", mcnemar(won, lost), "Newcombe, paired",
            newcombe(both, won, lost, n - both - won - lost, confidence), by_repository,
        )  # fmt: skip
    by = "repository"
    if robust is None:
        by, robust = "instance", robust_mean(differences, [str(index) for index in range(n)])
    test, method = f"t test of the mean difference, clustered by {by}", f"t, clustered by {by}"
    if robust is None:
        return Paired(
            n, difference, f"{test}: not defined, the differences do not vary", None, method, None, None
        )
    p = t_tails(robust.value / robust.error, robust.freedom)
    named = f"{test}, {robust.freedom} degrees of freedom"
    return Paired(n, difference, named, p, method, _interval(robust, confidence), by_repository)


def mcnemar(won: int, lost: int) -> float:
    """Return the two-sided p value of the exact McNemar test.

    It is the probability that fair coins split `won` + `lost` at least as unevenly. Instances on which both
    runs agree carry no information about which run is better (McNemar 1947). The result is 1 if there are no
    other instances.
    """
    flips = won + lost
    ways = tail = 1  # of choosing zero of them
    for few in range(min(won, lost)):
        ways = ways * (flips - few) // (few + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << flips))


def newcombe(both: int, won: int, lost: int, neither: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a difference of paired proportions.

    This is method 10 of Newcombe 1998 (Statistics in Medicine 17:2635). It combines the Wilson intervals of
    the two proportions with the correlation of the pairs, corrected for continuity. Unlike the t interval, it
    is defined for every table with at least one pair.
    """
    n = both + won + lost + neither
    ends = [wilson(count, n, confidence) for count in (both + won, both + lost)]
    rates = ((both + won) / n, (both + lost) / n)
    down = [rate - end.low for rate, end in zip(rates, ends, strict=True)]
    up = [end.high - rate for rate, end in zip(rates, ends, strict=True)]
    phi = _phi(both, won, lost, neither)
    difference = (won - lost) / n
    return Interval(
        max(-1.0, difference - _third_side(down[0], up[1], phi)),
        min(1.0, difference + _third_side(up[0], down[1], phi)),
    )


def _phi(both: int, won: int, lost: int, neither: int) -> float:
    """Return the correlation of two paired proportions, corrected for continuity.

    It is 0 if one of them is constant.
    """
    square = (both + won) * (lost + neither) * (both + lost) * (won + neither)
    if square == 0:
        return 0.0
    excess = float(both * neither - won * lost)
    if excess > 0:
        excess = max(excess - (both + won + lost + neither) / 2, 0.0)
    return excess / math.sqrt(square)


def _third_side(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def _interval(found: RobustMean, confidence: float) -> Interval:
    half = t_quantile(confidence, found.freedom) * found.error
    return Interval(max(-1.0, found.value - half), min(1.0, found.value + half))
