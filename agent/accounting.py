"""What a session used: tokens, how many of them came from the server's cache, speed, money. Unknown is not zero."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from m3agent.serving.chat import Turn, Usage
from m3agent.serving.endpoint import Endpoint
from m3agent.serving.prices import HOSTED, Prices, server_price


def prices_of(endpoint: Endpoint, own: str | None) -> Prices | None:
    """What turns cost there: as set for a server of one's own, as it lists them, as we know the host's; else None.

    `own` is the setting `server_price`. The embedded engine costs nothing.
    """
    if own is not None:
        return server_price(own)
    if endpoint.flavour == "embedded":
        return Prices()
    return endpoint.prices or HOSTED.get(urlsplit(endpoint.url).hostname or "")


def cached_share(usage: Usage) -> float | None:
    """The part of the prompt that the server found in its prefix cache, 0 to 1."""
    return usage.cached / usage.prompt if usage.cached is not None and usage.prompt else None


def tokens_per_second(turn: Turn) -> float | None:
    """How fast the answer came once its first token was there."""
    tokens, first = turn.usage.completion, turn.first_token_seconds
    if tokens is None or tokens < 2 or first is None or turn.seconds <= first:
        return None
    return (tokens - 1) / (turn.seconds - first)


@dataclass
class Totals:
    """Sums over the turns of a session. A count that no turn knew is None; else it leaves out those that did not know."""

    turns: int = 0
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    price: float | None = None
    _cacheable: int = 0  # prompt tokens of the turns that said how many were cached
    _timed_tokens: int = 0
    _timed_seconds: float = 0.0

    def add(self, turn: Turn, price: float | None) -> None:
        """Account one turn."""
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
        """The part of all prompts that came from the cache, 0 to 1, over the turns that say so."""
        return (self.cached or 0) / self._cacheable if self._cacheable else None

    @property
    def tokens_per_second(self) -> float | None:
        """Mean speed of the answers, first tokens left out."""
        return self._timed_tokens / self._timed_seconds if self._timed_seconds else None


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
