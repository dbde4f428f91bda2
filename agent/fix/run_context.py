"""Prepare what all attempts at an issue share: the model server, and as much of the repository as the prompt gets.

A fix begins with m3agent's rules, its tools and the whole repository. `warm` lets the server read them beforehand, so that they are
in its prefix cache: then the first answer of a fix comes in seconds also if the repository has half a million tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from m3agent.agent.context.cache import folder_of
from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.rules import OVER_BUDGET
from m3agent.agent.context.tokenizer.source import chosen_tokenizer
from m3agent.agent.context.types import Context
from m3agent.agent.endpoint.choice import ModelServer
from m3agent.agent.endpoint.disclosure import announce
from m3agent.agent.fix import session_events
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.issue.load import Issue
from m3agent.agent.loop.compaction import conversation_room
from m3agent.agent.loop.prompt import SYSTEM
from m3agent.agent.repo.repository import Repository
from m3agent.agent.session.events import EndpointProbed, Event
from m3agent.agent.session.usage import prices_of
from m3agent.agent.settings.settings import AUTO_BUDGET, Settings
from m3agent.serving.check.prefix_probe import Findings, examine
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint, probe, unasked
from m3agent.serving.client.messages import Turn
from m3agent.serving.client.models import refuse_unknown_effort
from m3agent.serving.client.prices import Prices
from m3agent.tools.registry import own_schemas
from m3agent.util.concurrency import all_of
from m3agent.util.errors import UsageError


@dataclass(frozen=True)
class RunContext:
    """What all attempts at an issue share."""

    endpoint: Endpoint
    """The model server, as probed."""
    key: str | None = field(repr=False)
    """API key of the server; None without one."""
    prices: Prices | None
    """What the server costs; None if unknown."""
    context: Context | None
    """The repository as text; None if the conversation contains it already (a resumed session)."""
    dirty: int = 0
    """Number of files that differ from the commit."""
    not_importable: Sequence[str] = ()
    """Sentences that say which test files cannot be imported in the sandbox, with the errors."""
    suites: str = ""
    """The repository's tests (`m3agent.tools.runners.suites.described`); empty if none are recognised."""
    submodules: str = ""
    """What the model is told about the repository's submodules; empty if it has none."""
    checks: Sequence[str] = ()
    """Commands that judge the patch besides the tests."""
    ranks: int = 1
    """Number of the server's data-parallel ranks."""


async def prepare(
    request: FixRequest,
    server: ModelServer,
    state: Path,
    log: Callable[[Event], None],
    say: Callable[[str], None],
) -> RunContext:
    """Probe the server and pack the repository for it.

    Raises:
        UsageError: The repository or the settings do not allow the run, such as a price limit without known prices.
        ModelServerError: The server did not answer as expected.
    """
    settings, started = request.settings, time.monotonic()
    if server.notice:
        say(server.notice)
    if not settings.yes:  # before the first request, which has the key
        about = "question" if request.answer == "only" else "issue"
        announce(server.url, state, say, f"the repository and the {about} go", key=server.key)
    endpoint = await _endpoint(server, settings)
    prices = _prices(endpoint, settings)
    budget = chosen_budget(settings, endpoint.max_model_len, prices, request.issue.text)
    if budget.reason and request.resume is None:
        say(budget.reason)
    context, findings = await all_of(
        _pack(request, endpoint, server.key, state, log, budget.tokens),
        examine(endpoint, api_key=server.key) if settings.probe else _nothing_found(),
    )
    seconds = round(time.monotonic() - started, 3)
    log(EndpointProbed.of(endpoint, findings, seconds=seconds))
    tokens = context.tokens if context is not None else 0
    for advice in findings.advice(endpoint, tokens):
        say(advice)
    if prices is not None and prices.step is not None and tokens > prices.step:
        say(
            f"The repository alone has {tokens:,} tokens. Above {prices.step:,}, a request costs {prices.times:g} times as much: "
            "lower --context-budget to stay below."
        )
    return RunContext(endpoint, server.key, prices, context, ranks=findings.ranks)


