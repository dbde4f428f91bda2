"""Prepare what all attempts at an issue share: the model server and the packed repository."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from m3agent.agent.context.cache import folder_of
from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.tokenizer.source import chosen_tokenizer
from m3agent.agent.context.types import Context
from m3agent.agent.endpoint.choice import ModelServer
from m3agent.agent.endpoint.disclosure import announce
from m3agent.agent.fix import session_events
from m3agent.agent.fix.context_budget import chosen_budget
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.session.events import EndpointProbed, Event
from m3agent.agent.session.usage import prices_of
from m3agent.agent.settings.settings import Settings
from m3agent.serving.check.prefix_probe import Findings, examine
from m3agent.serving.client.endpoint import Endpoint, probe, unasked
from m3agent.serving.client.models import refuse_unknown_effort
from m3agent.serving.client.prices import Prices
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

    Args:
        request: The fix to prepare.
        server: The model server to use.
        state: Folder for sessions and caches.
        log: Receives the events to log.
        say: Receives notes for the person.

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

    Raises:
        UsageError: There is a cost limit but the prices are unknown, so the limit could not be enforced.
    """
    prices = prices_of(endpoint, settings.server_price)
    if settings.max_cost is not None and prices is None:
        raise UsageError(
            f"--max-cost: the prices of {endpoint.host} are not known; give --server-price for your own "
            "server, or use --max-tokens instead"
        )
    return prices
