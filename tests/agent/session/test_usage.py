"""Test what a session used: in sums, unknown is not zero."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.agent.session.usage import Totals, cached_share, prices_of, tokens_per_second
from m3agent.serving.client.endpoint import Endpoint, unasked
from m3agent.serving.client.messages import AssistantMessage, Turn, Usage
from m3agent.serving.client.models import known_model
from m3agent.serving.client.prices import Prices
from tests.serving import talk


def turn(*, seconds: float = 2.0, first: float | None = 1.0, **counts: int | None) -> Turn:
    return Turn(AssistantMessage(), Usage(**counts), "stop", seconds, first)


def endpoint(url: str, **fields: Any) -> Endpoint:
    return talk.endpoint(url, **({"flavour": "unknown", "local": False} | fields))


def test_unknown_stays_unknown() -> None:
    totals = Totals()
    totals.add(turn(), None)
    assert (totals.prompt, totals.cached, totals.completion, totals.reasoning, totals.price) == (None,) * 5
    assert (totals.cached_share, totals.tokens_per_second, totals.turns) == (None, None, 1)
    totals.add(turn(prompt=100, cached=0, completion=5, reasoning=2), 0.5)
    totals.add(turn(prompt=200), None)
    assert (totals.prompt, totals.cached, totals.completion, totals.reasoning) == (300, 0, 5, 2)
    assert (totals.price, totals.cached_share, totals.turns) == (0.5, 0.0, 3)


def test_the_cached_share_is_of_the_turns_that_tell() -> None:
    totals = Totals()
    totals.add(turn(prompt=1000, cached=0), None)
    totals.add(turn(prompt=1000, cached=990), None)
    totals.add(turn(prompt=9000), None)
    assert totals.cached_share == pytest.approx(0.495)
    assert cached_share(Usage(prompt=0, cached=0)) is None


@pytest.mark.parametrize(
    ("made", "speed"),
    [
        (turn(completion=101), 100.0),
        (turn(completion=1), None),
        (turn(completion=None), None),
        (turn(completion=50, first=None), None),
        (turn(completion=50, first=2.0), None),
        (turn(completion=50, first=1.9999), None),
    ],
)
def test_speed(made: Turn, speed: float | None) -> None:
    assert tokens_per_second(made) == speed


def test_the_mean_speed_weighs_by_time() -> None:
    totals = Totals()
    totals.add(turn(completion=101, seconds=2.0), None)  # 100 tokens in 1 s
    totals.add(turn(completion=101, seconds=10.0), None)  # 100 tokens in 9 s
    assert totals.tokens_per_second == pytest.approx(20.0)


LISTED = Prices(1.0, 2.0)
M3, FLASH = (known_model(name) for name in ("MiniMax-M3", "MiniMax-M3.1-Flash"))
assert M3 is not None and FLASH is not None


@pytest.mark.parametrize(
    ("at", "own", "prices"),
    [
        (unasked("https://API.MiniMax.io/v1", "MiniMax-M3"), None, M3.prices),
        (unasked("https://api.minimaxi.com:443/v1", "minimax-m3"), None, M3.prices),
        (unasked("https://api.minimax.cn/v1", "MiniMax-M3.1-Flash"), None, FLASH.prices),
        (unasked("https://api.minimax.io/v1", "MiniMax-M9"), None, None),
        (unasked("https://api.minimax.io.example/v1", "MiniMax-M3"), None, None),
        (endpoint("https://openrouter.ai/api/v1", prices=LISTED), None, LISTED),
        (endpoint("https://api.minimax.io/v1", prices=LISTED), None, LISTED),
        (endpoint("http://127.0.0.1:8000/v1", flavour="vllm"), None, None),
        (endpoint("http://127.0.0.1:8000/v1", flavour="vllm"), "2x5", Prices(hour=10)),
        (endpoint("http://127.0.0.1:8000/v1", flavour="embedded"), None, Prices()),
    ],
)
def test_source_of_the_prices(at: Endpoint, own: str | None, prices: Prices | None) -> None:
    assert prices_of(at, own) == prices
