"""Our own standard streams as a sandboxed command's: bytes through as they are, at the reader's pace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from m3agent.agent.errors import EnvironmentFault
from m3agent.serving.background import in_background

T = TypeVar("T")
CHUNK = 1 << 16  # bytes of standard input read at once


async def standard_input() -> AsyncIterator[bytes]:
    """Our standard input, piece by piece, to its end."""
    # a daemon thread reads: the end of the command does not wait for somebody to type
    while data := await in_background(lambda: _read(0)):
        yield data


class Output:
    """Passes a command's output on to our own, beside the event loop: whoever reads it may be slow."""

    def __init__(self) -> None:
        self.taken = 0
        """Bytes of output that came."""
        self._queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._open = {fd for fd, stream in ((1, sys.stdout), (2, sys.stderr)) if stream is not None}

    def put(self, fd: int, data: bytes) -> None:
        """Take a piece for standard output (1) or standard error (2)."""
        self.taken += len(data)
        self._queue.put_nowait((fd, data))

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, once all it has put is written; nobody reading any more ends it early.

        Raises:
            BrokenPipeError: whoever reads our output has gone. EnvironmentFault: it cannot be written.
        """
        working = asyncio.create_task(work)
        writing = asyncio.create_task(self._write_all())
        try:
            await asyncio.wait({working, writing}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                self._queue.put_nowait(None)
            await writing
            return await working
        finally:
            for task in (working, writing):
                task.cancel()
            await asyncio.gather(working, writing, return_exceptions=True)

    async def _write_all(self) -> None:
        while (item := await self._queue.get()) is not None:
            fd, data = item
            if fd not in self._open:
                continue  # closed by who started us; the number may be something else's by now
            try:
                await in_background(lambda fd=fd, data=data: _write(fd, data))  # type: ignore[misc]
            except BrokenPipeError:
                raise
            except OSError as error:
                name = "output" if fd == 1 else "error"
                raise EnvironmentFault(f"cannot write standard {name}: {error.strerror}") from None


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])
        except OSError:
            return b""  # as good as its end: a terminal that hung up, a folder


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            with contextlib.suppress(InterruptedError):
                select.select([], [fd], [])
