"""An MCP server as a process of this machine: messages are lines over its standard input and output.

The SDK's own transport keeps a line of any length in memory and reads whatever comes as fast as it comes; this one is for
servers that may flood.
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

from m3agent.sandbox.start_process import start_process
from m3agent.tools.mcp.server import McpServer

MOST_LINE = 16 << 20
"""Bytes of one message."""
MOST_UNASKED, MOST_UNASKED_BYTES = 10_000, 32 << 20
"""Lines, and bytes, that are no answers: between two answers a server may send so many and is ended after that."""
MOST_SAID = 4 << 20
"""Bytes of its standard error that are kept."""
GRACE_SECONDS = 2.0
"""From the end of its input to SIGTERM, and from there to SIGKILL."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class ServerProcess:
    """One that runs. Its end does not hang on the SDK's scopes: whoever has it ends it."""

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
        """Start it. What it says on standard error goes to the log. Raises OSError."""
        process = await start_process(
            *server.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=get_default_environment() | dict(server.env),
            # never where we happen to be, which may be a stranger's repository: programs load code from where they start
            cwd=server.folder or log.parent,
            start_new_session=True,
            limit=MOST_LINE,
        )
        return cls(process, log)

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncGenerator[Streams]:
        """Its streams, as the SDK takes them."""
        yield self._incoming, self._outgoing

    async def end(self) -> None:
        """End it with all that is left of its process group."""
        self._incoming.close()
        self._outgoing.close()
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            _, reading = await asyncio.wait(self._readers, timeout=GRACE_SECONDS)  # they end with its output
            if process.returncode is not None and number is not None and not reading:
                break
        tasks = [*self._readers, self._writer]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process._transport.close()  # type: ignore[attr-defined]  # what left the group may hold the pipes open


async def _hear(
    process: asyncio.subprocess.Process, heard: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Pass on what is a message; the connection ends with the server's output, and with a server that floods."""
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
                    continue  # many print there what belongs on standard error
                if isinstance(message, JSONRPCResponse | JSONRPCError):
                    lines, size = 0, 0
                await heard.send(SessionMessage(message))


async def _say(
    process: asyncio.subprocess.Process,
    to_say: MemoryObjectReceiveStream[SessionMessage],
    heard: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        async with to_say:
            async for said in to_say:
                process.stdin.write(
                    said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )
                await process.stdin.drain()
    except OSError:
        await heard.aclose()  # it is gone: nobody waits for its answers


async def _keep(process: asyncio.subprocess.Process, log: Path) -> None:
    """Its standard error in a file, the first part of it; the rest is read so that it does not wait."""
    assert process.stderr is not None
    left = MOST_SAID
    with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
        while data := await process.stderr.read(1 << 16):
            file.write(data[:left])
            left = max(0, left - len(data))
    while await process.stderr.read(1 << 16):
        pass
