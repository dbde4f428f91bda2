"""The proxy through which this machine itself reaches the internet, if its user configured one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""The usual variables that name a proxy; programs read them in lower case, too."""


class NextProxy(NamedTuple):
    """A proxy that connects for ours."""

    host: str
    port: int
    credentials: bytes = b""
    """User name and password as `Proxy-Authorization: Basic` needs them; empty if the address has none."""

    @property
    def header(self) -> bytes:
        """The header with the credentials, as a line; empty without them."""
        return b"Proxy-Authorization: Basic %b\r\n" % self.credentials if self.credentials else b""

    def masked(self, data: bytes) -> bytes:
        """Return data of the proxy in which stars replace the credentials: no sandbox may learn them."""
        return data.replace(self.credentials, b"*" * len(self.credentials)) if self.credentials else data

    def withheld(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` may be the beginning of the credentials."""
        longest = min(len(data), len(self.credentials) - 1)
        return next((size for size in range(longest, 0, -1) if data.endswith(self.credentials[:size])), 0)


@dataclass(frozen=True)
class Upstream:
    """The user's proxies."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """The usual variables, in lower case: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`. Only proxies
    that speak plain http are used.
    """

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the proxies that an environment names."""
        values = {name: environment.get(name.lower()) or environment.get(name) for name in PROXY_VARIABLES}
        return cls({name.lower(): value for name, value in values.items() if value})

    def unusable(self) -> list[str]:
        """Return the variables whose proxies cannot be used: not in plain http, or without a valid host and port."""
        return [
            name for name, value in self.variables.items() if name != "no_proxy" and _parts(value) is None
        ]

    def of(self, scheme: str, host: str) -> NextProxy | None:
        """Return the proxy for a host; None to connect directly."""
        if self._is_direct(host):
            return None
        address = self.variables.get(f"{scheme}_proxy") or self.variables.get("all_proxy") or ""
        parts = _parts(address)
        if parts is None or parts.hostname is None:
            return None
        credentials = b""
        if parts.username is not None:
            known = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = base64.b64encode(known.encode())
        return NextProxy(parts.hostname, parts.port or 80, credentials)

    def _is_direct(self, host: str) -> bool:
        """Return whether `no_proxy` names the host, a domain above it, or all hosts."""
        names = [name.strip().lower().lstrip(".") for name in self.variables.get("no_proxy", "").split(",")]
        return "*" in names or any(name and f".{host}".endswith(f".{name}") for name in names)


def _parts(address: str) -> SplitResult | None:
    """Return the parts of a proxy's address; None if it cannot be used."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        return parts if parts.scheme == "http" and parts.hostname and parts.port != 0 else None
    except ValueError:  # such as a port that is no number
        return None
