"""A sandbox's network through its proxy, with real programs inside and real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest

from m3agent.sandbox.backends.sandbox import ExecResult, Sandbox
from m3agent.sandbox.network.allow_list import may_reach, parse_hosts
from m3agent.sandbox.network.network import MOST, Network
from m3agent.sandbox.network.proxy import Caps, NetworkRequest, Proxy
from tests.conftest import until

pytestmark = pytest.mark.supervisor

SandboxOf = Callable[..., Sandbox]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TUNNEL = """
import socket, sys
def tunnel(port, host="up.example.org"):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(b"CONNECT %s:%d HTTP/1.1\\r\\n\\r\\n" % (host.encode(), port))
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        piece = s.recv(1)
        if not piece: break
        head += piece
    if not head.startswith(b"HTTP/1.1 200 "): sys.exit(head.decode())
    return s
"""
FETCH = """
import sys, urllib.request, urllib.error
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(error)
"""


class Upstream:
    """A server on loopback that counts its connections: all so far (`seen`) and the current ones (`open`)."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.seen = 0
        self.open = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def until_open(self, count: int) -> None:
        await until(lambda: self.open == count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        self.open += 1
        try:
            with contextlib.suppress(ConnectionError):
                await self.handler(reader, writer)
        finally:
            self.open -= 1
            writer.close()


async def say_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    body = head.split(b"\r\n")[0]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def resolve(host: str, port: int) -> list[str]:
    """Resolve the host names of the tests: both are on loopback, and one also has a public address."""
    return {"up.example.org": ["127.0.0.1"], "inside.example.org": ["127.0.0.1", "93.184.215.14"]}[host]


def loopback(address: str) -> bool:
    return address == "127.0.0.1"


def open_to(
    sandbox: Sandbox, hosts: str, *, caps: Caps | None = None, guarded: bool = False
) -> list[NetworkRequest]:
    """Give a sandbox a network to the tests' servers, before it starts. Return the log, which fills while it runs."""
    log: list[NetworkRequest] = []
    reach = may_reach if guarded else loopback
    proxy = Proxy(parse_hosts(hosts), log=log.append, caps=caps, resolve=resolve, reach=reach)
    sandbox.network = Network(proxy)
    return log


async def python(sandbox: Sandbox, script: str, *args: object, stdin: bytes = b"") -> ExecResult:
    argv = ["python3", "-c", script, *(str(arg) for arg in args)]
    return await sandbox.exec(argv, stdin=stdin, timeout=60)


def sockets() -> set[str]:
    """Return the open sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found.add(target)
    return found


async def test_listed_hosts_answer_and_others_do_not(sandbox_of: SandboxOf) -> None:
    sandbox = sandbox_of()
    async with Upstream(say_hello) as up:
        log = open_to(sandbox, f"up.example.org:{up.port}")
        async with sandbox:
            allowed = await python(sandbox, FETCH, f"http://up.example.org:{up.port}/a?b=c")
            assert allowed.stdout.decode() == "200 GET /a?b=c HTTP/1.1\n"
            other = (await python(sandbox, FETCH, "http://other.example.org/")).stdout.decode()
            assert other.startswith("403 other.example.org:80 is not allowed for this sandbox")
            assert "--allow-net" in other
            port = (await python(sandbox, FETCH, "http://up.example.org/")).stdout.decode()
            assert port.startswith("403 up.example.org:80 is not allowed")
            secure = (await python(sandbox, FETCH, "https://other.example.org/")).stdout.decode()
            assert "403 other.example.org:443 is not allowed" in secure
        assert up.seen == 1
    assert [(r.method, r.host, r.port, r.verdict) for r in log] == [
        ("GET", "up.example.org", up.port, "allowed"),
        ("GET", "other.example.org", 80, "refused"),
        ("GET", "up.example.org", 80, "refused"),
        ("CONNECT", "other.example.org", 443, "refused"),
    ]
    assert log[0].received > 20
    assert log[0].sent == 0


async def test_internal_addresses_are_never_reached(sandbox_of: SandboxOf) -> None:
    sandbox = sandbox_of()
    async with Upstream(say_hello) as up:
        log = open_to(sandbox, f"*.example.org:{up.port},up.example.org:80", guarded=True)
        async with sandbox:
            for host in (
                "169.254.169.254",
                "127.0.0.1",
                "2130706433",
                "0x7f.1",
                "[::1]",
                "[::ffff:127.0.0.1]",
            ):
                # connect directly to the proxy: no_proxy would bypass it for some of these
                script = TUNNEL + "tunnel(int(sys.argv[1]), sys.argv[2])"
                done = await python(sandbox, script, up.port, host)
                assert re.match(r"HTTP/1.1 40[03] ", done.stderr.decode()), (host, done)
            for host in ("up.example.org", "inside.example.org"):
                answer = (await python(sandbox, FETCH, f"http://{host}:{up.port}/")).stdout.decode()
                assert answer.startswith(f"403 {host} is at 127.0.0.1, not a public address")
        assert up.seen == 0
    assert {r.verdict for r in log} == {"refused"}
    assert len(log) == 8


@pytest.mark.slow
async def test_bytes_arrive_whole_both_ways_beside_commands(sandbox_of: SandboxOf) -> None:
    script = TUNNEL + (
        "import hashlib, os, threading\n"
        "s = tunnel(int(sys.argv[1])); data = os.urandom(1 << 20) * 20\n"
        "def send(): s.sendall(data); s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=send).start()\n"
        "got = hashlib.sha256(); n = 0\n"
        "while True:\n"
        "    piece = s.recv(1 << 16)\n"
        "    if not piece: break\n"
        "    got.update(piece); n += len(piece)\n"
        "print(n, got.digest() == hashlib.sha256(data).digest())\n"
    )
    sandbox = sandbox_of()
    async with Upstream(echo) as up:
        log = open_to(sandbox, f"up.example.org:{up.port}")
        async with sandbox:
            moving = asyncio.create_task(python(sandbox, script, up.port))
            count = 0
            while not moving.done():
                await sandbox.ping()
                count += 1
            done = await moving
            assert done.stdout.decode() == f"{20 << 20} True\n", done.stderr
            await until(lambda: log)
            assert count > 10, "commands waited for the network"
    assert (log[0].sent, log[0].received) == (20 << 20, 20 << 20)
    assert log[0].reason == ""


@pytest.mark.slow
async def test_one_that_is_not_read_holds_up_nothing(sandbox_of: SandboxOf) -> None:
    """If a program or a host does not read, memory stays small and commands continue."""

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    asleep = TUNNEL + "import time\ns = tunnel(int(sys.argv[1])); print('up', flush=True); time.sleep(100)"
    pushing = (
        TUNNEL + "s = tunnel(int(sys.argv[1])); print('up', flush=True)\nwhile True: s.sendall(b'x' * 65536)"
    )
    stuck = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stuck.wait()

    sandbox = sandbox_of()
    async with Upstream(flood) as fast, Upstream(deaf) as slow:
        log = open_to(sandbox, f"up.example.org:{fast.port},up.example.org:{slow.port}")
        async with sandbox:
            for script, up in ((asleep, fast), (pushing, slow)):
                await sandbox.exec(["python3", "-c", script, str(up.port)], background=True)
                await up.until_open(1)
            for _ in range(20):
                assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        stuck.set()
    assert [r.reason for r in log] == ["cut off: the sandbox was closed"] * 2
    assert all(r.sent + r.received < 16 << 20 for r in log)


async def test_a_hundred_connections_at_once(sandbox_of: SandboxOf) -> None:
    script = (
        "import socket, sys\n"
        "port, good = int(sys.argv[1]), 0\n"
        "every = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(100)]\n"
        "for n, s in enumerate(every):\n"
        "    s.sendall(b'CONNECT up.example.org:%d HTTP/1.1\\r\\n\\r\\n%d' % (port, n)); s.shutdown(socket.SHUT_WR)\n"
        "for n, s in enumerate(every):\n"
        "    got = b''.join(iter(lambda: s.recv(100), b'')); s.close()\n"
        "    good += got.startswith(b'HTTP/1.1 200 ') and got.endswith(b'\\r\\n\\r\\n%d' % n)\n"
        "print(good)\n"
    )
    sandbox = sandbox_of()
    async with Upstream(echo) as up:
        log = open_to(sandbox, f"up.example.org:{up.port}")
        async with sandbox:
            done = await python(sandbox, script, up.port)
            assert done.stdout == b"100\n", done.stderr
            await until(lambda: len(log) == 100)
    assert up.seen == 100
    assert [(r.verdict, r.reason) for r in log] == [("allowed", "")] * 100


async def test_idle_connections_hold_places_and_the_rest_wait(sandbox_of: SandboxOf) -> None:
    script = TUNNEL + (
        "port = int(sys.argv[1])\n"
        "held = [tunnel(port) for _ in range(int(sys.argv[2]))]\n"
        "more = socket.create_connection(('127.0.0.1', 3128)); more.settimeout(0.3)\n"
        "more.sendall(b'CONNECT up.example.org:%d HTTP/1.1\\r\\n\\r\\n' % port)\n"
        "try: print(more.recv(100))\n"
        "except TimeoutError: print('waits', flush=True)\n"
        "held.pop().close(); more.settimeout(20)\n"
        "print(more.recv(12).decode())\n"
    )
    sandbox = sandbox_of()
    async with Upstream(hold) as up:
        open_to(sandbox, f"up.example.org:{up.port}")
        async with sandbox:
            done = await python(sandbox, script, up.port, MOST)
            assert done.stdout == b"waits\nHTTP/1.1 200\n", done.stderr
            # the end of the command has closed all its connections
            await up.until_open(0)


async def test_abrupt_ends_on_either_side(sandbox_of: SandboxOf) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"y" * 1000)
        await writer.drain()
        writer.transport.abort()

    from_host = TUNNEL + (
        "s = tunnel(int(sys.argv[1])); s.sendall(b'x'); n = 0\n"
        "try:\n"
        "    while True:\n"
        "        piece = s.recv(4096)\n"
        "        if not piece: break\n"
        "        n += len(piece)\n"
        "except ConnectionError: pass\n"
        "print('ended')\n"
    )
    from_program = TUNNEL + (
        "import struct\n"
        "s = tunnel(int(sys.argv[1])); s.sendall(b'x' * 1000)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()\n"
    )
    sandbox = sandbox_of()
    async with Upstream(reset) as up, Upstream(hold) as held:
        log = open_to(sandbox, f"up.example.org:{up.port},up.example.org:{held.port}")
        async with sandbox:
            assert (await python(sandbox, from_host, up.port)).stdout == b"ended\n"
            assert (await python(sandbox, from_program, held.port)).exit == 0
            await until(lambda: held.seen == 1 and held.open == 0)
            killed = await sandbox.exec(
                [
                    "python3",
                    "-c",
                    TUNNEL + "import os\ntunnel(int(sys.argv[1])); os.kill(0, 9)",
                    str(held.port),
                ]
            )
            assert killed.exit == -9
            await until(lambda: held.seen == 2 and held.open == 0)
            await until(lambda: len(log) == 3)
            await sandbox.ping()


@pytest.mark.slow
async def test_a_storm_of_broken_connections_leaves_every_place_free(sandbox_of: SandboxOf) -> None:
    storm = (
        "import socket, struct\n"
        "for n in range(1500):\n"
        "    s = socket.create_connection(('127.0.0.1', 3128))\n"
        "    if n % 3: s.sendall(b'CONNECT up.example.org:1 HTTP/1.1\\r\\n\\r\\n'[: n % 40])\n"
        "    if n % 2: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
        "    s.close()\n"
    )
    held = TUNNEL + "held = [tunnel(int(sys.argv[1])) for _ in range(int(sys.argv[2]))]; print(len(held))"
    sandbox = sandbox_of()
    async with Upstream(hold) as up:
        open_to(sandbox, f"up.example.org:{up.port}")
        async with sandbox:
            assert (await python(sandbox, storm)).exit == 0
            assert (await python(sandbox, held, up.port, MOST)).stdout == b"%d\n" % MOST


@pytest.mark.slow
async def test_nothing_is_left_when_the_sandbox_closes_under_its_connections(sandbox_of: SandboxOf) -> None:
    script = TUNNEL + "import time\nheld = [tunnel(int(sys.argv[1])) for _ in range(10)]; time.sleep(100)"
    for end in ("close", "death"):
        sandbox = sandbox_of()
        async with Upstream(hold) as up:
            before, tasks = sockets(), asyncio.all_tasks()
            log = open_to(sandbox, f"up.example.org:{up.port}")
            async with sandbox:
                await sandbox.exec(["python3", "-c", script, str(up.port)], background=True)
                await up.until_open(10)
                if end == "death":
                    await sandbox.machine.destroy()
                    await up.until_open(0)
            await up.until_open(0)
            assert len(log) == 10
            assert asyncio.all_tasks() <= tasks
            assert sockets() <= before


@pytest.mark.slow
async def test_caps_on_bytes_requests_and_time(sandbox_of: SandboxOf) -> None:
    flood = TUNNEL + (
        "s = tunnel(int(sys.argv[1])); n = 0\n"
        "try:\n"
        "    while True: s.sendall(b'x' * 10000); n += 1\n"
        "except OSError: print('cut')\n"
    )
    wait = TUNNEL + "s = tunnel(int(sys.argv[1])); s.settimeout(60); print(s.recv(1))"
    sandbox = sandbox_of()
    async with Upstream(hold) as up:
        log = open_to(sandbox, f"up.example.org:{up.port}", caps=Caps(bytes=1_000_000, requests=2))
        async with sandbox:
            assert (await python(sandbox, flood, up.port)).stdout == b"cut\n"
            assert b"its limit" in (await python(sandbox, wait, up.port)).stderr
            assert b"2 requests" in (await python(sandbox, wait, up.port)).stderr
        other = sandbox_of()
        silent = open_to(other, f"up.example.org:{up.port}", caps=Caps(idle=0.5))
        async with other:
            assert (await python(other, wait, up.port)).stdout == b"b''\n"
    assert [r.verdict for r in log] == ["allowed", "refused"]
    assert "used up" in log[0].reason
    assert log[0].sent < 2_000_000
    assert "silent" in silent[0].reason


async def test_commands_are_led_to_the_proxy(sandbox_of: SandboxOf) -> None:
    sandbox = sandbox_of()
    open_to(sandbox, "up.example.org")
    async with sandbox:
        env = (await sandbox.exec(["env"])).stdout.decode().splitlines()
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            assert f"{name}=http://127.0.0.1:3128" in env
        assert "no_proxy=localhost,127.0.0.1,::1" in env
        assert not [line for line in env if line.startswith("PIP_NO_INDEX")]
        context = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
        host_has = Path("/etc/ssl/certs/ca-certificates.crt").exists()
        assert int((await python(sandbox, context)).stdout) > 0 or not host_has
        links = await sandbox.exec(["cat", "/proc/net/route"])
        assert len(links.stdout.splitlines()) <= 1, "there is a route out"


async def test_without_it_nothing_listens(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        connect = "import socket; socket.create_connection(('127.0.0.1', 3128), timeout=5)"
        assert b"ConnectionRefusedError" in (await python(sandbox, connect)).stderr
        env = (await sandbox.exec(["env"])).stdout.decode()
        assert "proxy" not in env.lower()
        assert "PIP_NO_INDEX=1" in env
        assert len((await sandbox.exec(["cat", "/proc/net/route"])).stdout.splitlines()) <= 1
