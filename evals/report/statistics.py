"""Compute rates with confidence intervals; docs/eval-report.md explains how to read them.

All functions are pure and deterministic. The value of an instance lies in [0, 1]: the share of its attempts
that resolved it, or its pass@k. The report shows the mean over the instances with two intervals, because
neither is sufficient alone. Wilson's interval treats instances as independent. The other one treats the
instances of a repository as related. Two runs on the same instances are compared in pairs: is there a difference, and how
large is it?

Student's t distribution is here with the standard library only, for intervals and tests over few repositories.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

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
    n: int
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

    def interval(self, least: float) -> Interval:
        """Return the t interval, cut to values from `least` to 1; it contains the mean whatever is rounded."""
        half = t_quantile(CONFIDENCE, self.freedom) * self.error
        low, high = min(self.value, self.value - half), max(self.value, self.value + half)
        return Interval(max(least, low), min(1.0, high))


def mean(values: Sequence[float], clusters: Sequence[str]) -> Mean | None:
    """Return the mean of values in [0, 1] with its intervals; None if there are no values.

    Wilson's interval uses the sum of the values as the number of successes, which need not be an integer.
    Values in [0, 1] vary at most as much as successes and failures with the same mean. The interval is
    therefore never too narrow, but may be too wide.
    """
    if not values:
        return None
    total = math.fsum(values)
    return Mean(
        value=total / len(values),
        n=len(values),
        clusters=len(set(clusters)),
        wilson=wilson(total, len(values)),
        clustered=clustered(values, clusters),
    )


def wilson(successes: float, n: int) -> Interval:
    """Return Wilson's score interval of a proportion.

    Wilson 1927; Brown, Cai and DasGupta 2001 recommend it for small n.

    Raises:
        ValueError: `n` is below 1, or `successes` is not between 0 and `n`.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a proportion")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # the interval contains p, and ends at 0 or 1 if p does; the formula may miss that by a rounding error
    low = 0.0 if successes == 0 else max(0.0, min(p, centre - half))
    high = 1.0 if successes == n else min(1.0, max(p, centre + half))
    return Interval(low, high)


def clustered(values: Sequence[float], clusters: Sequence[str]) -> Interval | None:
    """Return the t interval of a mean of values in [0, 1], cut to [0, 1]; None if `robust_mean` returns None.

    It uses the cluster-robust standard error.
    """
    robust = robust_mean(values, clusters)
    return None if robust is None else robust.interval(0.0)


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


@dataclass(frozen=True)
class Paired:
    """The mean difference of two runs over `n` instances."""

    n: int
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
) -> Paired | None:
    """Compare the rates of the instances in two runs.

    If both runs have one attempt at each instance (`single`), the test is the exact McNemar test and the
    interval is Newcombe's. Otherwise it is a t test of the mean difference, clustered by repository if that
    is defined, else by instance. In both cases, `clustered` is the interval that treats the instances of a
    repository as related.
    """
    if not first:
        return None
    differences = [a - b for a, b in zip(first, second, strict=True)]
    n = len(differences)
    robust = robust_mean(differences, clusters)
    by_repository = None if robust is None else robust.interval(-1.0)
    difference = math.fsum(differences) / n
    if single:
        won, lost = (sum(d * sign > 0 for d in differences) for sign in (1, -1))
        both = sum(a == b == 1 for a, b in zip(first, second, strict=True))
        return Paired(
            n, difference, "exact McNemar", mcnemar(won, lost), "Newcombe, paired",
            newcombe(both, won, lost, n - both - won - lost), by_repository,
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
    return Paired(n, difference, named, p, method, robust.interval(-1.0), by_repository)


def mcnemar(won: int, lost: int) -> float:
    """Return the two-sided p value of the exact McNemar test.

    It is the probability that fair coins split `won` + `lost` at least as unevenly. Instances on which both
    runs agree carry no information about which run is better (McNemar 1947).
    """
    flips = won + lost
    tail = sum(math.comb(flips, few) for few in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << flips))


def newcombe(both: int, won: int, lost: int, neither: int) -> Interval:
    """Return the interval of a difference of paired proportions.

    This is method 10 of Newcombe 1998 (Statistics in Medicine 17:2635). It combines the Wilson intervals of
    the two proportions with the correlation of the pairs, corrected for continuity. Unlike the t interval, it
    is defined for every table with at least one pair.
    """
    n = both + won + lost + neither
    ends = [wilson(count, n) for count in (both + won, both + lost)]
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


def t_tails(t: float, freedom: int) -> float:
    """Return the probability that |T| is at least |t| (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    is_odd = freedom % 2 == 1
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for power in range(is_odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    inside = math.sin(angle) * total
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if is_odd else inside))


def t_quantile(confidence: float, freedom: int) -> float:
    """Return the t for which |T| < t has this probability, 0 < confidence < 1.

    Example: 12.706 for 0.95 and 1 degree of freedom.
    """
    tails = 1 - confidence
    high = 1.0
    while t_tails(high, freedom) > tails:
        high *= 2
    low = 0.0
    while (middle := (low + high) / 2) not in (low, high):  # until there is no float between them
        low, high = (middle, high) if t_tails(middle, freedom) > tails else (low, middle)
    return middle
