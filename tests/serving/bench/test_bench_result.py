"""A result's statistics against their definitions, its JSON written and read back, and comparisons of results."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.serving.bench.compare import BenchComparison, against_baseline, against_plan
from m3agent.serving.bench.options import Options
from m3agent.serving.bench.result import (
    KINDS,
    BenchRequest,
    BenchResult,
    BenchRow,
    Kind,
    Round,
    Statistics,
    from_json,
    to_json,
)

seconds = st.just(0.0) | st.floats(1e-9, 1e6)  # the clock counts nanoseconds
counts = st.none() | st.integers(0, 2_000_000)
requests = st.builds(
    BenchRequest,
    prompt_tokens=counts,
    cached_tokens=counts,
    completion_tokens=counts,
    ttft=st.none() | seconds,
    e2e=st.none() | seconds,
    itl=st.lists(seconds, max_size=4).map(tuple),
    reusable=st.integers(0, 2_000_000),
    error=st.none() | st.text(max_size=20),
)
rounds = st.builds(Round, requests=st.lists(requests, min_size=1, max_size=3).map(tuple), seconds=seconds)
rows = st.builds(
    BenchRow,
    kind=st.sampled_from(KINDS),
    tokens=st.integers(2048, 1_000_000),
    streams=st.integers(1, 64),
    output_tokens=st.none() | st.integers(2, 256),
    rounds=st.lists(rounds, max_size=3).map(tuple),
)
results = st.builds(
    BenchResult,
    url=st.text(max_size=30),
    model=st.text(max_size=30),
    flavour=st.sampled_from(["vllm", "unknown"]),
    version=st.none() | st.text(max_size=9),
    max_model_len=counts,
    kv_tokens=counts,
    started=st.text(max_size=30),
    seconds=seconds,
    options=st.builds(
        Options, lengths=st.lists(st.integers(2048, 10**6), max_size=3).map(tuple), seed=st.integers(0, 2**70)
    ),
    rows=st.lists(rows, max_size=3).map(tuple),
    left_out=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    ended=st.sampled_from(["running", "finished", "interrupted", "died"]),
    error=st.none() | st.text(max_size=20),
)


@settings(max_examples=10)
@given(results)
def test_a_result_comes_back_from_its_json(result: BenchResult) -> None:
    assert from_json(to_json(result)) == result


@given(
    st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(json.dumps)
)
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="this is not"):
        from_json(text)


@pytest.mark.parametrize(
    "damage", [{"format": 2}, {"rows": 7}, {"options": {"rounds": 0}}, {"rows": [{"kind": "x"}]}]
)
def test_a_damaged_result_is_refused_in_a_sentence(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="this is not a bench result"):
        from_json(json.dumps(json.loads(to_json(result_of())) | damage))


def percentile(values: list[float], share: float) -> float:
    """Return a percentile, interpolated linearly between the closest ranks as numpy does by default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


@given(st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1))
def test_statistics_are_what_their_names_say(values: list[float]) -> None:
    found = Statistics.of(values)
    assert found is not None
    close = {"rel_tol": 1e-9, "abs_tol": 1e-9}
    assert math.isclose(found.mean, math.fsum(values) / len(values), **close)
    assert math.isclose(found.median, percentile(values, 0.5), **close)
    assert math.isclose(found.p99, percentile(values, 0.99), **close)
    assert found.count == len(values)


def test_statistics_by_hand() -> None:
    assert Statistics.of([4.0, 1.0, 3.0, 2.0]) == Statistics(2.5, 2.5, 3.97, 4)
    assert Statistics.of([7.0]) == Statistics(7.0, 7.0, 7.0, 1)
    assert Statistics.of([]) is None


def request(ttft: float, tpot: float, **fields: Any) -> BenchRequest:
    values: dict[str, Any] = {"prompt_tokens": 8192, "cached_tokens": 0, "completion_tokens": 11}
    return BenchRequest(ttft=ttft, e2e=ttft + 10 * tpot, **(values | fields))


def row_of(kind: Kind, *found: BenchRequest, tokens: int = 8192, took: float = 2.0) -> BenchRow:
    return BenchRow(kind, tokens, 1, 11, tuple(Round((one,), took) for one in found))


def result_of(*found: BenchRow, **fields: Any) -> BenchResult:
    values: dict[str, Any] = {"kv_tokens": 100_000, "options": Options()}
    return BenchResult(
        "http://127.0.0.1:1/v1",
        "m3",
        "vllm",
        "0.24.0",
        131_072,
        started="now",
        seconds=1.0,
        rows=found,
        **(values | fields),
    )


def test_tpot_weighs_requests_and_itl_weighs_tokens() -> None:
    short = BenchRequest(completion_tokens=2, ttft=1.0, e2e=2.0, itl=(1.0,))
    long = BenchRequest(completion_tokens=4, ttft=1.0, e2e=1.3, itl=(0.1, 0.1, 0.1))
    row = row_of("cold", short, long)
    assert row.tpot is not None and row.itl is not None
    assert row.tpot.mean == pytest.approx((1.0 + 0.1) / 2)
    assert row.itl.mean == pytest.approx(1.3 / 4)


