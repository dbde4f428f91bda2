"""What an MCP server is to us, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CALL_SECONDS = 60.0
"""For an answer to one call, where the configuration does not say."""


@dataclass(frozen=True)
class McpServer:
    """command: the program and its arguments, for one that is started here; else url and headers. env: variables added to the
    few that it gets; folder: where it starts, None for a folder of the session's. only: the names of the tools that are offered, None for all. seconds: for one call.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    sse: bool = False
    """The older transport over HTTP, which has two addresses."""
    only: frozenset[str] | None = None
    seconds: float = CALL_SECONDS


class McpFailed(Exception):
    """A server that cannot be used, or did not answer; one sentence."""
