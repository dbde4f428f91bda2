"""Tools of MCP servers in a session: which are offered is settled at its start, for they stand in every request's prefix."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m3agent.agent.context.text import harmless
from m3agent.agent.errors import UsageError
from m3agent.agent.printable import printable_line
from m3agent.tools.base import ToolResult, refusal
from m3agent.tools.mcp.server import McpServer

if TYPE_CHECKING:
    from m3agent.tools.mcp.servers import McpServers

MayCall = Callable[[str, Mapping[str, Any]], Awaitable[bool]]
"""Asks a person whether a tool may be called with these arguments."""
Schema = Mapping[str, Any]


async def yes(_: str, __: Mapping[str, Any]) -> bool:
    """Who names a server in a file of theirs lets the model use it."""
    return True


@dataclass
class OtherTools:
    """What is offered besides our own, and who carries it out; nobody, in a session that goes on without the servers."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    servers: McpServers | None = None
    may_call: MayCall = yes

    async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
        """Exactly one result."""
        if self.servers is None:
            return refusal(f"{name}: its server is not there any more")
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
    """Start the servers, until the stack is closed, and see what they offer.

    earlier: what a session that goes on was offered at its start; it is offered just that again, whatever the servers have
    now, and where that is nothing none is started. None for a new one.

    Raises:
        UsageError: there are servers, and the package for them is not installed.
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
    """Raises UsageError where the package for MCP is not installed."""
    if not is_installed():
        raise UsageError(
            "MCP servers need a package more: pip install 'm3agent[mcp]', or leave them out with --no-mcp"
        )


def is_installed() -> bool:
    """Whether the package for MCP is, in a version that we know: earlier ones had not this module."""
    return importlib.util.find_spec("mcp_types") is not None