async def _endpoint(server: ModelServer, settings: Settings) -> Endpoint:
    """Return what is known about the server.

    Raises:
        UsageError: The server may not be asked, and no model is named; or the model lacks a chosen level of effort.
        ModelServerError: The server did not answer as expected.
    """
    if settings.probe:
        endpoint = await probe(server.url, api_key=server.key, model=settings.model)
    elif settings.model is None:
        raise UsageError("--no-probe: the server is not asked for its model; name it with --model")
    else:
        endpoint = unasked(server.url, settings.model)
    try:
        refuse_unknown_effort(endpoint.model, settings.effort, settings.thinking)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return replace(endpoint, effort=settings.effort)


async def _nothing_found() -> Findings:
    return Findings()


async def _pack(
    request: FixRequest,
    endpoint: Endpoint,
    key: str | None,
    state: Path,
    log: Callable[[Event], None],
    budget: int | None,
) -> Context | None:
    """Pack the repository within the budget; return None if the conversation contains it already."""
    if request.resume is not None:
        return None
    settings, checkout = request.settings, Checkout.of(request.repository)
    started = time.monotonic()

    def work() -> Context:
        options = PackOptions(
            budget=budget,
            tokenizer=chosen_tokenizer(
                settings, str(state), settings.model or endpoint.model, endpoint=endpoint.url, api_key=key
            ),
            cache=folder_of(str(state), checkout.git_dir),
            issue=request.issue.text,
            frozen=settings.prefix == "frozen",
        )
        return pack(checkout, options)

    context = await asyncio.to_thread(work)
    log(session_events.context_packed(context, time.monotonic() - started))
    return context


def _prices(endpoint: Endpoint, settings: Settings) -> Prices | None:
    """Return the server's prices; None if they are not known.

    Raises UsageError: There is a cost limit but the prices are unknown, so the limit could not be enforced.
    """
    prices = prices_of(endpoint, settings.server_price)
    if settings.max_cost is not None and prices is None:
        raise UsageError(
            f"--max-cost: the prices of {endpoint.host} are not known; give --server-price for your own "
            "server, or use --max-tokens instead"
        )
    return prices


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
    """
    room = None if window is None else window - conversation_room(window)
    if settings.context_budget is None:
        return ContextBudget(room)
    if settings.context_budget < AUTO_BUDGET:
        wanted = settings.context_budget
        return ContextBudget(wanted if room is None else min(room, wanted))
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


def _limit(room: int | None) -> str:
    return "no limit" if room is None else f"the {room:,} tokens that the window leaves"


NO_ISSUE = Issue("", "", "", "")
WHOLE = ("whole", "changes")
"""Parts of files that do not depend on an issue."""


@dataclass(frozen=True)
class Warmed:
    """What the server read."""

    context: Context
    """The packed repository."""
    turn: Turn
    """The answer to the request, of one token."""


async def warm(
    repository: Repository, settings: Settings, server: ModelServer, state: Path, say: Callable[[str], None]
) -> Warmed:
    """Let a server read the beginning that all fixes at this commit share.

    Args:
        settings: The settings in force; they must be those of the fixes.

    Raises:
        UsageError: The repository does not fit into the prompt whole, so what a fix shows depends on its issue.
        ModelServerError: The server did not answer as expected.
    """
    request = FixRequest(NO_ISSUE, repository, settings)
    shared = await prepare(request, server, state, lambda _: None, say)
    context = shared.context
    assert context is not None, "only a resumed session has none"
    partial = sum(file.part not in WHOLE for file in context.files)
    left_out = sum(reason == OVER_BUDGET for _, reason in context.dropped)
    if partial or left_out:
        raise UsageError(
            f"{partial + left_out:,} of {len(context.files) + left_out:,} files do not fit into the prompt whole: what a fix shows of them "
            "depends on its issue, so nothing can be read beforehand. A larger --context-budget or window helps."
        )
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": context.text}]
    async with Client(shared.endpoint, api_key=shared.key) as client:
        answer = client.complete(messages, own_schemas(), max_tokens=1, thinking=settings.thinking)
        async with contextlib.aclosing(answer):
            async for item in answer:
                if isinstance(item, Turn):
                    return Warmed(context, item)
    raise AssertionError("a client's answer ends in a Turn")
