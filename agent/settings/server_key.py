"""The keys of model servers: each belongs to the server that it was configured for."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

OPENAI = "https://api.openai.com/v1"
"""The server of a key in OPENAI_API_KEY, unless OPENAI_BASE_URL names another: the rule of OpenAI's own clients."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class ServerKey:
    """A key as the user configured it."""

    text: str = field(repr=False)
    """The key."""
    place: str = "api_key"
    """Where it is configured, for people: a variable, or the path of a settings file."""
    server: str | None = None
    """Address of the server that it was configured for. None if no address was configured: it is then for the server
    that the user names with the command."""

    def belongs_to(self, url: str) -> bool:
        """Return whether the key was configured for the server at `url`: host and port are the same."""
        return self.server is None or _host_and_port(self.server) == _host_and_port(url) is not None

    @property
    def host(self) -> str:
        """The host of its server, for people."""
        address = self.server or ""
        return urlsplit(address).netloc.rpartition("@")[2] if _host_and_port(address) else "no valid address"


def _host_and_port(url: str) -> tuple[str, int] | None:
    """Return None for a text that is not the address of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None
