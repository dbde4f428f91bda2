"""Limits of one session (turns, time, tokens and cost), and what distinguishes it from other attempts at the issue."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from m3agent.agent.session.usage import Totals
from m3agent.serving.client.messages import Turn
from m3agent.serving.client.parameters import Sampling
from m3agent.util.counted import counted

HINTS = (
    "",
    "Begin with a test that fails because of the issue, before you look for its cause.",
    "Do not stop where the wrong value appears: trace it back to its origin, and fix it there.",
    "Before you change anything, think of at least three possible causes, and rule out all but one of them.",
    "Look for code in this repository that does something similar and does it right, and at all callers of what you change.",
)
TEMPERATURES = (1.0, 0.7)
"""The first is MiniMax's temperature for M3. The first attempt uses it, like a fix with a single attempt."""


@dataclass(frozen=True)
class Variation:
    """What distinguishes one attempt from the others."""

    number: int = 1
    """Number of the attempt, from 1."""
    of: int = 1
    """Number of attempts."""
    hint: str = ""
    """Text at the end of the prompt; empty for none."""
    temperature: float = TEMPERATURES[0]
    """Sampling temperature."""
    seed: int | None = None
    """Sampling seed, which only the embedded engine uses. None leaves the choice to the server."""

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of the attempt's requests."""
        return Sampling(temperature=self.temperature, seed=self.seed)


def variations(attempts: int, seed: int | None) -> list[Variation]:
    """Return one variation for each attempt. The first is the same as in a fix with a single attempt."""
    found = [Variation(of=attempts)]
    for index in range(1, attempts):
        hint, temperature = HINTS[index % len(HINTS)], TEMPERATURES[index % len(TEMPERATURES)]
        found.append(Variation(index + 1, attempts, hint, temperature, (seed or 0) + index))
    return found


@dataclass
class RunLimits:
    """The limits of one session, and its usage so far."""

    turns: int
    """Most turns."""
    minutes: float
    """Most wall time, in minutes."""
    tokens: int | None = None
    """Most completion tokens; None means no limit."""
    cost: float | None = None
    """Most cost in US dollars; None means no limit."""
    started: float = field(default_factory=time.monotonic)
    """When the session started, on the monotonic clock."""
    used: Totals = field(default_factory=Totals)
    """What this session has used."""
    together: Totals | None = None
    """What all attempts at one issue have used together. If set, the limits of tokens and cost apply to it."""

    def add(self, turn: Turn, price: float | None) -> None:
        """Count one turn; `price` is in US dollars, None if unknown."""
        self.used.add(turn, price)
        if self.together is not None:
            self.together.add(turn, price)

    @property
    def deadline(self) -> float:
        """When the time limit is reached, on the monotonic clock in seconds."""
        return self.started + self.minutes * 60

    @property
    def seconds(self) -> float:
        """Wall time used, in seconds."""
        return time.monotonic() - self.started

    @property
    def left_tokens(self) -> int | None:
        """The most tokens that one more answer may have; None means no limit."""
        return None if self.tokens is None else max(1, self.tokens - (self._spent.completion or 0))

    @property
    def _spent(self) -> Totals:
        return self.used if self.together is None else self.together

    def reached(self) -> str | None:
        """Return the limit that is reached, in words; None if no limit is reached."""
        if self.used.turns >= self.turns:
            return counted(self.turns, "turn")
        if time.monotonic() >= self.deadline:
            return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'}"
        return self._over_budget()

    @property
    def is_spent(self) -> bool:
        """Whether a limit of tokens or cost is reached, so that not even a summary may be asked for."""
        return self._over_budget() is not None

    def _over_budget(self) -> str | None:
        spent = self._spent
        if self.tokens is not None and (spent.completion or 0) >= self.tokens:
            return f"{self.tokens:,} completion tokens"
        if self.cost is not None and (spent.price or 0.0) >= self.cost:
            return f"${self.cost:.2f}"
        return None
