"""Connect this process's standard streams to a sandboxed command: bytes pass unchanged, at the reader's pace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import EnvironmentFault

T = TypeVar("T")
CHUNK = 1 << 16  # bytes of standard input read at once


async def standard_input() -> AsyncIterator[bytes]:
    """Yield this process's stdin piece by piece until its end."""
    # a daemon thread reads: the end of the command must not wait for input
    while data := await in_background(lambda: _read(0)):
        yield data


class Output:
    """Writes a command's output to this process's stdout and stderr, outside the event loop: the reader may be slow.

    Attributes:
        taken: Bytes of output received so far.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._open = {fd for fd, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is not None}

    def put(self, fd: int, data: bytes) -> None:
        """Queue a piece of output for stdout (`fd` 1) or stderr (2)."""
        self.taken += len(data)
        self._queue.put_nowait((fd, data))

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and write what it puts; return its result once all output is written.

        A write error cancels `work`.

        Raises:
            BrokenPipeError: The reader of the output is gone.
            EnvironmentFault: The output cannot be written.
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
                continue  # the parent process closed it; the descriptor may be another file now
            try:
                await in_background(lambda fd=fd, data=data: write_all(fd, data))  # type: ignore[misc]
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
            return b""  # treat as the end: the terminal hung up, or stdin is a folder


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of the data, also if another program made the terminal non-blocking. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            with contextlib.suppress(InterruptedError):
                select.select([], [fd], [])