def test_failed_requests_do_not_count() -> None:
    row = row_of("cold", request(1.0, 0.1), request(50.0, 9.0, error="It broke."))
    assert row.ttft == Statistics(1.0, 1.0, 1.0, 1)
    assert row.tokens_per_second == 11 / 2.0
    assert row.marks == ("It broke.",)


def test_answers_of_another_length_are_marked() -> None:
    assert row_of("cold", request(1.0, 0.1, completion_tokens=5)).marks == (
        "an answer had 5 tokens instead of 11",
    )


def test_tokens_that_were_held_back_are_marked() -> None:
    def marks(events: int) -> tuple[str, ...]:
        of = request(1.0, 0.1, completion_tokens=64, itl=(0.01,) * (events - 1))
        return replace(row_of("cold", of), output_tokens=64).marks

    assert marks(48) == ()
    (mark,) = marks(35)
    assert mark.startswith("64 tokens came in 35 events: the server held them back or made several at a time")


@pytest.mark.parametrize(
    ("reusable", "cached", "marked"),
    [(0, 256, False), (0, 257, True), (8000, 7200, False), (8000, 7199, True)],
)
def test_where_cold_and_cached_begin(reusable: int, cached: int, marked: bool) -> None:
    row = row_of("cold", request(1.0, 0.1, reusable=reusable, cached_tokens=cached))
    assert bool(row.marks) is marked


def test_plan_is_compared_with_the_measurement() -> None:
    result = result_of(
        row_of("cold", request(1.0, 0.01)),
        row_of("cold", request(9.0, 0.02), tokens=65_536),
        kv_tokens=96_000,
    )
    room, speed = against_plan(result, {"kv_tokens": 100_000, "tokens_per_second": 110, "sequence": 10_000})
    assert room == BenchComparison("KV cache capacity", "tokens", 100_000, 96_000.0, 0.96, True)
    assert speed.name == "decode speed of one stream at 8,192 tokens"
    assert speed.measured == pytest.approx(100)
    assert speed.worse is False
    (slow,) = against_plan(result, {"tokens_per_second": 110})
    assert slow.name == "decode speed of one stream at 65,536 tokens"
    assert slow.worse is True


def test_speed_is_compared_with_a_comparable_row() -> None:
    def measured(sequence: int, *rows: BenchRow) -> str:
        (speed,) = against_plan(result_of(*rows), {"tokens_per_second": 74, "sequence": sequence})
        return speed.name if speed.measured else ""

    def row(tokens: int, events: int = 64) -> BenchRow:
        of = request(9.0, 0.01, completion_tokens=64, itl=(0.01,) * (events - 1))
        return replace(row_of("cold", of, tokens=tokens), output_tokens=64)

    assert measured(1_048_576, row(131_072)) == ""
    assert measured(1_048_576, row(131_072), row(524_288)) == "decode speed of one stream at 524,288 tokens"
    assert measured(1_048_576, row(524_288), row(1_000_000, events=35)).endswith("524,288 tokens")
    assert measured(1_048_576, row(1_000_000, events=35)) == ""
    assert measured(100_000, row(2048)) == "decode speed of one stream at 2,048 tokens"


def test_unmeasured_value_is_neither_better_nor_worse_than_planned() -> None:
    found = against_plan(result_of(kv_tokens=None), {"kv_tokens": 100_000, "tokens_per_second": 110})
    assert [(one.measured, one.ratio, one.worse) for one in found] == [(None, None, None)] * 2


def test_regressions_against_an_earlier_bench_are_named() -> None:
    before = result_of(row_of("cold", request(1.0, 0.1)), row_of("cached", request(0.1, 0.1)))
    now = result_of(row_of("cold", request(1.5, 0.1), tokens=8000), row_of("first", request(1.0, 0.1)))
    found, only = against_baseline(now, before)
    assert [(one.name, one.worse) for one in found] == [
        ("cold, 8,000 tokens: TTFT", True),
        ("cold, 8,000 tokens: TPOT", False),
        ("cold, 8,000 tokens: E2E", True),
    ]
    assert found[0].ratio == 1.5
    assert only == [
        "first to send a shared 8,192 tokens: not in the baseline",
        "cached, 8,192 tokens: only in the baseline",
    ]
    assert not any(one.worse for one in against_baseline(now, before, threshold=0.6)[0])
    assert not any(one.worse for one in against_baseline(before, before, threshold=0)[0])


def test_fewer_tokens_a_second_of_all_streams_are_a_regression() -> None:
    before = result_of(row_of("streams", request(1.0, 0.1)))
    now = result_of(replace(row_of("streams", request(1.0, 0.1), took=4.0)))
    found, _ = against_baseline(now, before)
    assert [(one.name, one.ratio) for one in found if one.worse] == [
        ("1 at a time, 8,192 tokens each: output", 0.5)
    ]
