"""Choose and probe the server that a command of `m3agent serve` looks at, in the same way as for a fix."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.agent.endpoint.choice import choose_model_server
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.settings import Settings, state_dir
from m3agent.serving.client.endpoint import Endpoint, probe
from m3agent.serving.launch.record import ServerRecord, live_servers
from m3agent.util.errors import UsageError


@dataclass(frozen=True)
class ChosenServer:
    """A server that answered."""

    endpoint: Endpoint
    """What the server says about itself."""
    key: str | None = field(repr=False)
    record: ServerRecord | None
    """Its record, or None; see `ModelServer`."""
    settings: Settings


async def chosen_server(
    url: str | None, model: str | None, *, embedded: str, say: Callable[[str], None]
) -> ChosenServer:
    """Choose the server and ask it which model and engine it has.

    Args:
        embedded: Why the command cannot use the embedded engine, as a clause for an error.

    Raises:
        UsageError: There is no server, or only the embedded engine; or the key may not go to the server.
        ServerFault: A server runs here, but none is ready.
        ModelServerError: The server does not answer, or refuses.
    """
    settings = load_settings(Path(), {"endpoint": url, "model": model}, os.environ).settings
    server = await asyncio.to_thread(choose_model_server, settings, state_dir(os.environ))
    if server is None and settings.engine is not None:
        raise UsageError(
            f"the settings choose the embedded engine, {embedded}: give a server with --endpoint"
        )
    if server is None:
        running = live_servers(state_dir(os.environ))  # of the embedded engine, or there would be a choice
        found = (
            f"only the embedded engine is running here, {embedded}"
            if running
            else "no server is running here"
        )
        raise UsageError(f"{found}: start one with `m3agent serve`, or name one with --endpoint")
    if server.notice:
        say(server.notice)
    endpoint = await probe(server.url, api_key=server.key, model=settings.model)
    if endpoint.flavour == "embedded":
        raise UsageError(
            f"{endpoint.url} is the embedded engine, {embedded}: name another server with --endpoint"
        )
    return ChosenServer(endpoint, server.key, server.record, settings)
