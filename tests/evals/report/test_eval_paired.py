"""The comparison of two runs, against published examples and counts by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.report.statistics import mcnemar, newcombe, paired

counts = st.integers(0, 40)
single_rows = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0]), st.sampled_from("abc")),
    min_size=1,
    max_size=40,
)
rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from("abc")).map(
        lambda row: (row[0] / 3, row[1] / 3, row[2])
    ),
    min_size=1,
    max_size=40,
)


@given(st.integers(0, 7), st.integers(0, 7))
def test_mcnemar_is_what_counting_all_flips_gives(won: int, lost: int) -> None:
    flips = list(itertools.product((0, 1), repeat=won + lost))
    as_uneven = sum(abs(2 * sum(flip) - won - lost) >= abs(won - lost) for flip in flips)
    assert mcnemar(won, lost) == pytest.approx(as_uneven / len(flips))


@given(st.integers(0, 700), st.integers(0, 700))
def test_mcnemar_is_symmetric_and_a_chance(won: int, lost: int) -> None:
    assert mcnemar(won, lost) == mcnemar(lost, won)
    assert 0 <= mcnemar(won, lost) <= 1


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17:2635, table III, method 10
        ((36, 12, 2, 0), 0.0569, 0.3404),
        # Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850: airway hyper-responsiveness
        ((1, 1, 7, 12), -0.5069, -0.0256),
    ],
)
def test_newcombe_s_interval_is_as_printed(table: tuple[int, int, int, int], low: float, high: float) -> None:
    found = newcombe(*table)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


@given(counts, counts, counts, counts)
def test_newcombe_s_interval_holds_the_difference_and_turns_with_the_runs(
    both: int, won: int, lost: int, neither: int
) -> None:
    if both + won + lost + neither == 0:
        return
    found, turned = newcombe(both, won, lost, neither), newcombe(both, lost, won, neither)
    difference = (won - lost) / (both + won + lost + neither)
    assert -1 <= found.low <= difference <= found.high <= 1
    assert turned.low == pytest.approx(-found.high, abs=1e-12)
    assert turned.high == pytest.approx(-found.low, abs=1e-12)
    swapped = newcombe(neither, lost, won, both)  # success and failure swapped
    assert swapped.low == pytest.approx(-found.high, abs=1e-12)


def test_runs_that_agree_everywhere_are_not_certainly_equal() -> None:
    found = newcombe(3, 0, 0, 3)
    assert found.low < 0 < found.high


@given(single_rows)
def test_single_attempts_are_compared_by_mcnemar(given: list[tuple[float, float, str]]) -> None:
    first, second, clusters = (list(column) for column in zip(*given, strict=True))
    found = paired(first, second, clusters, single=True)
    assert found is not None
    won = sum(a > b for a, b, _ in given)
    lost = sum(a < b for a, b, _ in given)
    assert found.test == "exact McNemar"
    assert found.p == mcnemar(won, lost)
    assert found.difference == pytest.approx((won - lost) / len(given))


@given(rows)
def test_several_attempts_are_compared_alike_from_either_side(given: list[tuple[float, float, str]]) -> None:
    first, second, clusters = (list(column) for column in zip(*given, strict=True))
    here = paired(first, second, clusters, single=False)
    there = paired(second, first, clusters, single=False)
    assert here is not None
    assert there is not None
    assert here.difference == pytest.approx(-there.difference, abs=1e-12)
    assert (here.p is None) == (here.interval is None) == (there.p is None)
    if here.p is not None and here.interval is not None and there.p is not None:
        assert 0 <= here.p <= 1
        assert here.p == pytest.approx(there.p, abs=1e-9)
        assert -1 <= here.interval.low <= here.difference <= here.interval.high <= 1
        if here.interval.low > -1 and here.interval.high < 1 and abs(here.p - 0.05) > 1e-6:
            assert (here.p < 0.05) == (not here.interval.low <= 0 <= here.interval.high), (
                "test and interval agree"
            )


def test_several_attempts_as_computed_by_hand() -> None:
    # differences 1/2, 1/2, 0, 1/4 in four repositories: a paired t test with 3 degrees of freedom
    found = paired([1, 0.5, 0.5, 0.25], [0.5, 0, 0.5, 0], list("abcd"), single=False)
    assert found is not None
    error = math.sqrt(sum((d - 0.3125) ** 2 for d in (0.5, 0.5, 0, 0.25)) / 3 / 4)
    assert found.test.endswith("clustered by repository, 3 degrees of freedom")
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.3125 - 3.182446 * error, abs=1e-6)
    assert found.p is not None
    assert 0.05 < found.p < 0.10, "t = 2.61: the printed table has 2.353 for 0.10 and 3.182 for 0.05"


def test_within_one_repository_several_attempts_are_compared_by_instance() -> None:
    found = paired([1, 0.5, 0.5, 0.25], [0.5, 0, 0.5, 0], list("aaaa"), single=False)
    assert found is not None
    assert "clustered by instance, 3 degrees of freedom" in found.test
    assert found.clustered is None
    assert found.interval is not None


def test_differences_that_do_not_vary_have_no_test() -> None:
    found = paired([0.5, 1.0], [0.0, 0.5], ["a", "b"], single=False)
    assert found is not None
    assert found.difference == 0.5
    assert (found.p, found.interval) == (None, None)
    assert "not defined" in found.test


def test_no_instances_make_no_comparison() -> None:
    assert paired([], [], [], single=True) is None
