"""Connect to one MCP server, over HTTP or as a process of this machine.

A task of its own holds the connection, because the SDK's scopes must end in the task that opened them. Messages of a process are
lines over its standard input and output. The SDK's own transport keeps lines of any length in memory and reads without a limit;
this one also withstands a server that floods. m3agent starts the process itself, so its end does not depend on the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    JSONRPCError,
    JSONRPCResponse,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from m3agent import __version__
from m3agent.tools.mcp.server import McpFailed, McpServer
from m3agent.util.start_process import start_process

MOST_LINE = 16 << 20
"""Largest message, in bytes."""
MOST_UNASKED, MOST_UNASKED_BYTES = 10_000, 32 << 20
"""Most lines, and bytes, that a server may send between two answers; after that the connection is closed."""
MOST_SAID = 4 << 20
"""Bytes kept of the server's standard error."""
GRACE_SECONDS = 2.0
"""Seconds from the end of its input to SIGTERM, and from there to SIGKILL."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class ServerProcess:
    """A running server process.

    It does not depend on the SDK's scopes: its owner must call `end`.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        heard, self._incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._outgoing, to_say = anyio.create_memory_object_stream[SessionMessage](0)
        self._readers = [asyncio.create_task(_hear(process, heard)), asyncio.create_task(_keep(process, log))]
        self._writer = asyncio.create_task(_say(process, to_say, heard))

    @classmethod
    async def start(cls, server: McpServer, log: Path) -> ServerProcess:
        """Start the server; its standard error goes to the log.

        Raises:
            OSError: It cannot be started.
        """
        process = await start_process(
            *server.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=get_default_environment() | dict(server.env),
            # never the current folder, which may be a stranger's repository: programs load code from their
            # start folder
            cwd=server.folder or log.parent,
            start_new_session=True,
            limit=MOST_LINE,
        )
        return cls(process, log)

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncGenerator[Streams]:
        """Provide the streams in the SDK's form."""
        yield self._incoming, self._outgoing

    async def end(self) -> None:
        """End the process and all that remains of its process group."""
        self._incoming.close()
        self._outgoing.close()
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            _, reading = await asyncio.wait(self._readers, timeout=GRACE_SECONDS)  # until its output ends
            if process.returncode is not None and number is not None and not reading:
                break
        tasks = [*self._readers, self._writer]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process._transport.close()  # type: ignore[attr-defined]  # processes outside the group may hold the pipes


