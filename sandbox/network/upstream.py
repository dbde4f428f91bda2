"""The proxy through which this machine itself reaches the internet, if its user configured one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Upstream:
    """The user's proxies."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """The usual variables, in lower case: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`. Only proxies
    that speak plain http are used.
    """

    def of(self, scheme: str, host: str) -> tuple[str, int] | None:
        """Return host and port of the proxy for a host; None to connect directly."""
        direct = [name.strip().lower().lstrip(".") for name in self.variables.get("no_proxy", "").split(",")]
        if any(name and (name == "*" or f".{host}".endswith(f".{name}")) for name in direct):
            return None
        address = self.variables.get(f"{scheme}_proxy") or self.variables.get("all_proxy") or ""
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme != "http" or parts.hostname is None:
            return None
        return parts.hostname, parts.port or 80
