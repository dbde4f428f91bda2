"""All MCP servers of a fix: started together, called by the names that the model has for their tools."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from m3agent.sandbox.errors import DiskFull
from m3agent.tools.base import MOST_CHARACTERS, ToolResult, cut, readable, refusal
from m3agent.tools.mcp.connection import Connection, as_text
from m3agent.tools.mcp.offer import Schema, offered
from m3agent.tools.mcp.server import McpFailed, McpServer

MOST_TOGETHER = 128
"""Tools of all servers together: models choose worse among more, and every request holds them all."""


class McpServers:
    """Those that could be reached. schemas: the entries of a request's `tools`, by server and tool name."""

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
                    f"MCP server {connection.server.name}: {len(found) - room} of its tools are left out, for "
                    f"{MOST_TOGETHER} of all servers together are the most"
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
        """Carry out a call; exactly one result, also where the server is gone or does not answer. An answer that is too
        long to be shown is kept in `log`. Raises DiskFull where it cannot be."""
        if name not in self._tools:
            return refusal(f"{name}: its server is not there any more")
        connection, own = self._tools[name]
        try:
            result = await connection.call(own, arguments)
        except McpFailed as error:
            return refusal(f"{name}: MCP server {connection.server.name}: {error}")
        return await asyncio.to_thread(
            _result, as_text(result).encode(errors="replace"), result.is_error, log
        )


def _result(whole: bytes, is_error: bool, log: Path) -> ToolResult:
    """An answer as the model has it. Raises DiskFull where all of it cannot be kept."""
    text = readable(whole)
    truncated = len(text) > MOST_CHARACTERS
    if truncated:
        try:
            log.write_bytes(whole)
        except OSError as error:
            raise DiskFull(f"cannot write {log}: {error.strerror}") from None
    return ToolResult(
        cut(text) or "(it answered nothing)",
        is_error=is_error,
        digest=hashlib.sha256(whole).hexdigest(),
        truncated=truncated,
        full_path=str(log) if truncated else None,
    )