async def _hear(
    process: asyncio.subprocess.Process, heard: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Forward messages; the connection ends with the server's output, or if the server floods."""
    assert process.stdout is not None
    lines, size = 0, 0
    with contextlib.suppress(
        asyncio.IncompleteReadError, asyncio.LimitOverrunError, anyio.BrokenResourceError, OSError
    ):
        async with heard:
            while lines < MOST_UNASKED and size < MOST_UNASKED_BYTES:
                line = await process.stdout.readuntil(b"\n")
                lines, size = lines + 1, size + len(line)
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    continue  # many servers print log lines there
                if isinstance(message, JSONRPCResponse | JSONRPCError):
                    lines, size = 0, 0
                await heard.send(SessionMessage(message))


async def _say(
    process: asyncio.subprocess.Process,
    to_say: MemoryObjectReceiveStream[SessionMessage],
    heard: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Write the outgoing messages to the server's standard input."""
    assert process.stdin is not None
    try:
        async with to_say:
            async for said in to_say:
                process.stdin.write(
                    said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )
                await process.stdin.drain()
    except OSError:
        await heard.aclose()  # the server is gone, so no answers will come


async def _keep(process: asyncio.subprocess.Process, log: Path) -> None:
    """Write the first part of the server's standard error to a file.

    The rest is read and dropped, so that the server does not block.
    """
    assert process.stderr is not None
    left = MOST_SAID
    with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
        while data := await process.stderr.read(1 << 16):
            file.write(data[:left])
            left = max(0, left - len(data))
    while await process.stderr.read(1 << 16):
        pass


START_SECONDS = 20.0
"""Seconds from the start to the server's list of tools; its package may have to be installed first."""
PROBE_SECONDS = 5.0
"""Seconds without a response to the newer protocol's first request, until the older protocol is tried."""
END_SECONDS = 8.0
"""Seconds for the connection's task to end."""
MOST_PAGES = 20
"""Most pages of a server's list of tools."""
MOST_WORDS = 300
"""Characters of an error's own words."""


# Errors of a server are reported in our own words. The SDK would print a traceback for each malformed line.
_logger = logging.getLogger("mcp")
_logger.addHandler(logging.NullHandler())
_logger.propagate = False


class Connection:
    """One server, from its start to its end.

    Attributes:
        server: How to reach the server.
        tools: Its tools as listed at the start; later changes are ignored.
    """

    def __init__(self, server: McpServer, log: Path) -> None:
        self.server = server
        self.tools: tuple[Tool, ...] = ()
        self._log = log
        self._process: ServerProcess | None = None
        self._status: int | None = None
        """HTTP status of the last response."""
        self._client: Client | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start or reach the server and request its list of tools.

        Raises:
            McpFailed: That failed, or took longer than `START_SECONDS`.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.server.command:
            try:
                self._process = await ServerProcess.start(self.server, self._log)
            except OSError as error:
                raise self._failed(error) from None
        self._task = asyncio.create_task(self._live(ready))
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.close()
            raise McpFailed(f"it did not list its tools within {START_SECONDS:g} s") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if not ready.done():
            try:
                await self._task
            except McpFailed:
                raise
            except Exception as error:  # noqa: BLE001  # the server causes any error that the SDK raises
                raise self._failed(error) from None
            raise McpFailed("it exited at once")

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool and return the server's response.

        Raises:
            McpFailed: The server is gone, failed, or did not respond in time.
        """
        if self._client is None or self._task is None or self._task.done():
            raise McpFailed("it has exited")
        # Not `call_tool`: it validates the response with the server's patterns, which can run practically
        # forever.
        asked = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        seconds = self.server.seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._client.session.send_request(
                    asked, CallToolResult, request_read_timeout_seconds=seconds + 1
                )
        except TimeoutError:
            raise McpFailed(f"it did not answer within {seconds:g} s") from None
        except Exception as error:  # noqa: BLE001  # as above
            raise self._failed(error) from None

    async def close(self) -> None:
        """Close the connection and end the server's process, even if the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        self._closing.set()
        if self._process is not None:
            await self._process.end()
        if self._task is None:
            return
        if self._client is None:  # it is still opening, and does not wait for `_closing`
            self._task.cancel()
        await asyncio.wait([self._task], timeout=END_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self, ready: asyncio.Future[None]) -> None:
        name = Implementation(name="m3agent", version=__version__)
        async with Client(
            self._transport(), client_info=name, cache=None, read_timeout_seconds=PROBE_SECONDS
        ) as client:
            self.tools = await _tools(client)
            self._client = client
            ready.set_result(None)
            await self._closing.wait()

    def _transport(self) -> contextlib.AbstractAsyncContextManager[Any]:
        if self._process is not None:
            return self._process.transport()
        if self.server.sse:
            return sse_client(
                self.server.url, dict(self.server.headers), httpx_client_factory=self._http_client
            )
        return self._http()

    @contextlib.asynccontextmanager
    async def _http(self) -> AsyncGenerator[Any]:
        async with (
            self._http_client(dict(self.server.headers)) as http,
            streamable_http_client(
                self.server.url, http_client=http, max_sse_event_size=MOST_LINE
            ) as streams,
        ):
            yield streams

    def _http_client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        client = create_mcp_http_client(headers, timeout, auth)
        client.event_hooks = {"response": [self._note_status, _limit]}
        return client

    async def _note_status(self, response: httpx2.Response) -> None:
        """Record the HTTP status, because the SDK's errors do not contain it."""
        self._status = response.status_code

    def _failed(self, error: BaseException) -> McpFailed:
        if self._status in (401, 403):
            return McpFailed(
                f"it refuses the connection (HTTP {self._status}): it may need a key in `headers`"
            )
        status = f" (HTTP {self._status})" if self._status is not None and self._status >= 300 else ""
        return McpFailed(self.server.mask(why(error))[:MOST_WORDS] + status)


async def _limit(response: httpx2.Response) -> None:
    """Limit the size of responses that are not event streams; the SDK limits only those."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Limited(response.stream)


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MOST_LINE:
                raise httpx2.ReadError(f"it sent more than {MOST_LINE >> 20} MiB at a time")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _tools(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        asked = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        page = await client.session.send_request(
            asked, ListToolsResult, request_read_timeout_seconds=START_SECONDS
        )
        tools += page.tools
        if not (cursor := page.next_cursor):
            return tuple(tools)
    raise McpFailed(f"its list of tools has more than {MOST_PAGES} pages")


def why(error: BaseException) -> str:
    """Return one sentence for an error that the SDK raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return "it sent a message that violates the protocol"
    if isinstance(error, FileNotFoundError):
        return f"there is no program {error.filename!r}"
    return " ".join(str(error).split()) or type(error).__name__


def as_text(result: CallToolResult) -> str:
    """Return a tool's response as text; describe content that is not text."""
    parts = []
    for block in result.content:
        if isinstance(block, TextContent):
            parts.append(block.text)
            continue
        resource = getattr(block, "resource", None)
        if isinstance(text := getattr(resource, "text", None), str):
            parts.append(text)
        elif block.type == "resource_link":
            parts.append(f"[{block.name}: {block.uri}]")
        else:
            data = getattr(block, "data", getattr(resource, "blob", ""))
            kind = getattr(block, "mime_type", None) or getattr(resource, "mime_type", None) or block.type
            parts.append(f"[{kind}, {len(data) * 3 // 4:,} bytes, left out]")
    if not any(part.strip() for part in parts) and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False, indent=1))
    return "\n".join(parts)
