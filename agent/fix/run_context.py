"""Prepare what all attempts at an issue share: the model server and the packed repository."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.loop.compaction import conversation_room
from m3agent.agent.session.events import EndpointProbed, Event
from m3agent.agent.session.usage import prices_of
from m3agent.agent.settings.settings import Settings
from m3agent.serving.check.prefix_probe import Findings, examine
from m3agent.serving.client.endpoint import Endpoint, probe, unasked
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
    """The repository's tests, if they are not only Python's (`m3agent.tools.runners.suites.described`)."""
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
    context, findings = await all_of(
        _pack(request, endpoint, server.key, state, log),
        examine(endpoint, api_key=server.key) if settings.probe else _nothing_found(),
    )
    seconds = round(time.monotonic() - started, 3)
    log(EndpointProbed.of(endpoint, findings, seconds=seconds))
    for advice in findings.advice(endpoint, context.tokens if context is not None else 0):
        say(advice)
    return RunContext(endpoint, server.key, prices, context, ranks=findings.ranks)


async def _endpoint(server: ModelServer, settings: Settings) -> Endpoint:
    """Return what is known about the server.

    Raises:
        UsageError: The server may not be asked, and no model is named.
        ModelServerError: The server did not answer as expected.
    """
    if settings.probe:
        return await probe(server.url, api_key=server.key, model=settings.model)
    if settings.model is None:
        raise UsageError("--no-probe: the server is not asked for its model; name it with --model")
    return unasked(server.url, settings.model)


async def _nothing_found() -> Findings:
    return Findings()


async def _pack(
    request: FixRequest, endpoint: Endpoint, key: str | None, state: Path, log: Callable[[Event], None]
) -> Context | None:
    """Pack the repository within the model's window; return None if the conversation contains it already."""
    if request.resume is not None:
        return None
    settings, checkout = request.settings, Checkout.of(request.repository)
    started = time.monotonic()

    def work() -> Context:
        options = PackOptions(
            budget=_budget(settings, endpoint),
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


def _budget(settings: Settings, endpoint: Endpoint) -> int | None:
    """Return the token budget for the repository.

    It is the configured budget, limited to what the window leaves beside the conversation. None means no limit.
    """
    window = endpoint.max_model_len
    if window is None:
        return settings.context_budget
    room = window - conversation_room(window)
    return room if settings.context_budget is None else min(room, settings.context_budget)


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
