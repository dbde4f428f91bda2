"""The proxy that a sandbox with `--allow-net` reaches its hosts through: HTTP CONNECT, and plain http.

It trusts nothing that comes from the sandbox. A request is parsed strictly and only what was parsed goes on, one
request a connection. Names are resolved here, once, and the connection is made to the address that was checked, so
that a name cannot turn into another address in between. Inside a CONNECT tunnel the bytes are the program's own:
whoever serves a listed host, or shares its servers, can be spoken to, and anything can be sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from m3agent.sandbox.allow_list import AllowedHost, as_address, may_reach, split_authority

PORT = 3128
"""Where programs in the sandbox find the proxy, on 127.0.0.1."""
LONGEST_HEAD = 16 << 10  # bytes of a request's line and headers
MOST_HEADERS = 100
CHUNK = 64 << 10
PATIENCE = 5.0  # seconds for one of several addresses to answer
LINGER = 2.0  # seconds a refused program may go on sending before the connection is closed under it

REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/1\.[01]")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")
HTTP_TARGET = re.compile(r"http://([^/?#@]+)(/[^#]*)?(\?[^#]*)?", re.IGNORECASE)
LENGTH = re.compile(rb"[0-9]{1,15}")
HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"upgrade", b"host", b"content-length"),
}
"""Headers that end at a proxy (RFC 9110, 7.6.1), and two that are written anew from what was parsed."""


@dataclass(frozen=True)
class Caps:
    """What all connections of one sandbox may use together, and each of them. Bytes both ways; seconds."""

    bytes: int = 4 << 30
    requests: int = 10_000
    head: float = 15.0
    connect: float = 20.0
    idle: float = 120.0
    connection: float = 1800.0


@dataclass(frozen=True)
class NetworkRequest:
    """One request of a program in the sandbox, when it is over.

    host is empty and port 0 where it could not be understood. sent and received: bytes to and from the host.
    reason: why it was refused, failed or was cut short; empty when it came to its end.
    """

    method: str
    host: str
    port: int
    verdict: Literal["allowed", "refused", "failed"]
    reason: str
    sent: int
    received: int
    seconds: float


class Stream(Protocol):
    """A connection as the proxy sees it: OSError where it broke, empty bytes at the other side's end."""

    async def read(self) -> bytes:
        """What has come, at least one byte."""
        ...

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side is slow."""
        ...

    async def write_eof(self) -> None:
        """Say that nothing more will be sent."""
        ...


@dataclass(frozen=True)
class Request:
    """A request as parsed. head: what goes to the host in its place, empty for CONNECT; length: bytes of its body."""

    method: str
    host: str
    port: int
    head: bytes = b""
    length: int = 0


class Answer(Exception):
    """The request is not passed on but answered by the proxy: an HTTP status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class _Use:
    """What one connection has come to; see `NetworkRequest`."""

    method: str = ""
    host: str = ""
    port: int = 0
    verdict: Literal["allowed", "refused", "failed"] = "refused"
    reason: str = ""
    sent: int = 0
    received: int = 0


