"""Implement the host's side of the supervisor's protocol (see `m3agent.sandbox.protocol.supervisor`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Self

from m3agent.sandbox.errors import SandboxDied, SandboxError, SandboxTimeout
from m3agent.sandbox.protocol import supervisor
from m3agent.sandbox.protocol.supervisor import FRAME, LEASE, MAX_PAYLOAD
from m3agent.util.portable_source import portable_text

Header = dict[str, Any]
DOCKER_STREAM = struct.Struct(">BxxxI")  # header in Docker's stream of an attached container
ON_CPYTHON = """\
import os, sys
if sys.implementation.name != "cpython":
    others = []
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith("python3.") and name[8:].isdigit() and int(name[8:]) >= 5:
                others.append((int(name[8:]), folder + "/" + name))
    if others:
        with open("/proc/self/cmdline", "rb") as f:
            options = f.read().split(b"\\0")[1:-1]
        os.execv(max(others)[1], [b"python3"] + options)
"""
"""Beginning of a program for `python3 -c`: if this Python is not CPython, the image's newest CPython runs the program.

The supervisor needs CPython, because PyPy lacks some calls of the kernel.
"""
BOOT = (
    ON_CPYTHON
    + """\
def read(n):
    s = b""
    while len(s) < n:
        more = os.read(0, n - len(s))
        if not more:
            raise SystemExit("the host ended before the supervisor had arrived")
        s += more
    return s
exec(compile(read(int(read(8))), "supervisor", "exec"))
"""
)
"""Program for the sandbox's python3 (`-I -S -c`): read the supervisor from standard input and run it."""
DIAGNOSTICS = 8192  # bytes kept of the supervisor's standard error, which is shown if it dies


