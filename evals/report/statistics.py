"""Rates with intervals. Pure: numbers in, numbers out, and no chance in it. docs/eval-report.md says how to read them.

An instance's value lies in [0, 1]: the share of its attempts that resolved it, or its pass@k. What is reported is the mean
over instances, with two intervals, since neither alone is honest: Wilson's, which takes instances for independent, and one
that takes those of one repository as related.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from m3agent.evals.report.student import t_quantile

CONFIDENCE = 0.95

_NOTHING = 1e-12  # a standard error below this is rounding


@dataclass(frozen=True)
class Interval:
    """From low to high, both included."""

    low: float
    high: float


@dataclass(frozen=True)
class Mean:
    """A mean over `n` instances of values in [0, 1].

    wilson: taking instances for independent. clustered: taking those of a repository as related; None where that is not
    defined (see `clustered`). clusters: how many repositories.
    """

    value: float
    n: int
    clusters: int
    wilson: Interval
    clustered: Interval | None


@dataclass(frozen=True)
class RobustMean:
    """A mean with its cluster-robust standard error and the degrees of freedom of its t distribution."""

    value: float
    error: float
    freedom: int


def mean(values: Sequence[float], clusters: Sequence[str], confidence: float = CONFIDENCE) -> Mean | None:
    """The mean of values in [0, 1] with its intervals; None of no values. clusters: the repository of each.

    Wilson's interval gets the values' sum for the number of successes. It need not be whole: values within [0, 1] vary at
    most as much as successes and failures of the same mean do, so the interval is then too wide rather than too narrow.
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
    """Wilson's score interval of a proportion (Wilson 1927; Brown, Cai and DasGupta 2001 recommend it for small n).

    Raises:
        ValueError: n is below 1, or successes are not within 0 and n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no proportion")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # the interval holds p, and ends where p does; the formula does so but for rounding
    low = 0.0 if successes == 0 else max(0.0, min(p, centre - half))
    high = 1.0 if successes == n else min(1.0, max(p, centre + half))
    return Interval(low, high)


def clustered(
    values: Sequence[float], clusters: Sequence[str], confidence: float = CONFIDENCE
) -> Interval | None:
    """The t interval of a mean of values in [0, 1] from its cluster-robust standard error, cut to [0, 1].

    None where `robust_mean` is.
    """
    found = robust_mean(values, clusters)
    if found is None:
        return None
    half = t_quantile(confidence, found.freedom) * found.error
    return Interval(
        max(0.0, min(found.value, found.value - half)), min(1.0, max(found.value, found.value + half))
    )


def robust_mean(values: Sequence[float], clusters: Sequence[str]) -> RobustMean | None:
    """The mean with a standard error that allows values of one cluster to be related in any way.

    The error's square is G / (G - 1) times the sum over the G clusters of (sum of the cluster's deviations from the mean)^2,
    over n^2 (Liang and Zeger 1986, with the usual correction for few clusters; Cameron and Miller 2015; Miller 2024,
    "Adding Error Bars to Evals"); it has G - 1 degrees of freedom.

    None where it is not defined: of fewer than 2 clusters, and where the error would be 0, as of values that are all equal.
    Such data do not tell how much clusters differ, and an interval without width would claim to know.
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
    """The chance that k of n attempts, taken without putting back, hold one of the c that succeeded.

    1 - C(n - c, k) / C(n, k): the unbiased estimate of the chance that one of k attempts succeeds (Chen et al. 2021,
    "Evaluating Large Language Models Trained on Code").

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_all_k(n: int, c: int, k: int) -> float:
    """The chance that all of k attempts, taken of n without putting back, are among the c that succeeded ("pass^k").

    C(c, k) / C(n, k): the unbiased estimate of the chance that k attempts all succeed (Yao et al. 2024, "tau-bench").

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{k} of {n} attempts with {c} successes cannot be")
