"""What one session may use: turns, time, tokens, money."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from m3agent.agent.accounting import Totals


@dataclass
class Limits:
    """The limits, and what has been used of them. minutes are of wall time, tokens are completion tokens."""

    turns: int
    minutes: float
    tokens: int | None = None
    cost: float | None = None
    started: float = field(default_factory=time.monotonic)
    used: Totals = field(default_factory=Totals)

    @property
    def deadline(self) -> float:
        """When the time is over, on the monotonic clock."""
        return self.started + self.minutes * 60

    @property
    def seconds(self) -> float:
        """Wall time used."""
        return time.monotonic() - self.started

    def reached(self) -> str | None:
        """Which limit is reached, in words; None while none is."""
        if self.used.turns >= self.turns:
            return f"{self.turns} turns"
        if time.monotonic() >= self.deadline:
            return f"{self.minutes:g} minutes"
        if self.tokens is not None and (self.used.completion or 0) >= self.tokens:
            return f"{self.tokens:,} completion tokens"
        if self.cost is not None and (self.used.price or 0.0) >= self.cost:
            return f"${self.cost:.2f}"
        return None