class Channel:
    """Frames over a pair of byte streams; answers are matched to requests by id.

    Args:
        multiplexed: Whether incoming bytes are wrapped in Docker's 8-byte stream headers.
        why_dead: Called when the stream ends; its result (or a copy) is raised in all waiting requests.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        multiplexed: bool,
        why_dead: Callable[[], Awaitable[SandboxError]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._multiplexed = multiplexed
        self._why_dead = why_dead
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[tuple[Header, bytes] | None]] = {}
        self._hello: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        self._diagnostics = bytearray()
        self.hello: Header = {}
        """The supervisor's first frame: python, root, seccomp, openat2."""
        self._dead = False
        self._reason: SandboxError = SandboxDied("the sandbox has been closed")
        self._task = asyncio.create_task(self._pump())
        self._alive: asyncio.Task[None] | None = None

    async def boot(self, timeout: float) -> Header:
        """Send the supervisor's source to the interpreter on the other side; return its first frame.

        Raises:
            SandboxTimeout: The frame did not arrive in time.
            SandboxError: The stream ended first; the error that `why_dead` returned.
        """
        source = portable_text(supervisor).encode()
        self._writer.write(b"%08d" % len(source) + source)
        try:
            async with asyncio.timeout(timeout):
                hello = await asyncio.shield(self._hello)
        except TimeoutError:
            raise SandboxTimeout(f"the sandbox did not start within {timeout:.0f} s") from None
        self.hello = hello
        self._alive = asyncio.create_task(self._keep_alive())
        return hello

    @property
    def dead(self) -> bool:
        """Whether the stream has ended."""
        return self._dead

    async def ended(self) -> None:
        """Wait until the stream has ended."""
        await asyncio.wait([self._task])

    def open_request(self, op: str, payload: bytes = b"", **fields: Any) -> ChannelRequest:
        """Send a request; read its answers from the returned object."""
        ident = next(self._ids)
        self.tell(op, payload, id=ident, **fields)
        queue = self._waiting[ident] = asyncio.Queue()
        return ChannelRequest(self, ident, queue)

    async def ask(
        self, op: str, payload: bytes = b"", *, timeout: float = 120, **fields: Any
    ) -> tuple[Header, bytes]:
        """Send a request with one answer; return its header (which may be an `error`) and payload."""
        with self.open_request(op, payload, **fields) as request:
            await self.drain()
            try:
                async with asyncio.timeout(timeout):
                    return await request.next()
            except TimeoutError:
                raise SandboxTimeout(f"the sandbox did not answer '{op}' within {timeout:.0f} s") from None

    def tell(self, op: str, payload: bytes = b"", **fields: Any) -> None:
        """Send a frame that has no answer."""
        if self._dead:
            raise self.death()
        raw = json.dumps({"op": op, "id": 0, **fields}).encode()
        self._writer.write(FRAME.pack(len(raw), len(payload)) + raw)
        if payload:
            self._writer.write(payload)

    async def drain(self) -> None:
        """Wait until the other side has accepted the sent data."""
        try:
            await self._writer.drain()
        except (ConnectionError, OSError):
            await self.ended()
            raise self.death() from None

    def forget(self, ident: int) -> None:
        """Ignore further answers to this request."""
        self._waiting.pop(ident, None)

    async def close(self) -> None:
        """Close the stream and drop what was not sent; the supervisor then kills all processes and exits."""
        self._dead = True
        self._task.cancel()
        if self._alive is not None:
            self._alive.cancel()
        if not self._writer.transport.is_closing():  # the pipe of a process that has ended is
            self._writer.transport.abort()  # close() would wait for ever for a supervisor that does not read
        with contextlib.suppress(OSError):  # the other side may be gone already
            # its future must not be cancelled: asyncio sets it
            await asyncio.shield(self._writer.wait_closed())
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_alive(self) -> None:
        with contextlib.suppress(SandboxError):  # the stream has ended
            while True:
                await asyncio.sleep(LEASE / 10)
                self.tell("alive")

    def death(self) -> SandboxError:
        """Return an error that says why the stream ended."""
        said = bytes(self._diagnostics).decode(errors="replace").strip().splitlines()
        return type(self._reason)(str(self._reason) + (f" ({said[-1]})" if said else ""))

    async def _pump(self) -> None:
        inbox = bytearray()
        try:
            while True:
                data = await self._read_some()
                if not data:
                    break
                inbox += data
                self._take_frames(inbox)
        except (ConnectionError, OSError, asyncio.IncompleteReadError):
            pass  # the stream ended inside a frame: same as a normal end
        finally:
            try:
                if not self._dead:
                    self._reason = await self._why_dead()
            finally:
                self._dead = True
                if not self._hello.done():
                    self._hello.set_exception(self.death())
                    self._hello.exception()  # mark the exception as retrieved, even if no task waits for it
                for queue in self._waiting.values():
                    queue.put_nowait(None)

    async def _read_some(self) -> bytes:
        if not self._multiplexed:
            return await self._reader.read(1 << 20)
        while True:
            stream, size = DOCKER_STREAM.unpack(await self._reader.readexactly(DOCKER_STREAM.size))
            data = await self._reader.readexactly(size)
            if stream != 2:
                return data
            self._diagnostics = (self._diagnostics + data)[-DIAGNOSTICS:]

    def _take_frames(self, inbox: bytearray) -> None:
        while len(inbox) >= FRAME.size:
            n_header, n_payload = FRAME.unpack_from(inbox)
            if max(n_header, n_payload) > MAX_PAYLOAD:  # it would fill the host's memory
                raise ConnectionError("not a frame of the supervisor")
            end = FRAME.size + n_header + n_payload
            if len(inbox) < end:
                return
            header: Header = json.loads(inbox[FRAME.size : FRAME.size + n_header])
            payload = bytes(inbox[FRAME.size + n_header : end])
            del inbox[:end]
            if header.get("ev") == "hello":
                self._hello.set_result(header)
                continue
            queue = self._waiting.get(header.get("id", 0))
            if queue is not None:
                queue.put_nowait((header, payload))


class ChannelRequest:
    """The answers to one request, in order."""

    def __init__(
        self, channel: Channel, ident: int, queue: asyncio.Queue[tuple[Header, bytes] | None]
    ) -> None:
        self._channel = channel
        self._queue = queue
        self.id = ident

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.forget(self.id)

    async def next(self) -> tuple[Header, bytes]:
        """Return the next answer: header and payload.

        Raises:
            SandboxDied: The stream ended.
        """
        item = await self._queue.get()
        if item is None:
            raise self._channel.death()
        return item
