"""The configuration of an MCP server, and the error of a failed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CALL_SECONDS = 60.0
"""Seconds for the response to one call, unless configured."""
LEAST_KEY = 8
"""Characters of the shortest value that may be a key."""


@dataclass(frozen=True)
class McpServer:
    """How to start or reach an MCP server."""

    name: str
    command: tuple[str, ...] = ()
    """Program and arguments of a server that is started here; otherwise `url` and `headers` are set."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the few that it inherits."""
    folder: Path | None = None
    """Working directory of the process; None for a folder of the session."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    sse: bool = False
    """Whether to use the older HTTP transport, which has two addresses."""
    only: frozenset[str] | None = None
    """Names of the tools that are offered; None for all."""
    seconds: float = CALL_SECONDS

    def mask(self, text: str) -> str:
        """Replace this server's address, headers and variables in a text: users keep their keys there."""
        values = {value.strip() for value in (self.url, *self.headers.values(), *self.env.values())}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= LEAST_KEY:
                text = text.replace(value, "[hidden]")
        return text


class McpFailed(Exception):
    """A server cannot be used or did not answer; the text is one sentence."""
