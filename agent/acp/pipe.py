"""Messages as lines of JSON over standard input and output; what is none is answered, and ends nothing."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from typing import Any

from m3agent.agent.errors import UsageError

MOST = 64 << 20
"""Bytes of one message: images come in it."""
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
"""By JSON-RPC 2.0."""


class Pipe:
    """A transport for the SDK's connection. Its own ends with an exception for JSON that is no object."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    @classmethod
    async def standard(cls) -> Pipe:
        """Over this process's own streams. Whatever else is printed goes to standard error from now on: nothing but
        messages may stand on standard output.

        Raises UsageError where one of them is no pipe.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MOST)
        if not (_is_pipe(0) and _is_pipe(1)):
            raise UsageError(
                "m3agent acp is started by an editor, with a pipe as standard input and one as standard output."
            )
        out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(_standard_error(), 1)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), out
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when there will be none."""
        while line := await self._line():
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                await self._refuse(PARSE_ERROR, "this line is no JSON")
                continue
            if isinstance(message, dict):
                return message
            await self._refuse(INVALID_REQUEST, "a message is a JSON object")
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Send one. Raises ConnectionError where nobody reads any more."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._lock:
            if self._writer.is_closing():
                raise ConnectionError("the client is gone")
            self._writer.write(line)
            await self._writer.drain()

    async def close(self) -> None:
        """Send no more."""
        self._writer.close()

    async def _line(self) -> bytes:
        """The next line, or what is left at the end. A line that is too long is refused and passed over."""
        while True:
            try:
                return await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                return end.partial
            except asyncio.LimitOverrunError as over:
                await self._reader.readexactly(over.consumed)
                await self._skip()
                await self._refuse(INVALID_REQUEST, f"a message has at most {MOST >> 20} MiB")

    async def _skip(self) -> None:
        """Pass over the rest of a line."""
        while True:
            try:
                await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as over:
                await self._reader.readexactly(over.consumed)
            except asyncio.IncompleteReadError:
                return
            else:
                return

    async def _refuse(self, code: int, sentence: str) -> None:
        await self.send({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": sentence}})


def _is_pipe(descriptor: int) -> bool:
    """Whether it can be waited for: a pipe, a socket or a terminal."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _standard_error() -> int:
    """Its descriptor, or one that takes everything where it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    return 2
