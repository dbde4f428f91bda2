"""Decide which model server a command talks to, and which key it gets. No other code decides it.

The first of these is used:

1. the endpoint or the engine `embedded` that the settings name (a flag overrides the other layers; see
   `agent/settings`),
2. the newest server of `m3agent serve` that runs here and is ready,
3. the engine `embedded`.

A server gets a key only if it was configured for that server, and over plain http only with the user's consent.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from m3agent.agent.settings.server_key import OPENAI, ServerKey
from m3agent.agent.settings.settings import Settings
from m3agent.serving.client.http import host_of, is_local
from m3agent.serving.launch.record import Phase, ServerRecord, key_of, live_servers
from m3agent.util.errors import ServerFault, UsageError

Source: TypeAlias = Literal["named", "running", "embedded"]
"""Where the server comes from: the settings, `m3agent serve`, or the command itself."""

_Running: TypeAlias = tuple[Path, ServerRecord]
"""The folder and the record of a server that runs here."""


@dataclass(frozen=True)
class ModelServer:
    """A server to talk to."""

    url: str
    key: str | None = field(repr=False)
    source: Source
    description: str
    """The choice in words, for people."""
    record: ServerRecord | None = None
    """Its record, if `m3agent serve` runs it here and the settings do not name it."""
    notice: str = ""
    """A sentence for people about a key that this server does not get, or an empty text."""


@dataclass(frozen=True)
class EmbeddedEngine:
    """The engine `embedded`, which the command must start itself (see `opened`)."""

    description: ClassVar[str] = (
        "embedded: repairs what the failing tests show; the issue's text is only a hint; no language model"
    )
    candidates: int | None = None
    """The most changes that it tries; None for its own limit."""
    seed: int = 0
    """The seed of its search."""


EndpointChoice: TypeAlias = ModelServer | EmbeddedEngine


def choose_endpoint(settings: Settings, state: Path) -> EndpointChoice:
    """Choose what a fix talks to. Blocking.

    Raises:
        ServerFault: A server runs here, but none is ready.
        UsageError: A setting of the embedded engine's search is given, but another server was chosen, or the key may
            not go to the server (see `key_for`).
    """
    choice = _choose(settings, live_servers(state))
    if isinstance(choice, ModelServer):
        _refuse_search_settings(settings, choice)
    return choice


def choose_model_server(settings: Settings, state: Path) -> ModelServer | None:
    """Choose a server for a task that needs a language model, such as tokenizing. Blocking.

    Running servers of the engine `embedded` are ignored.

    Returns the server; None if the choice is the engine `embedded`.

    Raises:
        ServerFault: A server runs here, but none is ready.
        UsageError: The key may not go to the server (see `key_for`).
    """
    running = [server for server in live_servers(state) if server[1].engine != "embedded"]
    choice = _choose(settings, running)
    return choice if isinstance(choice, ModelServer) else None


def required_model_server(settings: Settings, state: Path) -> ModelServer:
    """Choose a server as `choose_model_server` does. Raises UsageError if no model server is named or runs here."""
    if (server := choose_model_server(settings, state)) is not None:
        return server
    raise UsageError(
        "No model server runs here, and the embedded engine is no language model: name a server with --endpoint, or "
        "start one with m3agent serve."
    )


@contextlib.asynccontextmanager
async def opened(choice: EndpointChoice) -> AsyncIterator[ModelServer]:
    """Yield the chosen server. The embedded engine is started first, and stopped when the context ends."""
    if isinstance(choice, ModelServer):
        yield choice
        return
    from m3agent.serving.embedded.server import embedded_server

    async with embedded_server(candidates=choice.candidates, seed=choice.seed) as url:
        yield ModelServer(url, None, "embedded", choice.description)


def _choose(settings: Settings, running: Sequence[_Running]) -> EndpointChoice:
    """Choose among the settings' server, the running servers (newest first) and the embedded engine."""
    if settings.endpoint is not None:
        url = settings.endpoint
        key = _key_at(url, running) or key_for(settings, url)
        notice = "" if key else withheld(settings, url)
        return ModelServer(url, key, "named", f"{url} (named)", notice=notice)
    if settings.engine is None and running:
        folder, record = next((one for one in running if one[1].phase is Phase.READY), running[0])
        if record.phase is not Phase.READY:
            raise _not_ready(record)
        description = f"{record.url} (running here: {_described(record)})"
        key = key_of(folder) or key_for(settings, record.url)
        return ModelServer(record.url, key, "running", description, record)
    return EmbeddedEngine(settings.candidates, settings.seed or 0)


def _key_at(url: str, running: Sequence[_Running]) -> str | None:
    """Return the key of the running server with this address; None if there is no such server.

    A resumed session names the server that it used before.
    """
    return next((key_of(folder) for folder, record in running if record.url == url), None)


def _described(record: ServerRecord) -> str:
    """Return the server's engine and its known problem, if there is one."""
    if record.wire_ok is False:
        return f"{record.engine}, which failed its wire check"
    if record.random_weights:
        return f"{record.engine} with random weights"
    return f"{record.engine}, which failed its model check" if record.model_ok is False else record.engine


def _not_ready(record: ServerRecord) -> ServerFault:
    return ServerFault(
        f"the m3agent server at {record.url} is {record.phase.value}: wait until `m3agent serve status` says ready, or "
        "name another with --endpoint"
    )


def _refuse_search_settings(settings: Settings, server: ModelServer) -> None:
    given = [name for name in ("seed", "candidates") if getattr(settings, name) is not None]
    if given:
        where = f"{server.url}, which is running" if server.source == "running" else server.url
        raise UsageError(
            f"--{given[0]} is only for the embedded engine, not for the server at {where}: add --engine "
            "embedded, or leave it out"
        )


def key_for(settings: Settings, url: str) -> str | None:
    """Return the key to send to the server at `url`, or None.

    Raises UsageError: The key would go to another machine over plain http, and the user did not allow it.
    """
    key = next((one for one in settings.keys if one.belongs_to(url)), None)
    if key is None:
        return None
    if urlsplit(url).scheme == "http" and not is_local(url) and not _allowed(settings, url):
        host = host_of(url)
        raise UsageError(
            f"the key of {key.place} would go to {host} over plain http, where others in the network can read it: "
            f"give an https address, leave the key out, or allow it with key_over_http = {host!r} in your settings "
            f"file (or M3AGENT_KEY_OVER_HTTP={host})"
        )
    return key.text


def withheld(settings: Settings, url: str) -> str:
    """Return the sentence about a key that the server at `url` does not get because it belongs to another one.

    Returns the sentence for people; "" if there is nothing to say. Nobody expects OpenAI's key to go to a
    server on this machine, so that is not said.
    """
    others: list[ServerKey] = [key for key in settings.keys if not is_local(url) or key.server != OPENAI]
    if not others or any(key.belongs_to(url) for key in settings.keys):
        return ""
    key = others[0]
    return (
        f"the key of {key.place} is for {key.host} and does not go to {host_of(url)}; if it should, set "
        f"M3AGENT_API_KEY and M3AGENT_ENDPOINT={url} together"
    )


def _allowed(settings: Settings, url: str) -> bool:
    entries = {entry.strip().lower() for entry in (settings.key_over_http or "").split(",")}
    parts = urlsplit(url)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return not entries.isdisjoint({name, f"{name}:{parts.port or 80}"})
