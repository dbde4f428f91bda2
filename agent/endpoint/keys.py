"""Decide which key a model server gets. No other code decides it.

A server gets a key only if it was configured for that server, and over plain http only with the user's consent.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from m3agent.agent.settings.server_key import OPENAI, ServerKey
from m3agent.agent.settings.settings import Settings
from m3agent.serving.client.http import host_of, is_local
from m3agent.util.errors import UsageError


def key_for(settings: Settings, url: str) -> str | None:
    """Return the key to send to the server at `url`, or None.

    Raises:
        UsageError: The key would go to another machine over plain http, and the user did not allow it.
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

    Returns:
        The sentence for people; "" if there is nothing to say. Nobody expects OpenAI's key to go to a server on this
        machine, so that is not said.
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
