"""What all attempts at an issue have in common: the server, the packed repository, how sandboxes are made."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent import session_events
from m3agent.agent.accounting import prices_of
from m3agent.agent.chosen_server import not_ready
from m3agent.agent.context.cache import folder_of
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packed import Context
from m3agent.agent.context.packing import PackOptions
from m3agent.agent.context.tokenizer.source import chosen_tokenizer
from m3agent.agent.errors import UsageError
from m3agent.agent.events import Event
from m3agent.agent.hosts import announce
from m3agent.agent.request import FixRequest
from m3agent.agent.settings import Settings
from m3agent.agent.together import all_of
from m3agent.agent.window import conversation_room
from m3agent.serving.endpoint import Endpoint, probe
from m3agent.serving.examine import examine
from m3agent.serving.launch.record import Phase, ServerRecord, key_of, live_servers
from m3agent.serving.prices import Prices

EMBEDDED = "embedded: search-based repair judged by the tests, no language model"


@dataclass(frozen=True)
class Ground:
    """The server, what it costs, and the repository as text; context: None where the conversation has it already."""

    endpoint: Endpoint
    prices: Prices | None
    context: Context | None


@dataclass(frozen=True)
class Found:
    """An address to talk to, how it was chosen, and the key of a server that we started ourselves; None: none."""

    url: str
    described: str
    key: str | None = None


async def find_endpoint(settings: Settings, state: Path, stack: contextlib.AsyncExitStack) -> Found:
    """The server to talk to: named, a running server of ours, else the embedded engine, which runs until the stack is
    closed.

    Raises:
        UsageError: a setting is given that only an embedded engine of this fix's own can heed.
        ServerFault: our own server is not ready.
    """
    if settings.endpoint is not None:
        _refuse_search_settings(settings, settings.endpoint)
        return Found(settings.endpoint, f"{settings.endpoint} (named)")
    if settings.engine is None:
        servers = await asyncio.to_thread(live_servers, state)
        ready = [server for server in servers if server[1].phase is Phase.READY]
        for folder, record in ready:
            _refuse_search_settings(settings, f"{record.url}, which is running")
            return Found(record.url, f"{record.url} (running here: {_described(record)})", key_of(folder))
        for _, record in servers:
            raise not_ready(record)
    from m3agent.serving.embedded.repair import Budget
    from m3agent.serving.embedded.server import EmbeddedServer

    budget = Budget.chosen(settings.candidates, settings.seed or 0)
    server = await stack.enter_async_context(EmbeddedServer(budget=budget))
    return Found(server.url, EMBEDDED)


def _described(record: ServerRecord) -> str:
    """Its engine, and what there is against it."""
    if record.wire_ok is False:
        return f"{record.engine}, which failed its wire check"
    if record.random_weights:
        return f"{record.engine} with random weights"
    return f"{record.engine}, which failed its model check" if record.model_ok is False else record.engine


def _refuse_search_settings(settings: Settings, where: str) -> None:
    given = [name for name in ("seed", "candidates") if getattr(settings, name) is not None]
    if given:
        raise UsageError(
            f"--{given[0]} steers the embedded engine, not the server at {where}: add --engine embedded, or leave it out"
        )


async def prepare(
    request: FixRequest,
    url: str,
    state: Path,
    log: Callable[[Event], None],
    say: Callable[[str], None],
) -> Ground:
    """Probe the server and pack the repository for it.

    Raises:
        UsageError, ModelServerError: what is wrong with either.
    """
    settings, started = request.settings, time.monotonic()
    endpoint = await probe(url, api_key=settings.key, model=settings.model)
    prices = _check_host(endpoint, settings, state, say)
    context, findings = await all_of(
        _pack(request, endpoint, state, log), examine(endpoint, api_key=settings.key)
    )
    log(session_events.endpoint_probed(endpoint, findings, time.monotonic() - started))
    for advice in findings.advice(endpoint, context.tokens if context is not None else 0):
        say(advice)
    return Ground(endpoint, prices, context)


async def _pack(
    request: FixRequest, endpoint: Endpoint, state: Path, log: Callable[[Event], None]
) -> Context | None:
    """The repository as text, in what the model's window leaves for it; None where the conversation has it already."""
    if request.resume is not None:
        return None
    settings, checkout = request.settings, request.repository.checkout
    started = time.monotonic()

    def work() -> Context:
        options = PackOptions(
            budget=_budget(settings, endpoint),
            tokenizer=chosen_tokenizer(settings, str(state), endpoint.url, settings.model or endpoint.model),
            cache=folder_of(str(state), checkout.git_dir),
            issue=request.issue.text,
            frozen=settings.prefix == "frozen",
        )
        return pack(checkout, options)

    context = await asyncio.to_thread(work)
    log(session_events.context_packed(context, time.monotonic() - started))
    return context


def _budget(settings: Settings, endpoint: Endpoint) -> int | None:
    """Tokens for the repository: as set, and never more than the window leaves beside the conversation."""
    window = endpoint.max_model_len
    if window is None:
        return settings.context_budget
    room = window - conversation_room(window)
    return room if settings.context_budget is None else min(room, settings.context_budget)


def _check_host(
    endpoint: Endpoint, settings: Settings, state: Path, say: Callable[[str], None]
) -> Prices | None:
    """Before anything goes to a host for the first time: say which; and refuse a price limit nobody can watch."""
    prices = prices_of(endpoint, settings.server_price)
    if settings.max_cost is not None and prices is None:
        raise UsageError(
            f"--max-cost: the prices of {endpoint.host} are not known; give --server-price for a server of your own, "
            "or use --max-tokens instead"
        )
    if not settings.yes:
        announce(endpoint.url, state, say, "the repository and the issue go")
    return prices
