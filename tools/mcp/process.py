"""Run an MCP server as a process of this machine; messages are lines over its standard input and output.

The SDK's own transport keeps lines of any length in memory and reads without a limit. This one also
withstands a server that floods. m3agent starts the process itself, so its end does not depend on the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from m3agent.tools.mcp.server import McpServer
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
        self._readers = [
            asyncio.create_task(_hear(process, heard)),
            asyncio.create_task(_keep(process, log)),
        ]
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
