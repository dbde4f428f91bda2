"""Compute the cost of a turn: by tokens for a hosted API, by time for self-hosted GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m3agent.serving.client.messages import Usage

_MILLION = 1_000_000
_SERVER_PRICE = re.compile(r"(?:([1-9][0-9]{0,4})x)?([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars; reasoning is part of the completion."""

    prompt: float = 0.0
    """For a million prompt tokens."""
    completion: float = 0.0
    """For a million completion tokens."""
    cached: float | None = None
    """For a million prompt tokens from the server's cache; None if they cost as much as others."""
    hour: float = 0.0
    """For an hour of a request's time."""
    step: int | None = None
    """Prompt tokens above which all tokens of a request cost `times` as much; None if there is no such
    number.
    """
    times: float = 1.0
    """How many times as much they cost then."""

    def of(self, usage: Usage, seconds: float) -> float | None:
        """Return the price of a turn in dollars.

        Returns:
            Dollars; None if tokens have a price but their number is unknown.
        """
        by_time = self.hour * seconds / 3600
        if not (self.prompt or self.completion or self.cached):
            return by_time
        if usage.prompt is None or usage.completion is None:
            return None
        cached = 0 if self.cached is None else min(usage.cached or 0, usage.prompt)
        dollars = (usage.prompt - cached) * self.prompt + usage.completion * self.completion
        times = self.times if self.step is not None and usage.prompt > self.step else 1.0
        return by_time + times * (dollars + cached * (self.cached or 0.0)) / _MILLION


def listed_prices(model: Mapping[str, Any]) -> Prices | None:
    """Read the prices from a model's entry of /v1/models, in OpenRouter's format.

    OpenRouter gives dollars for one token, as decimal strings.

    Returns:
        The prices; None if there are none, or if they vary (OpenRouter's routers give -1).
    """
    listed = model.get("pricing")
    if not isinstance(listed, Mapping):
        return None
    prompt, completion = _per_million(listed.get("prompt")), _per_million(listed.get("completion"))
    if prompt is None or completion is None:
        return None
    return Prices(prompt, completion, _per_million(listed.get("input_cache_read")))


def server_price(text: str) -> Prices:
    """Parse the price of a self-hosted server.

    A request's time counts in full, even while the server also works for others. The result is therefore an
    upper bound.

    Args:
        text: `8x2.50` (number of GPUs, dollars per GPU-hour) or `20` (dollars per hour).

    Raises:
        ValueError: `text` has another form.
    """
    match = _SERVER_PRICE.fullmatch(text.strip())
    if match is None:
        raise ValueError("give dollars per hour, or GPUs x dollars per GPU-hour, like 8x2.50")
    return Prices(hour=int(match[1] or 1) * float(match[2]))


def _per_million(value: object) -> float | None:
    try:
        dollars = _MILLION * float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return round(dollars, 9) if math.isfinite(dollars) and dollars >= 0 else None
