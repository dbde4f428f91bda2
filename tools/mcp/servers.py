"""All MCP servers of a fix: start them together, and call their tools by the names that the model uses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from m3agent.sandbox.errors import DiskFull
from m3agent.tools.base import MOST_CHARACTERS, ToolResult, cut, readable, refusal
from m3agent.tools.mcp.connection import Connection, as_text
from m3agent.tools.mcp.server import McpFailed, McpServer
from m3agent.tools.mcp.tool_schemas import Schema, offered

MOST_TOGETHER = 128
"""Most tools of all servers together: with more, models choose worse, and every request contains all."""


class McpServers:
    """The MCP servers that could be reached; use it as an asynchronous context manager.

    Attributes:
        schemas: The entries for a request's `tools`, ordered by server and tool name.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        logs: Path,
        say: Callable[[str], None],
        clean: Callable[[str], str],
    ) -> None:
        self._connections = [
            Connection(server, logs / f"mcp-{number}.log")
            for number, server in enumerate(sorted(servers, key=lambda server: server.name), start=1)
        ]
        self._say = say
        self._clean = clean
        self._tools: dict[str, tuple[Connection, str]] = {}
        self.schemas: list[Schema] = []

    async def __aenter__(self) -> Self:
        try:
            opened = await asyncio.gather(*map(self._open, self._connections))
        except BaseException:
            await self.__aexit__()
            raise
        for connection, found in zip(self._connections, opened, strict=True):
            room = MOST_TOGETHER - len(self.schemas)
            if len(found) > room:
                self._say(
                    f"MCP server {connection.server.name}: {len(found) - room} of its tools are left "
                    f"out: all servers together may offer at most {MOST_TOGETHER}"
                )
            for name, (own, schema) in list(found.items())[:room]:
                if name not in self._tools:
                    self._tools[name] = (connection, own)
                    self.schemas.append(schema)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _open(self, connection: Connection) -> dict[str, tuple[str, Schema]]:
        server = connection.server
        try:
            await connection.open()
        except McpFailed as error:
            self._say(f"MCP server {server.name} is left out: {error}")
            return {}
        found, left_out = offered(server.name, connection.tools, server.only, self._clean)
        for sentence in left_out:
            self._say(f"MCP server {server.name}, tool left out: {sentence}")
        return found

    async def call(self, name: str, arguments: dict[str, Any], log: Path) -> ToolResult:
        """Execute a call and return its one result, even if the server is gone or does not answer.

        Args:
            name: The tool's name for the model.
            log: File for the whole answer, if it is too long to show.

        Raises:
            DiskFull: The answer could not be written to `log`.
        """
        if name not in self._tools:
            return refusal(f"{name}: its server has exited")
        connection, own = self._tools[name]
        try:
            result = await connection.call(own, arguments)
        except McpFailed as error:
            return refusal(f"{name}: MCP server {connection.server.name}: {error}")
        return await asyncio.to_thread(
            _result, as_text(result).encode(errors="replace"), result.is_error, log
        )


def _result(whole: bytes, is_error: bool, log: Path) -> ToolResult:
    """Convert an answer to the model's form.

    Raises:
        DiskFull: The whole answer could not be kept.
    """
    text = readable(whole)
    truncated = len(text) > MOST_CHARACTERS
    if truncated:
        try:
            log.write_bytes(whole)
        except OSError as error:
            raise DiskFull(f"cannot write {log}: {error.strerror}") from None
    return ToolResult(
        cut(text) or "(empty answer)",
        is_error=is_error,
        digest=hashlib.sha256(whole).hexdigest(),
        truncated=truncated,
        full_path=str(log) if truncated else None,
    )
