"""Exchange messages as lines of JSON over stdin and stdout, which may be pipes, sockets, terminals or files.

Malformed messages get an error reply; the connection stays open.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import sys
from typing import Any

from m3agent.util.errors import UsageError

MOST = 64 << 20
"""Most bytes of one message; messages may contain images."""
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
"""Error codes of JSON-RPC 2.0."""


class Pipe:
    """A transport for the SDK's connection. The SDK's own transport raises an exception for JSON that is not an object."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | _File) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    @classmethod
    async def standard(cls) -> Pipe:
        """Open a transport over this process's stdin and stdout.

        From then on, everything else that this process prints goes to stderr: stdout may contain messages only.

        Raises:
            UsageError: One of the two streams is closed.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MOST)
        # Python found no stream at a closed descriptor; the event loop may have taken its number since.
        if sys.stdin is None or sys.__stdout__ is None:
            raise UsageError(
                "Standard input or output of m3agent acp is closed: start it with both open, as an editor does."
            )
        out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(_standard_error(), 1)
        if _can_wait_for(0):
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        else:
            reader.feed_data(await asyncio.to_thread(sys.stdin.buffer.read))
            reader.feed_eof()
        if not _can_wait_for(out.fileno()):
            return cls(reader, _File(out))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), out
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the stream."""
        while line := await self._line():
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                await self._refuse(PARSE_ERROR, "this line is not JSON")
                continue
            if isinstance(message, dict):
                return message
            await self._refuse(INVALID_REQUEST, "a message must be a JSON object")
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises ConnectionError if the client no longer reads."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._lock:
            if self._writer.is_closing():
                raise ConnectionError("the client disconnected")
            self._writer.write(line)
            await self._writer.drain()

    async def close(self) -> None:
        """Close the writing end."""
        self._writer.close()

    async def _line(self) -> bytes:
        """Return the next line, or the rest at the end of the stream. Refuse and skip a line that is too long."""
        is_too_long = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                line = end.partial
            except asyncio.LimitOverrunError as over:
                await self._reader.readexactly(over.consumed)
                is_too_long = True
                continue
            if not is_too_long:
                return line
            await self._refuse(INVALID_REQUEST, f"a message may have at most {MOST >> 20} MiB")
            is_too_long = False

    async def _refuse(self, code: int, sentence: str) -> None:
        await self.send({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": sentence}})


class _File:
    """The methods of a `StreamWriter` that `Pipe` uses, for a file: writing to one never has to wait for a reader."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        """Write all of the data."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]

    async def drain(self) -> None:
        """Return at once: nothing waits to be written."""

    def is_closing(self) -> bool:
        """Return whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _can_wait_for(descriptor: int) -> bool:
    """Return whether the event loop can wait for a descriptor: a pipe, a socket or a terminal, but not a file."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _standard_error() -> int:
    """Return the descriptor of stderr, or one of the null device if stderr is closed."""
    try:
        os.fstat(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return 2
