"""The proxy through which a sandbox with `--allow-net`, or a build, reaches its hosts: HTTP CONNECT, and plain http.

It trusts no input from the sandbox. It parses each request strictly and forwards only the parsed parts, one
request per connection. It resolves each name once, on the host, and connects to the address that it checked.
So a name cannot change to another address in between.

Inside a CONNECT tunnel, the program controls the bytes. It can talk to everyone who serves the listed host, or
shares its servers, and can send them anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

from m3agent.sandbox.network.allow_list import AllowedHost, as_address, may_reach, split_authority
from m3agent.sandbox.network.upstream import NextProxy, Upstream

PORT = 3128
"""Port of the proxy on the sandbox's 127.0.0.1."""
LONGEST_HEAD = 16 << 10  # bytes of the request line and the headers
MOST_HEADERS = 100
CHUNK = 64 << 10
PATIENCE = 5.0  # seconds for each of several addresses to answer
LINGER = 2.0  # seconds that a refused program may continue to send before the connection is closed

REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([\x21-\x7e]+) HTTP/1\.[01]")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")
HTTP_TARGET = re.compile(r"http://([^/?#@]+)(/[^#]*)?(\?[^#]*)?", re.IGNORECASE)
LENGTH = re.compile(rb"[0-9]{1,15}")
HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"upgrade", b"host", b"content-length"),
}
"""Headers that a proxy must not forward (RFC 9110, 7.6.1), and two that it replaces by its own."""


@dataclass(frozen=True)
class Caps:
    """Limits on the network use of one sandbox."""

    bytes: int = 4 << 30
    """Bytes in both directions, for all connections together."""
    requests: int = 10_000
    head: float = 15.0
    """Seconds to receive the head of a request."""
    connect: float = 20.0
    """Seconds to connect to the host."""
    idle: float = 120.0
    """Seconds without any data before a connection is closed."""
    connection: float = 1800.0
    """Longest duration of a connection in seconds."""


@dataclass
class NetworkRequest:
    """One request of a program in the sandbox. The proxy fills it in until the request is finished."""

    method: str = ""
    host: str = ""
    """Host of the request; empty if the request was malformed."""
    port: int = 0
    """Port of the request; 0 if the request was malformed."""
    verdict: Literal["allowed", "refused", "failed"] = "refused"
    """Whether the proxy forwarded the request."""
    reason: str = ""
    """Why it was refused, failed or was cut off; empty if it finished normally."""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Refusals:
    """What the answers to refused requests say."""

    unlisted: str = "is not allowed for this sandbox: the user allows hosts with --allow-net"
    """Follows a host and a port that are not allowed."""
    inside: str = "a sandbox never reaches such addresses, even with --allow-net"
    """Follows an address that is not public."""


class Stream(Protocol):
    """A connection, as the proxy uses it; its methods raise OSError if it broke."""

    async def read(self) -> bytes:
        """Return at least one byte of received data; empty if the other side sends no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send data; wait while the other side is slow."""
        ...

    async def write_eof(self) -> None:
        """Signal that no more data will be sent."""
        ...


@dataclass(frozen=True)
class ProxyRequest:
    """A parsed request."""

    method: str
    host: str
    """Normalised host."""
    port: int
    head: bytes = b""
    """Head to send to the host instead of the original; empty for CONNECT."""
    length: int = 0
    """Bytes of the body."""


