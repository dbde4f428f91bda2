"""Sum up what a session used: tokens, prefix-cache hits, speed, money. An unknown value is None, not zero."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import Turn, Usage
from m3agent.serving.client.prices import Prices, server_price


def prices_of(endpoint: Endpoint, own: str | None) -> Prices | None:
    """Return the prices of turns on a server; None if they are unknown.

    The first of these is used: the setting, zero for the embedded engine, the prices that the server lists,
    the known prices of a model that MiniMax itself hosts.
    """
    if own is not None:
        return server_price(own)
    if endpoint.flavour == "embedded":
        return Prices()
    return endpoint.prices or (None if (known := endpoint.known) is None else known.prices)


def cached_share(usage: Usage) -> float | None:
    """Return the share of the prompt that the server found in its prefix cache, 0 to 1; None if unknown."""
    return usage.cached / usage.prompt if usage.cached is not None and usage.prompt else None


LEAST_STREAM = 0.02
"""Fewest seconds from the first token to the last. In less time, an answer was not made token by token."""


def tokens_per_second(turn: Turn) -> float | None:
    """Return the speed of an answer after its first token; None if unknown, or if the answer came in one piece."""
    tokens, first = turn.usage.completion, turn.first_token_seconds
    if tokens is None or tokens < 2 or first is None or turn.seconds - first < LEAST_STREAM:
        return None
    return (tokens - 1) / (turn.seconds - first)


@dataclass
class Totals:
    """Sums over the turns of a session.

    A count is None if no turn reported it. Otherwise turns that did not report it are left out of the sum.
    """

    turns: int = 0
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    price: float | None = None
    _cacheable: int = 0  # prompt tokens of the turns that report cached tokens
    _timed_tokens: int = 0
    _timed_seconds: float = 0.0

    def add(self, turn: Turn, price: float | None) -> None:
        """Add one turn."""
        usage = turn.usage
        self.turns += 1
        self.prompt = _plus(self.prompt, usage.prompt)
        self.cached = _plus(self.cached, usage.cached)
        self.completion = _plus(self.completion, usage.completion)
        self.reasoning = _plus(self.reasoning, usage.reasoning)
        if price is not None:
            self.price = (self.price or 0.0) + price
        if cached_share(usage) is not None:
            self._cacheable += usage.prompt or 0
        if speed := tokens_per_second(turn):
            tokens = (usage.completion or 0) - 1
            self._timed_tokens += tokens
            self._timed_seconds += tokens / speed

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens from the prefix cache, 0 to 1, over the turns that report it."""
        return (self.cached or 0) / self._cacheable if self._cacheable else None

    @property
    def tokens_per_second(self) -> float | None:
        """The mean speed of the answers, without their first tokens."""
        return self._timed_tokens / self._timed_seconds if self._timed_seconds else None


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
