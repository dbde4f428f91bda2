"""All MCP servers of a fix: start them together, select which tools the model is offered, and call them by the model's names.

The texts of tools are part of every request, and strangers wrote them, so they are limited.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from mcp_types import Tool

from m3agent.sandbox.errors import DiskFull
from m3agent.tools.base import MOST_CHARACTERS, ToolResult, cut, readable, refusal
from m3agent.tools.mcp.connection import Connection, as_text
from m3agent.tools.mcp.server import McpFailed, McpServer

MOST_TOOLS = 64
"""Most tools of one server."""
MOST_SCHEMA, MOST_WORDS = 16_384, 4_000
"""Most characters of a tool's schema, as JSON, and of its description."""
MOST_NAME = 64
"""Most characters of a tool's name, by the rule of chat APIs."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")

Schema = dict[str, Any]


def public_name(server: str, tool: str) -> str:
    """Return the tool's name for the model: `mcp__SERVER__TOOL`.

    If characters had to be replaced, or the name is too long, it ends with a part of a hash.
    """
    whole = f"mcp__{server}__{tool}"
    name = _NOT_IN_A_NAME.sub("_", whole)
    if name == whole and len(name) <= MOST_NAME:
        return name
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def offered(
    server: str, tools: Iterable[Tool], only: frozenset[str] | None, clean: Callable[[str], str]
) -> tuple[dict[str, tuple[str, Schema]], list[str]]:
    """Return the tools to offer, and a sentence for each tool that is left out.

    Args:
        only: Names of the tools that may be offered; None for all.

    Returns:
        By public name, in the order of the tools' own names: the tool's own name and its entry for a
            request's `tools`. Second, the sentences.
    """
    kept: dict[str, tuple[str, Schema]] = {}
    left_out: list[str] = []
    for tool in sorted(tools, key=lambda tool: tool.name):
        if only is not None and tool.name not in only:
            continue
        name = public_name(server, tool.name)
        if name in kept:
            left_out.append(f"{tool.name!r}: listed twice")
        elif fault := _fault(tool):
            left_out.append(f"{tool.name[:80]!r}: {fault}")
        elif len(kept) == MOST_TOOLS:
            left_out.append(f"{tool.name[:80]!r} and all later tools: more than {MOST_TOOLS} tools")
            break
        else:
            words = clean(tool.description or tool.title or "")
            words = words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + "…"
            parameters = _cleaned({"type": "object", "properties": {}, **tool.input_schema}, clean)
            function = {"name": name, "description": words, "parameters": parameters}
            kept[name] = (tool.name, {"type": "function", "function": function})
    return kept, left_out


def _fault(tool: Tool) -> str:
    """Return what is wrong with a tool's schema; empty if it is valid."""
    schema = tool.input_schema
    try:
        size = len(json.dumps(schema))
        if size > MOST_SCHEMA:
            return f"its schema has {size:,} characters, more than {MOST_SCHEMA:,}"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is invalid: {' '.join(error.message.split())[:200]}"
    except (RecursionError, ValueError, TypeError):
        return "its schema cannot be read"
    return ""


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a schema with all its texts cleaned, names too.

    If cleaning changes an argument's name, the tool can no longer be called correctly. But such a name was
    made to mislead.
    """
    if isinstance(value, dict):
        return {clean(str(key)): _cleaned(part, clean) for key, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, clean) for part in value]
    return clean(value) if isinstance(value, str) else value


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
