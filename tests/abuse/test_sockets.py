"""Every network route out of the sandbox, and every route to services of the host."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.abuse.box import Box

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_WAY = {"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EPERM", "EACCES", "EPROTONOSUPPORT"}

WAYS = {
    "internet": "connect(('192.0.2.1', 80))",
    "private": "connect(('10.0.0.1', 22))",
    "bridge-gateway": "connect(('172.17.0.1', 22))",
    "metadata": "connect(('169.254.169.254', 80))",
    "container-metadata": "connect(('169.254.170.2', 80))",
    "ipv6": "connect(('2001:db8::1', 80), family=socket.AF_INET6)",
    "ipv6-metadata": "connect(('fd00:ec2::254', 80), family=socket.AF_INET6)",
    "ipv6-link-local": "connect(('fe80::1', 80, 0, 1), family=socket.AF_INET6)",
    "ipv4-in-ipv6": "connect(('::ffff:192.0.2.1', 80), family=socket.AF_INET6)",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "name-server": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.53', 53))",
    "broadcast": "broadcast('255.255.255.255')",
    "multicast": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.251', 5353))",
    "ping": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).sendto(b'\\x08\\0' + bytes(6), ('192.0.2.1', 0))",
    "bind-to-a-foreign-address": "socket.socket().bind(('192.0.2.1', 80))",
    "new-route": "netlink(24, 0x405, struct.pack('<BBBBBBBBI', 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, 1))",
    "new-interface": "netlink(16, 0x405, struct.pack('<BxHiII', 0, 0, 0, 0, 0) + attribute(3, b'abuse0\\0\\0'))",
    "new-address": "netlink(20, 0x405, struct.pack('<BBBBI', 2, 24, 0, 0, 1) + attribute(2, b'\\xc0\\0\\2\\7'))",
}
HELPERS = """
def broadcast(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.sendto(b"x", (address, 67))
def attribute(kind, value):
    value = struct.pack("<I", value) if isinstance(value, int) else value
    return struct.pack("<HH", 4 + len(value), kind) + value
def netlink(kind, flags, body):
    sock = socket.socket(16, socket.SOCK_RAW, 0)
    sock.send(struct.pack("<IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    error = -struct.unpack_from("<i", sock.recv(1000), 16)[0]
    if error: raise OSError(error, "")
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def outcomes(module_box: Box) -> dict[str, str]:
    return await module_box.outcomes(WAYS, HELPERS)


@pytest.mark.parametrize("way", WAYS)
async def test_no_way_out(outcomes: dict[str, str], way: str) -> None:
    assert outcomes[way] in NO_WAY


async def test_no_name_is_resolved(box: Box) -> None:
    done = await box.python("print(outcome(lambda: socket.getaddrinfo('example.com', 80)))", timeout=20)
    assert done.stdout.strip() in {b"gai -3", b"gai -2"}


async def test_loopback_works_inside(box: Box) -> None:
    """Counter-check of the refusals above: an allowed connection works."""
    program = (
        "server = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(server.getsockname())\n"
        "client.sendall(b'x'); assert server.accept()[0].recv(1) == b'x'\n"
        "pair = socket.socketpair(); pair[0].send(b'x'); assert pair[1].recv(1) == b'x'\n"
        "socket.socket(16, socket.SOCK_RAW, 0)"
    )
    done = await box.python(program)
    assert done.exit == 0, done.stderr.decode()


def visited(listener: socket.socket) -> bool:
    """Return whether a client has connected."""
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def host_listeners(tmp_path: Path) -> Iterator[dict[str, socket.socket]]:
    """Services of the host that listen on loopback, on all addresses, on an abstract name and on a path."""
    with ExitStack() as stack:
        found = {}
        for name, family, address in (
            ("loopback", socket.AF_INET, ("127.0.0.1", 0)),
            ("every-address", socket.AF_INET, ("0.0.0.0", 0)),
            ("every-ipv6-address", socket.AF_INET6, ("::", 0)),
            ("abstract", socket.AF_UNIX, f"\0m3agent-abuse-{secrets.token_hex(8)}"),
            ("path", socket.AF_UNIX, str(tmp_path / "socket")),
        ):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.bind(address)
            sock.listen()
            found[name] = sock
        yield found


async def test_services_of_the_host_cannot_be_reached(
    box: Box, host_listeners: dict[str, socket.socket]
) -> None:
    asks = {}
    for name, listener in host_listeners.items():
        address = listener.getsockname()
        if listener.family == socket.AF_UNIX:
            asks[name] = f"connect({address if isinstance(address, bytes) else address.encode()!r})"
        elif listener.family == socket.AF_INET6:
            asks[name] = f"connect(('::1', {address[1]}), family=socket.AF_INET6)"
        else:
            asks[name] = f"connect(('127.0.0.1', {address[1]}))"
    outcomes = await box.outcomes(asks)
    await box.open()
    assert set(outcomes) == set(host_listeners)
    assert set(outcomes.values()) <= {"ECONNREFUSED", "ENOENT", "EADDRNOTAVAIL"}
    assert not any(visited(listener) for listener in host_listeners.values())


async def test_no_socket_of_the_host_lies_in_the_file_system(box: Box) -> None:
    """No socket of Docker, D-Bus, an ssh agent or any other program outside is visible."""
    words = [
        "find",
        "/",
        "(",
        "-path",
        "/proc",
        "-o",
        "-path",
        "/sys",
        ")",
        "-prune",
        "-o",
        "-type",
        "s",
        "-print",
    ]
    done = await box.sandbox.exec(words, timeout=120)
    assert done.stdout == b""
    assert not [line for line in done.stderr.splitlines() if b"Permission denied" not in line]
    walked = await box.sandbox.exec(["find", "/", "-maxdepth", "1", "-name", "usr"])
    assert walked.stdout == b"/usr\n"


async def test_nothing_of_the_host_s_network_shows(box: Box) -> None:
    program = (
        "links = [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]\n"
        "print([name for name in links if name.startswith(('eth', 'en', 'wl', 'docker', 'br', 'veth'))])\n"
        "print(len(open('/proc/net/unix').readlines()), len(open('/proc/net/tcp').readlines()), len(open('/proc/net/arp').readlines()))"
    )
    done = await box.python(program)
    interfaces, counts = done.stdout.decode().splitlines()
    assert interfaces == "[]"
    assert counts == "1 1 1", "each list holds its heading only"