class Proxy:
    """Serves the connections of one sandbox.

    log: called with every request when it is over; past `Caps.requests` they are refused and not logged.
    resolve: the addresses of a name; raises OSError. reach: whether an address may be connected to.
    """

    def __init__(
        self,
        hosts: Iterable[AllowedHost],
        *,
        log: Callable[[NetworkRequest], None] = lambda _: None,
        caps: Caps | None = None,
        resolve: Callable[[str, int], Awaitable[list[str]]] | None = None,
        reach: Callable[[str], bool] = may_reach,
    ) -> None:
        self.hosts = tuple(hosts)
        self._log = log
        self._caps = caps or Caps()
        self._resolve = resolve or lookup
        self._reach = reach
        self._requests = 0
        self._bytes = 0

    async def serve(self, program: Stream) -> None:
        """Serve one connection to its end; raises OSError where the program's side broke while it was answered."""
        self._requests += 1
        if self._requests > self._caps.requests:
            await _answer(program, 403, f"this sandbox has made {self._caps.requests} requests: no more")
            return
        use = _Use()
        started = time.monotonic()
        try:
            await self._serve(program, use)
        except Answer as answer:
            use.verdict = "failed" if answer.status >= 500 else "refused"
            use.reason = str(answer)
            await _answer(program, answer.status, str(answer))
        except TimeoutError:
            use.reason = (
                f"cut off: silent for {self._caps.idle:.0f} s or open for {self._caps.connection:.0f} s"
            )
        except OSError as error:
            use.reason = f"cut off: {error.strerror or error}"
        except asyncio.CancelledError:
            use.reason = use.reason or "cut off: the sandbox was closed"
            raise
        finally:
            if use.method or use.reason:  # else it was opened and closed without a word
                self._log(NetworkRequest(**vars(use), seconds=round(time.monotonic() - started, 3)))

    async def _serve(self, program: Stream, use: _Use) -> None:
        try:
            async with asyncio.timeout(self._caps.head):
                head, rest = await _read_head(program)
        except TimeoutError:
            raise Answer(408, "no whole request came in time") from None
        if not head:
            return
        request = parse(head)
        use.method, use.host, use.port = request.method, request.host, request.port
        if not any(entry.allows(request.host, request.port) for entry in self.hosts):
            where = f"{request.host}:{request.port}"
            raise Answer(403, f"{where} is not open to this sandbox: the user opens hosts with --allow-net")
        if self._bytes >= self._caps.bytes:
            raise Answer(403, f"this sandbox has moved {self._caps.bytes} bytes over the network: no more")
        async with await self._connect(request) as host:
            use.verdict = "allowed"
            if request.method == "CONNECT":
                await program.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._relay(request, rest, program, host, use)

    async def _connect(self, request: Request) -> Host:
        """Connect to the host, at an address that was checked."""
        where = f"{request.host}:{request.port}"
        try:
            async with asyncio.timeout(self._caps.connect):
                addresses = [request.host]
                if as_address(request.host) is None:
                    addresses = await self._resolve(request.host, request.port)
                for address in addresses:
                    if not self._reach(address):  # one suffices to refuse the name: it may be a trap
                        raise Answer(
                            403,
                            f"{request.host} is at {address}, not a public address of another machine: "
                            "a sandbox never reaches those, --allow-net or not",
                        )
                return await _open(addresses, request.port)
        except TimeoutError:
            raise Answer(504, f"{where} does not answer") from None
        except OSError as error:
            raise Answer(502, f"cannot connect to {where}: {error.strerror or error}") from None

    async def _relay(self, request: Request, rest: bytes, program: Stream, host: Host, use: _Use) -> None:
        """Move bytes until both sides are done, nothing moves any more, or a cap is reached."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._caps.connection
        tunnel = request.method == "CONNECT"

        def moved(count: int) -> None:
            self._bytes += count
            if self._bytes > self._caps.bytes:
                raise OSError(f"the sandbox's {self._caps.bytes} bytes of network are used up")
            clock.reschedule(min(end, loop.time() + self._caps.idle))

        async def up() -> None:
            await host.write(request.head)
            data, left = rest, request.length
            while tunnel or left:
                data = data or await program.read()
                if not data:
                    break
                piece = data if tunnel else data[:left]  # what follows the one request stays here
                left -= len(piece)
                use.sent += len(piece)
                moved(len(piece))
                await host.write(piece)
                data = b""
            if tunnel:
                await host.write_eof()

        async def down() -> None:
            while data := await host.read():
                use.received += len(data)
                moved(len(data))
                await program.write(data)
            await program.write_eof()

        async with asyncio.timeout(self._caps.idle) as clock:
            both = [asyncio.create_task(up()), asyncio.create_task(down())]
            try:
                await asyncio.gather(*both)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)


class Host:
    """A connection over TCP as a `Stream` that closes itself: at once where something went wrong."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # what was written may still be on its way out
            self._writer.close()
            with contextlib.suppress(OSError):  # a TimeoutError is one
                async with asyncio.timeout(LINGER):
                    await self._writer.wait_closed()
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def read(self) -> bytes:
        """What has come; empty at the end."""
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side is slow."""
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._writer.write_eof()


async def _open(addresses: Sequence[str], port: int) -> Host:
    """Connect to the first address that answers, each for a fair part of the time there is."""
    failure = OSError("it has no address")
    for number, address in enumerate(addresses, start=1):
        patience = PATIENCE if number < len(addresses) else None
        try:
            async with asyncio.timeout(patience):
                # the address is a number already: nothing is looked up again
                return Host(*await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST))
        except OSError as error:  # a TimeoutError is one
            failure = error
    raise failure


async def lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine resolves it; raises OSError.

    In a thread of its own, which a name server that hangs keeps from nothing: pools are waited for at the end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[str] | OSError = []
        # a last dot says that the name is whole, so that no search list of this machine applies; but names that
        # stand in its hosts file only are not found with one
        for name in (f"{host}.", host):
            try:
                infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError as error:
                found = error
            else:
                found = list(dict.fromkeys(str(info[4][0]) for info in infos))
                break
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, daemon=True).start()
    return await answer


async def _read_head(program: Stream) -> tuple[bytes, bytes]:
    """The request's head without the empty line that ends it, and what came behind it."""
    data = b""
    while True:
        head, end, rest = data[: LONGEST_HEAD + 4].partition(b"\r\n\r\n")
        if end:
            return head, rest + data[LONGEST_HEAD + 4 :]
        if len(data) > LONGEST_HEAD:
            raise Answer(431, f"a request's head is at most {LONGEST_HEAD} bytes")
        more = await program.read()
        if not more:
            if data:
                raise Answer(400, "the request ends in its head")
            return b"", b""
        data += more


