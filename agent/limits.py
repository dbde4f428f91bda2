"""What one session may use: turns, time, tokens, money."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from m3agent.agent.accounting import Totals
from m3agent.serving.chat import Turn


@dataclass
class RunLimits:
    """The limits, and what has been used of them. minutes are of wall time, tokens are completion tokens.

    together: what all attempts at one issue have used, to which the limits of tokens and cost apply.
    """

    turns: int
    minutes: float
    tokens: int | None = None
    cost: float | None = None
    started: float = field(default_factory=time.monotonic)
    used: Totals = field(default_factory=Totals)
    together: Totals | None = None

    def add(self, turn: Turn, price: float | None) -> None:
        """Account one turn; price in dollars, where it is known."""
        self.used.add(turn, price)
        if self.together is not None:
            self.together.add(turn, price)

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
        spent = self.used if self.together is None else self.together
        if self.tokens is not None and (spent.completion or 0) >= self.tokens:
            return f"{self.tokens:,} completion tokens"
        if self.cost is not None and (spent.price or 0.0) >= self.cost:
            return f"${self.cost:.2f}"
        return None
