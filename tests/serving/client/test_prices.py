"""Prices per token, per hour, and as listed by the server."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.client.messages import Usage
from m3agent.serving.client.prices import Prices, listed_prices, server_price

MILLION = 1_000_000
STEP = Prices(0.30, 1.20, 0.06, step=512_000, times=2.0)
TOKENS = Prices(0.60, 2.40, 0.06)


@pytest.mark.parametrize(
    ("prices", "usage", "seconds", "dollars"),
    [
        (TOKENS, Usage(prompt=MILLION, completion=MILLION), 5, 3.0),
        (TOKENS, Usage(prompt=MILLION, cached=MILLION // 2, completion=0), 5, 0.33),
        (TOKENS, Usage(prompt=100, cached=MILLION, completion=0), 5, 100 * 0.06 / MILLION),
        (Prices(0.60, 2.40), Usage(prompt=MILLION, cached=MILLION, completion=0), 5, 0.60),
        (TOKENS, Usage(prompt=None, completion=5), 5, None),
        (TOKENS, Usage(prompt=5, completion=None), 5, None),
        (Prices(hour=20), Usage(), 90, 0.5),
        (Prices(), Usage(), 90, 0.0),
        (STEP, Usage(prompt=512_000, cached=500_000, completion=1000), 1, 0.0348),
        (STEP, Usage(prompt=512_001, cached=512_001, completion=0), 1, 2 * 0.06 * 0.512001),
        (STEP, Usage(prompt=MILLION, completion=MILLION), 1, 3.0),
    ],
)
def test_costs_are_computed_from_usage_and_time(
    prices: Prices, usage: Usage, seconds: float, dollars: float | None
) -> None:
    assert prices.of(usage, seconds) == (None if dollars is None else pytest.approx(dollars))


@pytest.mark.parametrize(
    ("text", "hour"), [("20", 20), ("8x2.50", 20), (" 1x1.82 ", 1.82), ("0", 0), ("72x0.5", 36)]
)
def test_a_server_of_ones_own(text: str, hour: float) -> None:
    found = server_price(text)
    assert found.hour == pytest.approx(hour)
    assert (found.prompt, found.completion, found.cached) == (0, 0, None)


@pytest.mark.parametrize(
    "text", ["", "x", "8x", "x2", "-1", "8 x 2", "1e3", "nan", "inf", "0x2", "8xH200", "2,5"]
)
def test_invalid_prices(text: str) -> None:
    with pytest.raises(ValueError, match=r"8x2\.50"):
        server_price(text)


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [
        ({"prompt": "0.0000003", "completion": "0.0000012"}, Prices(0.3, 1.2)),
        (
            {"prompt": "0.0000003", "completion": "0.0000012", "input_cache_read": "0.00000003"},
            Prices(0.3, 1.2, 0.03),
        ),
        ({"prompt": "0", "completion": 0}, Prices()),
        ({"prompt": "-1", "completion": "-1"}, None),
        ({"prompt": "0.1"}, None),
        ({"prompt": "free", "completion": "free"}, None),
        ({"prompt": "nan", "completion": "1"}, None),
        ({"prompt": [1], "completion": {}}, None),
        ("cheap", None),
        (None, None),
    ],
)
def test_listed(pricing: Any, prices: Prices | None) -> None:
    assert listed_prices({"id": "m", "pricing": pricing}) == prices
