"""Limits: what is used up, and what is reached."""

from __future__ import annotations

import time

import pytest

from m3agent.agent.limits import Limits, plus, price_of
from m3agent.serving.chat import Usage

MILLION = 1_000_000
KNOWN = Usage(prompt=MILLION, cached=None, completion=MILLION, reasoning=None)


@pytest.mark.parametrize(
    ("url", "usage", "price"),
    [
        ("https://api.minimax.io/v1", KNOWN, 3.0),
        ("https://api.minimaxi.com:443/v1", KNOWN, 3.0),
        (
            "https://API.MiniMax.io/v1",
            Usage(prompt=500_000, cached=400_000, completion=0, reasoning=None),
            0.3,
        ),
        ("https://api.minimax.io.example/v1", KNOWN, None),
        ("http://127.0.0.1:8000/v1", KNOWN, None),
        ("not a url", KNOWN, None),
        ("https://api.minimax.io/v1", Usage(prompt=None, cached=None, completion=5, reasoning=None), None),
        ("https://api.minimax.io/v1", Usage(prompt=5, cached=None, completion=None, reasoning=None), None),
    ],
)
def test_prices(url: str, usage: Usage, price: float | None) -> None:
    assert price_of(url, usage) == (None if price is None else pytest.approx(price))


def test_unknown_counts_stay_unknown() -> None:
    limits = Limits(turns=10, minutes=10)
    limits.add(Usage(prompt=None, cached=None, completion=None, reasoning=None), None)
    assert (limits.prompt_tokens, limits.cached_tokens, limits.completion_tokens, limits.price) == (None,) * 4
    limits.add(Usage(prompt=100, cached=0, completion=5, reasoning=2), 0.5)
    limits.add(Usage(prompt=200, cached=None, completion=None, reasoning=None), None)
    assert (limits.prompt_tokens, limits.cached_tokens, limits.completion_tokens) == (300, 0, 5)
    assert limits.price == 0.5
    assert limits.used_turns == 3


@pytest.mark.parametrize(
    ("total", "more", "result"), [(None, None, None), (None, 0, 0), (0, None, 0), (3, None, 3), (3, 4, 7)]
)
def test_sums(total: int | None, more: int | None, result: int | None) -> None:
    assert plus(total, more) == result


def used(limits: Limits, turns: int, completion: int | None = None, price: float | None = None) -> Limits:
    for _ in range(turns):
        limits.add(Usage(prompt=1, cached=None, completion=completion, reasoning=None), price)
    return limits


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (used(Limits(turns=3, minutes=10_000), 2), None),
        (used(Limits(turns=3, minutes=10_000), 3), "3 turns"),
        (Limits(turns=3, minutes=0.5, started=time.monotonic() - 31), "0.5 minutes"),
        (Limits(turns=3, minutes=10_000, started=time.monotonic() - 1700), None),
        (used(Limits(turns=9, minutes=10_000, tokens=2000), 3, completion=700), "2,000 completion tokens"),
        (used(Limits(turns=9, minutes=10_000, tokens=2000), 2, completion=700), None),
        (used(Limits(turns=9, minutes=10_000, tokens=2000), 5), None),
        (used(Limits(turns=9, minutes=10_000, cost=1.0), 2, price=0.6), "$1.00"),
        (used(Limits(turns=9, minutes=10_000, cost=1.0), 1, price=0.6), None),
        (used(Limits(turns=9, minutes=10_000, cost=1.0), 5), None),
    ],
)
def test_reached(limits: Limits, said: str | None) -> None:
    assert limits.reached() == said


def test_the_clock() -> None:
    limits = Limits(turns=1, minutes=2, started=time.monotonic() - 60)
    assert limits.deadline - time.monotonic() == pytest.approx(60, abs=5)
    assert limits.seconds == pytest.approx(60, abs=5)