class ProxyResponse(Exception):
    """The proxy answers the request itself, with an HTTP status and a sentence, instead of forwarding it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Proxy:
    """Serve the connections of one sandbox.

    Args:
        log: Called with every finished request. Requests beyond `Caps.requests` are refused and not logged.
        upstream: This machine's own proxies. One of them gets the name of a host, so addresses are checked only as far as
            this machine can resolve the name.
    """

    def __init__(
        self,
        hosts: Iterable[AllowedHost],
        *,
        log: Callable[[NetworkRequest], None] = lambda _: None,
        caps: Caps | None = None,
        resolve: Callable[[str, int], Awaitable[list[str]]] | None = None,
        reach: Callable[[str], bool] = may_reach,
        refusals: Refusals | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.hosts = tuple(hosts)
        self._log = log
        self._caps = caps or Caps()
        self._resolve = resolve or lookup
        self._reach = reach
        self._refusals = refusals or Refusals()
        self._upstream = upstream or Upstream()
        self._requests = 0
        self._bytes = 0

    async def serve(self, program: Stream) -> None:
        """Serve one connection until it ends.

        Raises:
            OSError: The connection to the program broke during an answer.
        """
        self._requests += 1
        if self._requests > self._caps.requests:
            await _answer(program, 403, f"this sandbox has made {self._caps.requests} requests, its limit")
            return
        use = NetworkRequest()
        started = time.monotonic()
        try:
            await self._serve(program, use)
        except ProxyResponse as answer:
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
            if use.host and use.verdict == "refused":  # a rule would have given the reason
                use.verdict = "failed"
            raise
        finally:
            if use.method or use.reason:  # otherwise the connection was closed without any data
                use.seconds = round(time.monotonic() - started, 3)
                self._log(use)

    async def _serve(self, program: Stream, use: NetworkRequest) -> None:
        try:
            async with asyncio.timeout(self._caps.head):
                head, rest = await _read_head(program)
        except TimeoutError:
            raise ProxyResponse(408, "no complete request arrived in time") from None
        if not head:
            return
        request = parse(head)
        use.method, use.host, use.port = request.method, request.host, request.port
        if not any(entry.allows(request.host, request.port) for entry in self.hosts):
            raise ProxyResponse(403, f"{request.host}:{request.port} {self._refusals.unlisted}")
        if self._bytes >= self._caps.bytes:
            raise ProxyResponse(
                403, f"this sandbox has moved {self._caps.bytes} bytes over the network, its limit"
            )
        scheme = "https" if request.method == "CONNECT" else "http"
        beyond = self._upstream.of(scheme, request.host)
        if request.method == "TRACE" and beyond is not None:  # its answer would show our credentials
            raise ProxyResponse(403, "TRACE is not possible through the proxy of this machine")
        async with await self._connect(request, beyond) as host:
            if beyond is not None:
                request = replace(request, head=_for_proxy(request, beyond))
                host.beyond = beyond if request.head else None
            use.verdict = "allowed"
            if request.method == "CONNECT":
                await program.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._relay(request, rest, program, host, use)

    async def _connect(self, request: ProxyRequest, beyond: NextProxy | None) -> Host:
        """Connect to the host, at a checked address, or to the proxy `beyond`."""
        where = f"{request.host}:{request.port}"
        anywhere = any(entry.anywhere and entry.allows(request.host, request.port) for entry in self.hosts)
        try:
            async with asyncio.timeout(self._caps.connect):
                addresses = [request.host]
                if as_address(request.host) is None:
                    addresses = await self._addresses(request, known=beyond is None)
                for address in addresses:
                    # one bad address refuses the name: it may be a trap
                    if not anywhere and not self._reach(address):
                        raise ProxyResponse(
                            403,
                            f"{request.host} is at {address}, not a public address of another machine: "
                            f"{self._refusals.inside}",
                        )
                if beyond is not None:
                    return await _open_through(beyond, request)
                return await _open(addresses, request.port)
        except TimeoutError:
            raise ProxyResponse(504, f"{where} does not answer") from None
        except OSError as error:
            raise ProxyResponse(502, f"cannot connect to {where}: {error.strerror or error}") from None

    async def _addresses(self, request: ProxyRequest, *, known: bool) -> list[str]:
        """Resolve the host's name. If it need not be known here, because another proxy connects, it may have none."""
        try:
            return await self._resolve(request.host, request.port)
        except OSError:
            if known:
                raise
            return []

    async def _relay(
        self, request: ProxyRequest, rest: bytes, program: Stream, host: Host, use: NetworkRequest
    ) -> None:
        """Forward bytes until both sides are done, the connection is idle too long, or a limit is reached."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._caps.connection
        tunnel = request.method == "CONNECT"

        def moved(count: int) -> None:
            self._bytes += count
            if self._bytes > self._caps.bytes:
                raise OSError(f"the sandbox's {self._caps.bytes} bytes of network traffic are used up")
            clock.reschedule(min(end, loop.time() + self._caps.idle))

        async def up() -> None:
            await host.write(request.head)
            data, left = rest, request.length
            while tunnel or left:
                data = data or await program.read()
                if not data:
                    break
                piece = data if tunnel else data[:left]  # data after the first request is not forwarded
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
    """A TCP connection as a `Stream` and a context manager; after an error it closes immediately."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tail = b""
        self.beyond: NextProxy | None = None
        """The proxy whose answers are relayed: its credentials are masked in them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # written data may not have been sent yet
            self._writer.close()
            with contextlib.suppress(OSError):  # a TimeoutError is one
                async with asyncio.timeout(LINGER):
                    await self._writer.wait_closed()
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def read(self) -> bytes:
        """Return received data; empty at the end."""
        if self.beyond is None:
            return await self._reader.read(CHUNK)
        while data := await self._reader.read(CHUNK):
            whole = self.beyond.masked(self._tail + data)
            ready = len(whole) - self.beyond.withheld(whole)
            self._tail = whole[ready:]
            if ready:
                return whole[:ready]
        last, self._tail = self._tail, b""
        return last

    async def write(self, data: bytes) -> None:
        """Send data; wait while the other side is slow."""
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        """Signal that no more data will be sent."""
        self._writer.write_eof()

    async def read_head(self) -> bytes:
        """Return the head of an HTTP answer; data after it stays unread. Raises OSError."""
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except (EOFError, asyncio.LimitOverrunError):
            raise OSError("the proxy of this machine sent no answer") from None


async def _open(addresses: Sequence[str], port: int) -> Host:
    """Connect to the first address that answers; all but the last get only `PATIENCE` seconds."""
    failure = OSError("it has no address")
    for number, address in enumerate(addresses, start=1):
        patience = PATIENCE if number < len(addresses) else None
        try:
            async with asyncio.timeout(patience):
                # the address is numeric: no further name lookup
                return Host(*await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST))
        except OSError as error:  # a TimeoutError is one
            failure = error
    raise failure


async def _open_through(proxy: NextProxy, request: ProxyRequest) -> Host:
    """Connect to another proxy; for CONNECT, also through it to the host."""
    async with contextlib.AsyncExitStack() as closed_on_error:
        host = await closed_on_error.enter_async_context(
            await _open(await lookup(proxy.host, proxy.port), proxy.port)
        )
        if request.method == "CONNECT":
            where = f"{_named(request.host)}:{request.port}"
            start = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n".encode()
            await host.write(start + proxy.header + b"\r\n")
            status = proxy.masked((await host.read_head()).split(b"\r\n")[0]).decode(errors="replace")
            if status.split(" ")[1:2] != ["200"]:
                raise OSError(f"the proxy of this machine refused: {status[:80]}")
        closed_on_error.pop_all()
        return host


def _for_proxy(request: ProxyRequest, proxy: NextProxy) -> bytes:
    """Return a request's head with the whole address and the credentials, as a proxy needs it; empty for CONNECT."""
    method, _, rest = request.head.partition(b" ")
    if not rest:
        return b""
    port = "" if request.port == 80 else f":{request.port}"
    line, _, headers = rest.partition(b"\r\n")
    where = f"{_named(request.host)}{port}".encode()
    return b"%b http://%b%b\r\n%b%b" % (method, where, line, proxy.header, headers)


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def lookup(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as this machine resolves it; raises OSError.

    It runs in a daemon thread of its own: the program's end would wait for the threads of a pool, and so for
    a hanging name server.
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
        # A final dot makes the name absolute, so no search list of this machine applies. Names that are only
        # in its hosts file are not found with the dot, so the name is also tried without it.
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
    """Return the request's head, without the empty line at its end, and the data after that line."""
    data = b""
    while True:
        head, end, rest = data[: LONGEST_HEAD + 4].partition(b"\r\n\r\n")
        if end:
            return head, rest + data[LONGEST_HEAD + 4 :]
        if len(data) > LONGEST_HEAD:
            raise ProxyResponse(431, f"a request's head is at most {LONGEST_HEAD} bytes")
        more = await program.read()
        if not more:
            if data:
                raise ProxyResponse(400, "the request ends within its head")
            return b"", b""
        data += more


def parse(head: bytes) -> ProxyRequest:
    """Parse the head of a request, without the empty line at its end.

    Raises:
        ProxyResponse: The request is neither a well-formed CONNECT, nor an http request with an absolute address
            and, if it has a body, one plain Content-Length.
    """
    first, *lines = head.split(b"\r\n")
    line = REQUEST_LINE.fullmatch(first)
    if line is None:
        raise ProxyResponse(400, "this is a proxy for HTTP and CONNECT, and the request is neither")
    headers = _headers(lines)
    method, target = line[1].decode(), line[2].decode()
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    if method == "CONNECT":
        if lengths:
            raise ProxyResponse(400, "a CONNECT request has no body")
        host, port = _authority(target)
        if port is None:
            raise ProxyResponse(400, "a CONNECT request names a host and a port")
        return ProxyRequest(method, host, port)
    address = HTTP_TARGET.fullmatch(target)
    if address is None:
        raise ProxyResponse(400, "a request to this proxy must name a full http address; https uses CONNECT")
    host, port = _authority(address[1])
    port = port or 80
    named = _named(host) + ("" if port == 80 else f":{port}")
    out = [f"{method} {address[2] or '/'}{address[3] or ''} HTTP/1.1".encode(), b"Host: " + named.encode()]
    out += [name + b": " + value for name, value in _forwarded(headers)]
    # Set by us, whatever the Connection header lists: the proxy forwards exactly the body and nothing after
    # it.
    out += [b"Content-Length: " + value for value in lengths] + [b"Connection: close", b"", b""]
    return ProxyRequest(method, host, port, b"\r\n".join(out), int(lengths[0]) if lengths else 0)


def _headers(lines: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return names and values of headers, of which at most one says how long the body is."""
    if len(lines) > MOST_HEADERS:
        raise ProxyResponse(431, f"a request has at most {MOST_HEADERS} headers")
    matches = [match for match in map(HEADER.fullmatch, lines) if match is not None]
    if len(matches) < len(lines):
        raise ProxyResponse(400, "a header of the request is malformed")
    values: dict[bytes, list[bytes]] = {}
    for match in matches:
        values.setdefault(match[1].lower(), []).append(match[2])
    if b"transfer-encoding" in values:
        raise ProxyResponse(411, "this proxy accepts a request body only with a Content-Length")
    lengths = values.get(b"content-length", [b"0"])
    if len(lengths) > 1 or not LENGTH.fullmatch(lengths[0]):
        raise ProxyResponse(400, "the Content-Length of the request is malformed")
    return [(match[1], match[2]) for match in matches]


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not about the connection to this proxy."""
    lists = [value.split(b",") for name, value in headers if name.lower() == b"connection"]
    ended_here = HOP_BY_HOP | {token.strip().lower() for tokens in lists for token in tokens}
    return [header for header in headers if header[0].lower() not in ended_here]


def _authority(text: str) -> tuple[str, int | None]:
    try:
        return split_authority(text)
    except ValueError:
        raise ProxyResponse(
            400, "the request names no host, or names it in an unsupported notation"
        ) from None


async def _answer(program: Stream, status: int, text: str) -> None:
    """Send an answer and close the stream.

    The sentence is also in the status line, because many programs show only that.
    """
    body = f"{text}\n".encode()
    line = " ".join(text.split()).encode("ascii", "replace").decode()
    head = (
        f"HTTP/1.1 {status} {line}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await program.write(head.encode() + body)
    await program.write_eof()
    with contextlib.suppress(TimeoutError):  # closing while the program still sends could lose the answer
        async with asyncio.timeout(LINGER):
            while await program.read():
                pass
