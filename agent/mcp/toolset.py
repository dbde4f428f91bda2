"""Tools of MCP servers in a session.

The offered tools are fixed at the start of the session, because they are part of every request's prefix
(which the server caches).
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m3agent.agent.context.neutralise import harmless
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.mcp.server import McpServer
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import printable_line

if TYPE_CHECKING:
    from m3agent.tools.mcp.servers import McpServers

MayCall = Callable[[str, Mapping[str, Any]], Awaitable[bool]]
"""Asks a person whether a tool may be called with these arguments."""


async def yes(_: str, __: Mapping[str, Any]) -> bool:
    """Allow every call: a user who names a server in a file lets the model use it."""
    return True


@dataclass
class OtherTools:
    """The tools offered besides m3agent's own, and the servers that run them."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    """The tools' schemas, as the model gets them."""
    servers: McpServers | None = None
    """The servers; None if there are none, or if the session was resumed without them."""
    may_call: MayCall = yes
    """Asks for permission before each call."""

    async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
        """Call a tool and return exactly one result. A refused or impossible call gets a result, too.

        Args:
            log: The file for the whole result, if it is too long to show.
        """
        if self.servers is None:
            return refusal(f"{name}: its server has exited")
        if not await self.may_call(name, arguments):
            return refusal(f"{name}: the user did not allow this call")
        return await self.servers.call(name, arguments, log)


async def start_servers(
    servers: Sequence[McpServer],
    earlier: Sequence[dict[str, Any]] | None,
    may_call: MayCall,
    logs: Path,
    stack: contextlib.AsyncExitStack,
    say: Callable[[str], None],
) -> OtherTools:
    """Start the servers, and read which tools they offer. They run until the stack is closed.

    Args:
        earlier: None for a new session. For a resumed session, the schemas that were offered at its start:
            the same tools are offered again, whatever the servers offer now. If it is empty, no server is
            started.

    Raises:
        UsageError: There are servers to start, and the package for MCP is not installed.
    """
    if not servers or earlier == []:
        return OtherTools(list(earlier or ()))
    require_extra()
    from m3agent.tools.mcp.servers import McpServers

    started = await stack.enter_async_context(
        McpServers(servers, logs, lambda text: say(printable_line(text, 400)), harmless)
    )
    return OtherTools(started.schemas if earlier is None else list(earlier), started, may_call)


def require_extra() -> None:
    """Raise UsageError if the package for MCP is not installed."""
    if not is_installed():
        raise UsageError(
            "MCP servers need another package: install m3agent[mcp] as docs/install.md says, or leave them out with --no-mcp"
        )


def is_installed() -> bool:
    """Return whether the package for MCP is installed in a supported version.

    Older versions lack the module `mcp_types`.
    """
    return importlib.util.find_spec("mcp_types") is not None
