"""Compute rates with confidence intervals; docs/eval-report.md explains how to read them.

All functions are pure and deterministic. The value of an instance lies in [0, 1]: the share of its attempts
that resolved it, or its pass@k. The report shows the mean over the instances with two intervals, because
neither is sufficient alone. Wilson's interval treats instances as independent. The other one treats the
instances of a repository as related.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from m3agent.evals.report.student import t_quantile

CONFIDENCE = 0.95

_NOTHING = 1e-12  # a standard error below this is a rounding error


@dataclass(frozen=True)
class Interval:
    """An interval that includes both ends."""

    low: float
    high: float


@dataclass(frozen=True)
class Mean:
    """The mean of `n` instances' values in [0, 1]."""

    value: float
    """The mean."""
    n: int
    """Number of instances."""
    clusters: int
    """Number of repositories."""
    wilson: Interval
    """Interval that treats the instances as independent."""
    clustered: Interval | None
    """Interval that treats those of a repository as related; None if it is not defined (see `clustered`)."""


@dataclass(frozen=True)
class RobustMean:
    """A mean with its cluster-robust standard error and the degrees of freedom of its t distribution."""

    value: float
    error: float
    freedom: int


def mean(values: Sequence[float], clusters: Sequence[str], confidence: float = CONFIDENCE) -> Mean | None:
    """Return the mean of values in [0, 1] with its intervals; None if there are no values.

    Wilson's interval uses the sum of the values as the number of successes, which need not be an integer.
    Values in [0, 1] vary at most as much as successes and failures with the same mean. The interval is
    therefore never too narrow, but may be too wide.

    Args:
        clusters: Repository of each value.
        confidence: Level of the intervals.
    """
    if not values:
        return None
    total = math.fsum(values)
    return Mean(
        value=total / len(values),
        n=len(values),
        clusters=len(set(clusters)),
        wilson=wilson(total, len(values), confidence),
        clustered=clustered(values, clusters, confidence),
    )


def wilson(successes: float, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's score interval of a proportion.

    Wilson 1927; Brown, Cai and DasGupta 2001 recommend it for small n.

    Raises:
        ValueError: `n` is below 1, or `successes` is not between 0 and `n`.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a proportion")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # the interval contains p, and ends at 0 or 1 if p does; the formula may miss that by a rounding error
    low = 0.0 if successes == 0 else max(0.0, min(p, centre - half))
    high = 1.0 if successes == n else min(1.0, max(p, centre + half))
    return Interval(low, high)


def clustered(
    values: Sequence[float], clusters: Sequence[str], confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the t interval of a mean of values in [0, 1], cut to [0, 1]; None if `robust_mean` returns None.

    It uses the cluster-robust standard error.
    """
    found = robust_mean(values, clusters)
    if found is None:
        return None
    half = t_quantile(confidence, found.freedom) * found.error
    return Interval(
        max(0.0, min(found.value, found.value - half)), min(1.0, max(found.value, found.value + half))
    )


def robust_mean(values: Sequence[float], clusters: Sequence[str]) -> RobustMean | None:
    """Return the mean with a standard error that is valid for arbitrarily related values within a cluster.

    The square of the error is G / (G - 1) times the sum over the G clusters of (sum of the cluster's
    deviations from the mean)^2, over n^2. Sources: Liang and Zeger 1986, with the usual correction for few
    clusters; Cameron and Miller 2015; Miller 2024, "Adding Error Bars to Evals". It has G - 1 degrees of
    freedom.

    Returns:
        None if the error is not defined: with fewer than 2 clusters, or if it would be 0, for example because
            all values
        are equal. Such data do not show how much clusters differ, so an interval without width would be
        misleading.
    """
    n = len(values)
    if len(set(clusters)) < 2:
        return None
    value = math.fsum(values) / n
    sums: dict[str, list[float]] = defaultdict(list)
    for one, cluster in zip(values, clusters, strict=True):
        sums[cluster].append(one - value)
    groups = len(sums)
    square = math.fsum(math.fsum(deviations) ** 2 for deviations in sums.values())
    error = math.sqrt(groups / (groups - 1) * square) / n
    return None if error < _NOTHING else RobustMean(value, error, groups - 1)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return pass@k for n attempts of which c succeeded.

    This is the probability that k attempts, drawn from the n without replacement, include a successful one: 1
    - C(n - c, k) / C(n, k). It is the unbiased estimate of the probability that one of k attempts succeeds
    (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").

    Raises:
        ValueError: Not 0 <= c <= n, or not 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_all_k(n: int, c: int, k: int) -> float:
    """Return pass^k for n attempts of which c succeeded.

    This is the probability that k attempts, drawn from the n without replacement, are all successful ones:
    C(c, k) / C(n, k). It is the unbiased estimate of the probability that k attempts all succeed (Yao et al.
    2024, "tau-bench").

    Raises:
        ValueError: Not 0 <= c <= n, or not 1 <= k <= n.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{k} of {n} attempts with {c} successes are impossible")
