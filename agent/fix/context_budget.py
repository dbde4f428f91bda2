"""Choose how many tokens of the repository a prompt gets."""

from __future__ import annotations

from typing import NamedTuple

from m3agent.agent.loop.compaction import conversation_room
from m3agent.agent.settings.settings import AUTO_BUDGET, Settings
from m3agent.serving.client.prices import Prices

_TURNS = 15
"""A session has about this many turns; each sends the repository again."""
_DOLLARS, _DOLLARS_SMALL = 0.50, 0.25
"""What sending the repository may cost in a session; the second is for a small issue."""
_SMALL_ISSUE = 1500
"""An issue of at most this many characters is small."""
_SHARE_OF_LIMIT = 4
"""Sending the repository takes at most one part in this many of a limit on cost."""
_LEAST = 20_000


class ContextBudget(NamedTuple):
    """A limit of tokens with its reason."""

    tokens: int | None
    """None for no limit."""
    reason: str = ""
    """A sentence for the person; empty if the limit is the user's."""


def chosen_budget(settings: Settings, window: int | None, prices: Prices | None, issue: str) -> ContextBudget:
    """Return the limit of tokens for the repository.

    It is never more than the window leaves beside the conversation.

    Args:
        settings: The settings; `context_budget` may be `AUTO_BUDGET`.
        window: The model's window; None if unknown.
        prices: The server's prices; None if unknown.
        issue: The text of the issue.
    """
    room = None if window is None else window - conversation_room(window)
    if settings.context_budget is None:
        return ContextBudget(room)
    if settings.context_budget < AUTO_BUDGET:
        return ContextBudget(_lower(room, settings.context_budget))
    if prices is None or not prices.prompt:
        why = (
            "the server's prices are not known" if prices is None else "the server takes no price for tokens"
        )
        return ContextBudget(room, f"context budget: {_limit(room)}, because {why}")
    affordable, why = _affordable(settings, prices, issue)
    if room is not None and room <= affordable:
        return ContextBudget(
            room, f"context budget: {_limit(room)}, because {why}, and that pays for all of it"
        )
    return ContextBudget(affordable, f"context budget: {affordable:,} tokens, because {why}")


def _affordable(settings: Settings, prices: Prices, issue: str) -> tuple[int, str]:
    """Return how many tokens of the repository a session can pay for, and why."""
    small = len(issue) <= _SMALL_ISSUE
    dollars = _DOLLARS_SMALL if small else _DOLLARS
    if settings.max_cost is not None:
        dollars = min(dollars, settings.max_cost / _SHARE_OF_LIMIT)
    repeated = prices.prompt if prices.cached is None else prices.cached
    tokens = int(dollars * 1_000_000 / (prices.prompt + (_TURNS - 1) * repeated))
    cache = (
        "no lower price for its cache is known"
        if prices.cached is None
        else f"${prices.cached:g} from its cache"
    )
    why = (
        f"a million tokens cost ${prices.prompt:g} ({cache}) and {'a small' if small else 'an'} issue may take "
        f"${dollars:.2f} in {_TURNS} turns for it"
    )
    return max(_LEAST, tokens // 1000 * 1000), why


def _lower(room: int | None, budget: int) -> int:
    return budget if room is None else min(room, budget)


def _limit(room: int | None) -> str:
    return "no limit" if room is None else f"the {room:,} tokens that the window leaves"
