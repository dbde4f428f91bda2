"""Rates with intervals, against printed tables, closed forms and counts by hand."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.report.statistics import (
    clustered,
    mean,
    pass_all_k,
    pass_at_k,
    robust_mean,
    t_quantile,
    t_tails,
    wilson,
)

shares = st.integers(0, 4).map(lambda successes: successes / 4)
rows = st.lists(st.tuples(shares, st.sampled_from("abcde")), min_size=1, max_size=60)
attempts = st.integers(1, 30).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)  # n, c, k


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [
        # Table of Student's t, two-sided: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2
        (0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 4, 2.776), (0.95, 5, 2.571), (0.95, 9, 2.262),
        (0.95, 10, 2.228), (0.95, 30, 2.042), (0.95, 100, 1.984), (0.90, 7, 1.895), (0.99, 7, 3.499), (0.998, 3, 10.215),
        (0.95, 50_000, 1.960),  # the normal distribution's, in the limit
    ],
)  # fmt: skip
def test_t_quantiles_are_those_of_the_printed_table(confidence: float, freedom: int, expected: float) -> None:
    assert round(t_quantile(confidence, freedom), 3) == expected


@given(st.floats(0.001, 500))
def test_t_tails_have_their_closed_forms(t: float) -> None:
    assert t_tails(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-6)
    assert t_tails(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)
    assert t_tails(-t, 2) == t_tails(t, 2)


@given(st.floats(0.01, 0.9999), st.integers(1, 400))
def test_t_quantile_and_tails_are_inverse(confidence: float, freedom: int) -> None:
    assert t_tails(t_quantile(confidence, freedom), freedom) == pytest.approx(1 - confidence, rel=1e-8)


def test_t_tails_are_1_at_zero_and_0_at_infinity() -> None:
    assert t_tails(0, 3) == 1
    assert t_tails(math.inf, 3) == 0


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_as_printed(successes: int, n: int, low: float, high: float) -> None:
    found = wilson(successes, n)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_lies_within_0_and_1_and_is_symmetric(given: tuple[int, int]) -> None:
    successes, n = given
    found, mirrored = wilson(successes, n), wilson(n - successes, n)
    assert 0 <= found.low <= successes / n <= found.high <= 1
    assert found.low < found.high
    assert mirrored.low == pytest.approx(1 - found.high, abs=1e-12)
    assert mirrored.high == pytest.approx(1 - found.low, abs=1e-12)


@given(st.integers(1, 100).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.integers(2, 9))
def test_wilson_shrinks_with_n(given: tuple[int, int], times: int) -> None:
    successes, n = given
    few, many = wilson(successes, n), wilson(times * successes, times * n)
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (3, 2), (-1, 2)])
def test_what_is_no_proportion_is_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="not a proportion"):
        wilson(successes, n)


def test_a_clustered_interval_as_computed_by_hand() -> None:
    # mean 1/2; the clusters' deviations sum to 1, 0 and -1: error^2 = 3/2 * 2 / 36, with 2 degrees of freedom
    found = clustered([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"])
    assert found is not None
    half = 4.302653 * math.sqrt(3 / 2 * 2) / 6
    assert (found.low, found.high) == (max(0, 0.5 - half), min(1, 0.5 + half))


def test_with_one_instance_in_each_cluster_the_error_is_the_ordinary_one() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 0.0, 1.0, 0.25]
    found = robust_mean(values, list("abcdefg"))
    assert found is not None
    average = sum(values) / 7
    assert found.error == pytest.approx(math.sqrt(sum((v - average) ** 2 for v in values) / 6 / 7))
    assert found.freedom == 6


def test_instances_that_go_together_widen_the_clustered_interval() -> None:
    values = [1.0] * 10 + [0.0] * 10 + [1.0] * 10 + [0.0] * 10
    together = clustered(values, ["a"] * 10 + ["b"] * 10 + ["c"] * 10 + ["d"] * 10)
    apart = clustered(values, [str(index) for index in range(40)])
    assert together is not None
    assert apart is not None
    assert together.high - together.low > 2 * (apart.high - apart.low)


@pytest.mark.parametrize(
    ("values", "clusters"),
    [([1.0, 0.0], "aa"), ([1.0, 1.0, 1.0], "abc"), ([0.0, 0.0], "ab"), ([1.0, 0.0, 1.0, 0.0], "aabb"), ([], "")],
)  # fmt: skip
def test_where_clusters_tell_nothing_of_chance_there_is_no_clustered_interval(
    values: list[float], clusters: str
) -> None:
    assert clustered(values, list(clusters)) is None


@given(rows)
def test_a_mean_s_intervals_hold_it_lie_within_0_and_1_and_are_symmetric(
    given: list[tuple[float, str]],
) -> None:
    values, clusters = [value for value, _ in given], [cluster for _, cluster in given]
    found, mirrored = mean(values, clusters), mean([1 - value for value in values], clusters)
    assert found is not None
    assert mirrored is not None
    for here, there in ((found.wilson, mirrored.wilson), (found.clustered, mirrored.clustered)):
        assert (here is None) == (there is None)
        if here is not None and there is not None:
            assert 0 <= here.low <= found.value <= here.high <= 1
            assert there.low == pytest.approx(1 - here.high, abs=1e-9)
            assert there.high == pytest.approx(1 - here.low, abs=1e-9)


@given(rows, st.randoms())
def test_the_order_of_instances_changes_nothing(given: list[tuple[float, str]], random: object) -> None:
    shuffled = list(given)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (mean([v for v, _ in some], [c for _, c in some]) for some in (given, shuffled))
    assert first == second


def test_mean_of_no_values_is_undefined() -> None:
    assert mean([], []) is None


@given(attempts)
def test_pass_at_k_is_what_counting_all_choices_gives(given: tuple[int, int, int]) -> None:
    n, c, k = given
    n, c, k = min(n, 9), min(c, n, 9), min(k, n, 9)
    choices = list(itertools.combinations([index < c for index in range(n)], k))
    assert pass_at_k(n, c, k) == pytest.approx(float(Fraction(sum(map(any, choices)), len(choices))))
    assert pass_all_k(n, c, k) == pytest.approx(float(Fraction(sum(map(all, choices)), len(choices))))


@given(attempts)
def test_pass_at_k_grows_with_k_and_begins_at_the_rate(given: tuple[int, int, int]) -> None:
    n, c, _ = given
    at = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    every = [pass_all_k(n, c, k) for k in range(1, n + 1)]
    assert at == sorted(at)
    assert every == sorted(every, reverse=True)
    assert at[0] == pytest.approx(c / n)
    assert every[0] == pytest.approx(c / n)
    assert at[-1] == (c > 0)
    assert every[-1] == (c == n)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_attempts_that_cannot_be_are_refused(n: int, c: int, k: int) -> None:
    for estimate in (pass_at_k, pass_all_k):
        with pytest.raises(ValueError, match="are impossible"):
            estimate(n, c, k)
