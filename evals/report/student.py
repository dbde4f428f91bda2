"""Student's t distribution with the standard library only, for intervals and tests over few repositories."""

from __future__ import annotations

import math

_TINY = 1e-300
_CLOSE = 1e-15
_MOST_STEPS = 10_000


def t_tails(t: float, freedom: float) -> float:
    """Return the probability that |T| is at least |t|, with `freedom` degrees of freedom (above 0).

    It is the regularised incomplete beta function at freedom / (freedom + t^2) with the parameters freedom /
    2 and 1/2 (Abramowitz and Stegun, 26.7.1 with 26.5.27).
    """
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / (freedom + t * t), t * t / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(confidence: float, freedom: float) -> float:
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


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return I_x(a, b).

    `rest` is 1 - x; it is an argument because computing it here would lose precision.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only on the other side
        return 1 - math.exp(scale) * _fraction(rest, b, a) / b
    return math.exp(scale) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
