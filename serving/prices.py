"""What a turn costs: by the token at a hosted API, by the hour on GPUs of one's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.serving.chat import Usage

_MILLION = 1_000_000
_SERVER_PRICE = re.compile(r"(?:([1-9][0-9]{0,4})x)?([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Prices:
    """US dollars: `prompt`, `cached` and `completion` for a million tokens, `hour` for an hour of a request's time.

    `cached` is for prompt tokens that the server found in its cache; None: they cost what the others do. Reasoning is
    part of the completion.
    """

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    hour: float = 0.0

    def of(self, usage: Usage, seconds: float) -> float | None:
        """The price of a turn that took so long; None where the tokens cost something and are not known."""
        by_time = self.hour * seconds / 3600
        if not (self.prompt or self.completion or self.cached):
            return by_time
        if usage.prompt is None or usage.completion is None:
            return None
        cached = 0 if self.cached is None else min(usage.cached or 0, usage.prompt)
        dollars = (usage.prompt - cached) * self.prompt + usage.completion * self.completion
        return by_time + (dollars + cached * (self.cached or 0.0)) / _MILLION


HOSTED = {"api.minimax.io": Prices(0.60, 2.40), "api.minimaxi.com": Prices(0.60, 2.40)}
"""By host: MiniMax's list prices for M3 of June 2026, not the promotion's half. What a cached token costs there is not
known to us, so it counts in full: a limit on money is reached too early rather than too late."""


def listed_prices(model: Mapping[str, Any]) -> Prices | None:
    """The prices in a model's entry of /v1/models, as OpenRouter has them: dollars for one token, as decimal strings.

    None where there are none, or where they vary (OpenRouter's routers say -1).
    """
    listed = model.get("pricing")
    if not isinstance(listed, Mapping):
        return None
    prompt, completion = _per_million(listed.get("prompt")), _per_million(listed.get("completion"))
    if prompt is None or completion is None:
        return None
    return Prices(prompt, completion, _per_million(listed.get("input_cache_read")))


def server_price(text: str) -> Prices:
    """The price of a server of one's own from `8x2.50` (GPUs, dollars for a GPU-hour) or `20` (dollars an hour).

    A request's time is counted in full, also while the server works for others: an upper bound.

    Raises ValueError for anything else.
    """
    match = _SERVER_PRICE.fullmatch(text.strip())
    if match is None:
        raise ValueError("it should be dollars an hour, or GPUs times dollars for one of them, like 8x2.50")
    return Prices(hour=int(match[1] or 1) * float(match[2]))


def _per_million(value: object) -> float | None:
    try:
        dollars = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return None
    return round(dollars * _MILLION, 9) if math.isfinite(dollars) and dollars >= 0 else None