def parse(head: bytes) -> Request:
    """A request's head, without the empty line at its end.

    Raises:
        Answer: anything but a well-formed CONNECT, or http request with an absolute address and a plain length.
    """
    first, *lines = head.split(b"\r\n")
    line = REQUEST_LINE.fullmatch(first)
    if line is None:
        raise Answer(400, "this is a proxy for HTTP and CONNECT, and that was no request to one")
    if len(lines) > MOST_HEADERS:
        raise Answer(431, f"a request has at most {MOST_HEADERS} headers")
    headers: list[tuple[bytes, bytes]] = []
    for text in lines:
        header = HEADER.fullmatch(text)
        if header is None:
            raise Answer(400, "a header of the request is malformed")
        headers.append((header[1], header[2]))
    method, target = line[1].decode(), line[2].decode()
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        raise Answer(411, "this proxy takes a request's body only with a Content-Length")
    if len(lengths) > 1 or not all(LENGTH.fullmatch(value) for value in lengths):
        raise Answer(400, "the Content-Length of the request is malformed")
    if method == "CONNECT":
        if lengths:
            raise Answer(400, "a CONNECT request has no body")
        host, port = _authority(target)
        if port is None:
            raise Answer(400, "a CONNECT request names a host and a port")
        return Request(method, host, port)
    address = HTTP_TARGET.fullmatch(target)
    if address is None:
        raise Answer(400, "a request to this proxy names a whole http address; https goes by CONNECT")
    host, port = _authority(address[1])
    port = port or 80
    ended_here = HOP_BY_HOP | {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    named = (f"[{host}]" if ":" in host else host) + ("" if port == 80 else f":{port}")
    path = (address[2] or "/") + (address[3] or "")
    out = [f"{method} {path} HTTP/1.1".encode(), b"Host: " + named.encode()]
    out += [name + b": " + value for name, value in headers if name.lower() not in ended_here]
    # written by us, whatever Connection says: where the body ends is where nothing more is sent
    out += [b"Content-Length: " + value for value in lengths] + [b"Connection: close", b"", b""]
    return Request(method, host, port, b"\r\n".join(out), int(lengths[0]) if lengths else 0)


def _authority(text: str) -> tuple[str, int | None]:
    try:
        return split_authority(text)
    except ValueError:
        raise Answer(400, "the request names no host, or one in a notation that is not accepted") from None


async def _answer(program: Stream, status: int, text: str) -> None:
    """Answer and end; the sentence stands in the status line too, which is all that many programs show."""
    body = f"{text}\n".encode()
    line = " ".join(text.split()).encode("ascii", "replace").decode()
    head = (
        f"HTTP/1.1 {status} {line}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await program.write(head.encode() + body)
    await program.write_eof()
    with contextlib.suppress(TimeoutError):  # closed while it still sends, the program might lose the answer
        async with asyncio.timeout(LINGER):
            while await program.read():
                pass
