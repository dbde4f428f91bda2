"""What one session may use: turns, time, tokens, money."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from m3agent.serving.chat import Usage

PRICES = {"api.minimax.io": (0.60, 2.40), "api.minimaxi.com": (0.60, 2.40)}
"""Dollars per million prompt and completion tokens, by host: MiniMax's list prices of June 2026, not the promotion's
half. Hosts that are not here have no known price."""


def price_of(url: str, usage: Usage) -> float | None:
    """What a turn cost in dollars; None where no price or no count is known."""
    rates = PRICES.get(urlsplit(url).hostname or "")
    if rates is None or usage.prompt is None or usage.completion is None:
        return None
    return (usage.prompt * rates[0] + usage.completion * rates[1]) / 1e6


@dataclass
class Limits:
    """The limits and what has been used of them. minutes are of wall time, tokens are completion tokens."""

    turns: int
    minutes: float
    tokens: int | None = None
    cost: float | None = None
    started: float = field(default_factory=time.monotonic)
    used_turns: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    price: float | None = None

    @property
    def deadline(self) -> float:
        """When the time is over, on the monotonic clock."""
        return self.started + self.minutes * 60

    @property
    def seconds(self) -> float:
        """Wall time used."""
        return time.monotonic() - self.started

    def add(self, usage: Usage, price: float | None) -> None:
        """Account one turn; an unknown count leaves the sum as it is."""
        self.used_turns += 1
        self.prompt_tokens = plus(self.prompt_tokens, usage.prompt)
        self.cached_tokens = plus(self.cached_tokens, usage.cached)
        self.completion_tokens = plus(self.completion_tokens, usage.completion)
        if price is not None:
            self.price = (self.price or 0.0) + price

    def reached(self) -> str | None:
        """Which limit is reached, in words; None while none is."""
        if self.used_turns >= self.turns:
            return f"{self.turns} turns"
        if time.monotonic() >= self.deadline:
            return f"{self.minutes:g} minutes"
        if self.tokens is not None and (self.completion_tokens or 0) >= self.tokens:
            return f"{self.tokens:,} completion tokens"
        if self.cost is not None and (self.price or 0.0) >= self.cost:
            return f"${self.cost:.2f}"
        return None


def plus(total: int | None, more: int | None) -> int | None:
    """A sum in which unknown adds nothing, and is only unknown while nothing is known."""
    return total if more is None else (total or 0) + more
