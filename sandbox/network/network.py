"""Give a sandbox a network: only the proxy, and only if the user lists hosts.

The sandbox itself has no network device except loopback. Programs find the proxy by the usual variables;
programs that ignore them reach nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.network.proxy import PORT, Proxy
from m3agent.sandbox.protocol.channel import Channel, ChannelRequest, Header

HERE = "localhost,127.0.0.1,::1"
VARIABLES = {
    # curl reads http_proxy in lower case only; other programs read upper case only
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://127.0.0.1:{PORT}"),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), HERE),
}
"""What tells programs where the proxy is."""
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Usual paths of the system's bundle of trusted certificate authorities."""
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT")
MOST = 64  # connections at once; further ones wait
WINDOW = 256 << 10  # bytes in flight in one direction of one connection: at most 32 MiB for all together
CHUNK = 64 << 10  # bytes in one frame; small, so that other commands' frames are not delayed
LINGER = 10.0  # seconds for the program in the sandbox to accept the last bytes


class Network:
    """The network connection of one sandbox."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._tunnel: Tunnel | None = None

    async def open(self, channel: Channel) -> dict[str, str]:
        """Start the tunnel over the sandbox's channel; return the variables that name the proxy."""
        self._tunnel = await Tunnel.open(channel, PORT, self.proxy.serve)
        return dict(VARIABLES)

    async def close(self) -> None:
        """Close every connection; safe to call twice."""
        if self._tunnel is not None:
            await self._tunnel.close()


async def lend_certificates(run: Callable[[list[str], bytes], Awaitable[int]], path: str) -> dict[str, str]:
    """Copy this host's certificate bundle into a sandbox if its image has none.

    Returns:
        Variables that name the bundle; empty if nothing was copied.
    """
    script = f"for f in {' '.join(BUNDLES)}; do test -e $f && exit 3; done; exit 0"
    if await run(["sh", "-c", script], b"") != 0:
        return {}
    bundle = await asyncio.to_thread(_host_bundle)
    if bundle is None or await run(["sh", "-c", 'cat > "$0"', path], bundle) != 0:
        return {}
    return dict.fromkeys(BUNDLE_VARIABLES, path)


def _host_bundle() -> bytes | None:
    own = ssl.get_default_verify_paths().cafile
    for name in (own, *BUNDLES):
        if name is not None and Path(name).is_file():
            return Path(name).read_bytes()
    return None


class TunnelConnection:
    """One connection from inside the sandbox; if it breaks, its methods raise ConnectionResetError."""

    def __init__(self, channel: Channel, ident: int) -> None:
        self._channel = channel
        self._id = ident
        self._inbox = bytearray()
        self._credit = WINDOW
        self._ended = False  # the program sends no more data
        self._broken = False
        self._gone = False  # the supervisor has closed its socket
        self._closed = False  # the host has sent it a `close`
        self._changed = asyncio.Event()

    async def read(self) -> bytes:
        """Return the data received since the last call: at least one byte, or empty at the end."""
        await self._until(lambda: bool(self._inbox) or self._ended)
        data = bytes(self._inbox)
        self._inbox.clear()
        if data:
            self._tell("credit", n=len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send data; wait while the program reads slowly."""
        view = memoryview(data)
        while view:
            await self._until(lambda: self._credit > 0)
            piece = view[: min(CHUNK, self._credit)]
            self._credit -= len(piece)
            self._tell("data", bytes(piece))
            with _as_reset():
                await self._channel.drain()
            view = view[len(piece) :]

    async def write_eof(self) -> None:
        """Signal that no more data will be sent; data from the program is still received."""
        self._tell("eof")

    async def close(self) -> None:
        """Close the connection after the program has read all data, or after `LINGER` seconds."""
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            self._closed = True
            self._tell("close", abort=False)
            async with asyncio.timeout(LINGER):
                while not self._gone:
                    await self._wait()
        self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        if not (self._closed and self._gone):  # the supervisor keeps the connection until it gets a `close`
            with contextlib.suppress(ConnectionResetError):
                self._tell("close", abort=True)
        self._closed = True
        self.lose()

    def take(self, header: Header, payload: bytes) -> None:
        """Process an event of this connection from the supervisor."""
        match header["ev"]:
            case "data" if len(self._inbox) + len(payload) <= WINDOW:
                self._inbox += payload
            case "eof":
                self._ended = True
            case "credit":
                self._credit += int(header["n"])
            case _:  # "closed"; or more data than was granted, which our supervisor never sends
                self._gone = self._broken = True
        self._changed.set()

    def lose(self) -> None:
        """Mark the connection as broken: the stream to the sandbox has ended."""
        self._gone = self._broken = True
        self._changed.set()

    def _tell(self, what: str, payload: bytes = b"", **fields: int) -> None:
        with _as_reset():
            self._channel.tell("tunnel", payload, conn=self._id, do=what, **fields)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._broken:
                raise ConnectionResetError("the program in the sandbox closed the connection")
            await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Tunnel:
    """The host's end: serve every connection to a port of the sandbox's loopback with `serve`, each in its own task.

    The connections travel as frames over the supervisor's stream (see `Tunnel` in `m3agent.sandbox.protocol.supervisor`).
    So nothing is mounted into the sandbox, and the engine may be on another machine.
    """

    def __init__(
        self, channel: Channel, request: ChannelRequest, serve: Callable[[TunnelConnection], Awaitable[None]]
    ) -> None:
        self._channel = channel
        self._request = request
        self._serve = serve
        self._connections: dict[int, TunnelConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump = asyncio.create_task(self._run())

    @classmethod
    async def open(
        cls, channel: Channel, port: int, serve: Callable[[TunnelConnection], Awaitable[None]]
    ) -> Tunnel:
        """Make the supervisor listen on the port.

        Raises:
            SandboxError: The supervisor cannot listen on it.
        """
        request = channel.open_request("listen", port=port, most=MOST, window=WINDOW)
        await channel.drain()
        header, _ = await request.next()
        if header["ev"] != "ok":
            raise SandboxError(f"the sandbox cannot listen on its port {port}: {header.get('text')}")
        return cls(channel, request, serve)

    async def close(self) -> None:
        """Close every connection; safe to call twice, and after the sandbox died."""
        self._pump.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._pump, *self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            with self._request as request, contextlib.suppress(SandboxError):
                while True:
                    header, payload = await request.next()
                    if header["ev"] == "opened":
                        self._open(header["conn"])
                    elif connection := self._connections.get(header["conn"]):
                        connection.take(header, payload)
        finally:
            for connection in self._connections.values():
                connection.lose()

    def _open(self, ident: int) -> None:
        connection = self._connections[ident] = TunnelConnection(self._channel, ident)
        task = asyncio.create_task(self._attend(ident, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, ident: int, connection: TunnelConnection) -> None:
        try:
            with contextlib.suppress(ConnectionResetError):
                await self._serve(connection)
            await connection.close()
        finally:
            connection.abort()
            del self._connections[ident]


@contextlib.contextmanager
def _as_reset() -> Iterator[None]:
    """Convert the death of the sandbox to ConnectionResetError."""
    try:
        yield
    except SandboxError as error:
        raise ConnectionResetError(str(error)) from None
