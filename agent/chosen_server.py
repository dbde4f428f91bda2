"""Which server a command looks at: the one named, the one that was started here last, or the one in the settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.errors import ServerFault, UsageError
from m3agent.agent.settings import Settings, state_dir
from m3agent.agent.settings_loader import load_settings
from m3agent.serving.endpoint import Endpoint, probe
from m3agent.serving.launch.record import Phase, ServerRecord, key_of, live_servers


@dataclass(frozen=True)
class ChosenServer:
    """A server that answered, the key that it is asked with, and its record if it is one of ours."""

    endpoint: Endpoint
    key: str | None
    record: ServerRecord | None
    settings: Settings


async def chosen_server(url: str | None, model: str | None, *, embedded: str) -> ChosenServer:
    """Find it and ask what it is.

    embedded: why the embedded engine is no use here. Raises UsageError where there is none, or only that one; ServerFault
    where it is not ready; the errors of `serving.errors` where it does not answer.
    """
    settings = load_settings(Path(), {"endpoint": url, "model": model}, os.environ).settings
    key, record = settings.key, None
    if url is None:
        ours = live_servers(state_dir(os.environ))
        for folder, found in sorted(ours, key=lambda one: one[1].engine == "embedded"):
            if found.phase is not Phase.READY:
                raise not_ready(found)
            url, key, record = found.url, key_of(folder) or key, found
            break
    url = url or settings.endpoint
    if url is None:
        raise UsageError(
            "no server is running here: start one with `m3agent serve`, or name one with --endpoint"
        )
    endpoint = await probe(url, api_key=key, model=settings.model)
    if endpoint.flavour == "embedded":
        raise UsageError(
            f"{endpoint.url} is the embedded engine, {embedded}: name another server with --endpoint"
        )
    return ChosenServer(endpoint, key, record, settings)


def not_ready(record: ServerRecord) -> ServerFault:
    """What to say of a server of ours that does not answer yet, or not now."""
    return ServerFault(
        f"the server of ours at {record.url} is {record.phase.value}: wait until `m3agent serve status` says ready, or "
        "name another with --endpoint"
    )
