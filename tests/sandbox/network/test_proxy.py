"""The proxy without a sandbox: which hosts and addresses it allows, and what it accepts as a request."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.sandbox.network import proxy
from m3agent.sandbox.network.allow_list import (
    EVERY_HOST,
    INSIDE_V4,
    AllowedHost,
    describe,
    is_own,
    is_public,
    may_reach,
    parse_hosts,
    split_authority,
)
from m3agent.sandbox.network.proxy import Caps, NetworkRequest, Proxy, ProxyRequest, ProxyResponse, parse
from m3agent.sandbox.network.upstream import NextProxy, Upstream

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_.*:[]/@#%\\ \t\0A1é"


def allows(hosts: str, host: str, port: int = 443) -> bool:
    return any(entry.allows(split_authority(host)[0], port) for entry in parse_hosts(hosts))


def test_hosts_match_by_name_and_port() -> None:
    assert allows("example.org", "example.org")
    assert allows("example.org", "EXAMPLE.org.", 80)
    assert allows(" Example.Org. , b.example", "example.org")
    assert not allows("example.org", "example.org", 22)
    assert not allows("example.org", "www.example.org")
    assert not allows("example.org", "badexample.org")
    assert not allows("example.org", "example.org.evil.example")
    assert allows("*.example.org", "a.b.example.org")
    assert not allows("*.example.org", "example.org")
    assert not allows("*.example.org", "badexample.org")
    assert allows("example.org:8443", "example.org", 8443)
    assert not allows("example.org:8443", "example.org", 443)
    assert allows("8.8.8.8", "8.8.8.8")
    assert allows("[2606:4700:0::1]:443", "[2606:4700::1]")
    assert not allows("*.8.example", "8.8.8.8")
    assert not allows("", "example.org")


NEVER_OPENED = {
    "too much": ("*", "*.org", "*example.org"),
    "not a public host name": ("localhost",),
    "not a public address": ("127.0.0.1", "10.1.2.3:80", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]"),
    "not a host": (
        *("127.1", "0x7f000001", "2130706433", "0177.0.0.1", "*.8.8.8.8", "https://example.org", "::1"),
        *("example.org/path", "user@example.org", "example.org:0", "example.org:65536", "example..org"),
        *("-a.example", "a" * 64 + ".example", "exa mple.org"),
    ),
    "xn--": ("bücher.example",),
}


@pytest.mark.parametrize(
    ("entry", "says"), [(entry, says) for says, entries in NEVER_OPENED.items() for entry in entries]
)
def test_entries_that_are_never_opened(entry: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_hosts(f"example.org,{entry}")


@given(st.text(LETTERS, max_size=40))
def test_a_host_is_read_one_way_only(text: str) -> None:
    """An accepted host keeps its meaning when it is parsed again, and is a name or an address in canonical form."""
    try:
        host, _ = split_authority(text)
    except ValueError:
        return
    again = f"[{host}]" if ":" in host else host
    assert split_authority(again) == (host, None)
    assert host == host.lower()
    assert not set(host) & set("/@#%\\ \t\0*[]")
    if host.rpartition(".")[2].isdigit() or ":" in host:
        assert str(ipaddress.ip_address(host)) == host


@given(st.text(LETTERS, max_size=40))
def test_an_entry_opens_or_says_why_not(entry: str) -> None:
    try:
        hosts = parse_hosts(entry)
    except ValueError as error:
        assert str(error).strip()
        return
    for host in hosts:
        assert "." in host.host or ":" in host.host
        assert parse_hosts(f"{'*.' if host.below else ''}{'[' if ':' in host.host else ''}{host.host}"
                           f"{']' if ':' in host.host else ''}:{min(host.ports)}")  # fmt: skip


def v6_forms(address: ipaddress.IPv4Address) -> list[str]:
    """Return the IPv6 addresses that can embed an IPv4 address."""
    n = int(address)
    prefixes = (0xFFFF << 32, 0x64FF9B << 96, 0)
    wrapped = [prefix | n for prefix in prefixes]
    wrapped += [0x2002 << 112 | n << 80 | 1, 0x20010000 << 96 | (n ^ 0xFFFFFFFF), 0x64FF9B0001 << 80 | n]
    return [str(ipaddress.IPv6Address(value)) for value in wrapped]


@given(st.sampled_from(INSIDE_V4), st.integers(min_value=0, max_value=2**32 - 1))
def test_no_form_of_an_inside_address_is_public(net: ipaddress.IPv4Network, offset: int) -> None:
    address = net[offset % net.num_addresses]
    assert not is_public(str(address))
    for form in v6_forms(address):
        assert not is_public(form), form


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_calls_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(str(address)) and (address.version == 4 or address in ipaddress.ip_network("2000::/3")):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


PUBLIC = (
    *("8.8.8.8", "100.63.255.255", "172.15.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"),
)
INSIDE = (
    *("100.64.0.1", "172.16.0.1", "169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"),
    *("0.0.0.0", "255.255.255.255", "224.0.0.1", "64:ff9b::a00:1", "::1", "::", "fe80::1", "fe80::1%eth0"),
    *("2606:4700::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2002:7f00:1::"),
    *("not an address", ""),
)


@pytest.mark.parametrize("address", [*PUBLIC, *INSIDE])
def test_addresses(address: str) -> None:
    assert is_public(address) is (address in PUBLIC)


def test_this_machines_own_addresses_are_not_reached() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("8.8.8.8")
    assert not may_reach("127.0.0.1")


def test_allowed_hosts_are_described() -> None:
    text = describe(parse_hosts("*.example.org,8.8.8.8,[2606:4700::1]:8443"))
    assert "*.example.org:80,443 8.8.8.8:80,443 [2606:4700::1]:8443" in text


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def test_requests_are_rebuilt_from_what_was_parsed() -> None:
    assert parse(head("CONNECT Example.org:443 HTTP/1.1", "Host: other")) == ProxyRequest(
        "CONNECT", "example.org", 443
    )
    request = parse(
        head(
            "POST HTTP://Example.org:8080?q=/x HTTP/1.0",
            "Host: other.example",
            "Connection: keep-alive, X-Secret, content-length",
            "X-Secret: 1",
            "Proxy-Authorization: Basic eA==",
            "Content-Length: 3",
            "Expect: 100-continue",
            "Accept:*/*",
        )
    )
    assert (request.method, request.host, request.port, request.length) == ("POST", "example.org", 8080, 3)
    assert request.head == head(
        "POST /?q=/x HTTP/1.1",
        "Host: example.org:8080",
        "Expect: 100-continue",
        "Accept: */*",
        "Content-Length: 3",
        "Connection: close",
        "",
        "",
    )
    bare = parse(head("GET http://[2606:4700::1] HTTP/1.1"))
    assert bare.head == head("GET / HTTP/1.1", "Host: [2606:4700::1]", "Connection: close", "", "")


GET, POST = "GET http://example.org/ HTTP/1.1", "POST http://example.org/ HTTP/1.1"
NO_REQUESTS = (
    *("GET / HTTP/1.1", "GET https://example.org/ HTTP/1.1", "GET ftp://example.org/ HTTP/1.1"),
    *(
        "GET http://user@example.org/ HTTP/1.1",
        "GET http://example.org/#x HTTP/1.1",
        "GET http:///x HTTP/1.1",
    ),
    *("GET http://example.org:99999/ HTTP/1.1", "GET http://example.org\\@evil.example/ HTTP/1.1"),
    *("GET  http://example.org/ HTTP/1.1", f"{GET} ", "GET http://example.org/ HTTP/2.0"),
    *("get http://example.org/ HTTP/1.1", "CONNECT example.org HTTP/1.1", "CONNECT 0x7f.1:443 HTTP/1.1"),
    *("GET http://example.org/\nX HTTP/1.1", ""),
)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        *(([line], 400) for line in NO_REQUESTS),
        (["CONNECT example.org:443 HTTP/1.1", "Content-Length: 4"], 400),
        (["CONNECT example.org:443 HTTP/1.1", "no header"], 400),
        ([GET, "A: b", " folded"], 400),
        *(([GET, header], 400) for header in ("A : b", "A: b\nB: c", "A: b\rB: c", "A: \0")),
        ([POST, "Content-Length: 3", "Content-Length: 3"], 400),
        *(([POST, f"Content-Length: {length}"], 400) for length in ("+3", "3, 3", "0x3")),
        ([POST, "Content-Length: 3", "Transfer-Encoding: chunked"], 411),
        ([POST, "transfer-encoding : chunked"], 400),
        ([GET, *["A: b"] * 101], 431),
    ],
)
def test_requests_that_go_nowhere(lines: list[str], status: int) -> None:
    with pytest.raises(ProxyResponse) as refusal:
        parse(head(*lines))
    assert refusal.value.status == status
    assert "\n" not in str(refusal.value)


WORDS = (
    *(b"GET", b"POST", b"CONNECT", b" ", b"http://", b"example.org", b":443", b"/", b" HTTP/1.1", b"\r\n"),
    *(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Connection: ", b"content-length", b"A: b"),
)
PIECES = st.sampled_from(WORDS) | st.sampled_from([bytes([c]) for c in b"\n\r\0:,?@#\t\xff"])
STARTS = st.sampled_from(
    [b"", b"CONNECT example.org:443 HTTP/1.1\r\n", b"POST http://example.org/ HTTP/1.1\r\n"]
)


@given(STARTS, st.lists(PIECES, max_size=16).map(b"".join))
def test_only_one_well_formed_request_is_forwarded(start: bytes, raw: bytes) -> None:
    try:
        request = parse(start + raw)
    except ProxyResponse:
        return
    if request.method == "CONNECT":
        assert request.head == b""
        assert request.length == 0
        return
    text, end, rest = request.head.partition(b"\r\n\r\n")
    assert end
    assert rest == b""
    first, *lines = text.split(b"\r\n")
    assert first.count(b" ") == 2
    assert not set(text.replace(b"\r\n", b"")) & set(b"\r\n\0")
    names = [line.split(b":")[0].lower() for line in lines]
    assert names.count(b"host") == 1
    assert names.count(b"connection") == 1
    assert b"transfer-encoding" not in names
    lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
    assert lengths == ([b"Content-Length: %d" % request.length] if lengths or request.length else [])


class Wire:
    """A proxy that listens on loopback instead of in a sandbox, in front of a server that records what it receives."""

    def __init__(
        self,
        hosts: str = "up.example.org",
        *,
        answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        resolve: Callable[[str, int], Awaitable[list[str]]] | None = None,
        reach: Callable[[str], bool] = lambda address: address.startswith("127."),
        caps: Caps | None = None,
        anywhere: bool = False,
        behind: bool = False,
        account: str = "",
    ) -> None:
        self.hosts, self.answer, self.resolve, self.reach, self.caps = hosts, answer, resolve, reach, caps
        self.anywhere, self.behind, self.account = anywhere, behind, account
        """Whether the server is not the host but the proxy of this machine."""
        self.got = b""
        self.busy: set[asyncio.Future[None]] = set()
        self.log: list[NetworkRequest] = []
        self.lookups: list[str] = []

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(
            lambda r, w: self._start(self._upstream(r, w)), "127.0.0.1", 0
        )
        self.port: int = self.server.sockets[0].getsockname()[1]
        ports = frozenset({self.port})
        hosts = [AllowedHost(h.host, h.below, ports, self.anywhere) for h in parse_hosts(self.hosts)]
        address = f"http://{self.account}127.0.0.1:{self.port}"
        variables = {"http_proxy": address, "https_proxy": address} if self.behind else {}
        self.proxy = Proxy(
            hosts,
            log=self.log.append,
            resolve=self.resolve or self._resolve,
            reach=self.reach,
            caps=self.caps,
            upstream=Upstream(variables),
        )
        self.front = await asyncio.start_server(lambda r, w: self._start(self._serve(r, w)), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.front.close()
        self.server.close()
        await self.idle()

    async def idle(self) -> None:
        """Wait until no connection is being served."""
        while self.busy:
            await asyncio.gather(*self.busy, return_exceptions=True)

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        return ["127.0.0.1"]

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self.busy.add(task)
        task.add_done_callback(self.busy.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with proxy.Host(reader, writer) as program:
            await self.proxy.serve(program)

    async def _upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.got = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.write_eof()
        rest = await reader.read()
        self.got += rest
        writer.close()

    async def ask(self, *pieces: bytes, eof: bool = False) -> bytes:
        """Send a request in pieces and return the whole answer."""
        reader, writer = await asyncio.open_connection(*self.front.sockets[0].getsockname())
        for piece in pieces:
            writer.write(piece.replace(b"PORT", b"%d" % self.port))
            await writer.drain()
            await asyncio.sleep(0)
        if eof:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        await self.idle()
        return answer


@pytest.mark.integration
async def test_only_the_parsed_request_is_forwarded() -> None:
    async with Wire() as wire:
        smuggled = b"GET http://up.example.org:PORT/second HTTP/1.1\r\n\r\n"
        first = b"POST http://up.example.org:PORT/first HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        assert (await wire.ask(first + smuggled, smuggled)).endswith(b"\r\n\r\nok")
        assert wire.got.startswith(b"POST /first HTTP/1.1\r\n")
        assert wire.got.endswith(b"Connection: close\r\n\r\nbody")
        assert wire.log[0].sent == 4


@pytest.mark.integration
@settings(max_examples=25)
@given(st.lists(st.integers(min_value=1, max_value=60), max_size=5))
def test_a_request_may_come_in_any_pieces(cuts: list[int]) -> None:
    async def run() -> None:
        async with Wire() as wire:
            raw = b"POST http://up.example.org:%d/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody" % wire.port
            at = [0, *sorted(cuts), len(raw)]
            pieces = [raw[a:b] for a, b in pairwise(at)]
            assert (await wire.ask(*pieces)).endswith(b"\r\n\r\nok")
            assert wire.got.endswith(b"\r\n\r\nbody")

    asyncio.run(run())


@pytest.mark.integration
async def test_a_name_is_resolved_once_and_each_address_is_checked() -> None:
    checked: list[str] = []

    async def both(host: str, port: int) -> list[str]:
        return ["127.0.0.1", "10.0.0.1"]

    def reach(address: str) -> bool:
        checked.append(address)
        return address == "127.0.0.1"

    async with Wire() as wire:
        await wire.ask(b"GET http://up.example.org:PORT/ HTTP/1.1\r\n\r\n")
        assert wire.lookups == ["up.example.org"]
    async with Wire(resolve=both, reach=reach) as wire:
        answer = await wire.ask(b"CONNECT up.example.org:PORT HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 up.example.org is at 10.0.0.1, not a public address")
        assert wire.got == b""
        assert checked == ["127.0.0.1", "10.0.0.1"]


@pytest.mark.integration
async def test_refusals_say_how_to_open_a_host() -> None:
    async with Wire() as wire:
        answer = await wire.ask(b"GET http://other.example.org/ HTTP/1.1\r\n\r\n")
        status, _, rest = answer.partition(b"\r\n")
        assert status.startswith(b"HTTP/1.1 403 other.example.org:80 is not allowed for this sandbox")
        assert rest.endswith(b"\r\n\r\n" + status.removeprefix(b"HTTP/1.1 403 ") + b"\n")
        assert b"--allow-net" in status
        assert wire.lookups == [], "the name of a host that is not listed was looked up"
        logged = wire.log[0]
        assert (logged.verdict, logged.host, logged.port) == ("refused", "other.example.org", 80)


@pytest.mark.integration
async def test_heads_too_long_too_late_or_cut_off() -> None:
    async with Wire(caps=Caps(head=0.3)) as wire:
        assert (await wire.ask(b"GET http://up.example.org/" + b"x" * 20_000)).startswith(b"HTTP/1.1 431 ")
        long = b"GET http://up.example.org/ HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n"
        assert (await wire.ask(long)).startswith(b"HTTP/1.1 431 ")
        assert (await wire.ask(b"GET http://up.example.org/ HT")).startswith(b"HTTP/1.1 408 ")
        assert (await wire.ask(b"GET http://up.example.org/ HT", eof=True)).startswith(b"HTTP/1.1 400 ")
        assert (await wire.ask(b"\x16\x03\x01\x02\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert len(wire.log) == 5
        assert await wire.ask(eof=True) == b""
        assert len(wire.log) == 5, "a connection without a word is no request"


@pytest.mark.integration
async def test_hosts_that_cannot_be_reached() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def empty(host: str, port: int) -> list[str]:
        return []

    request = b"CONNECT up.example.org:PORT HTTP/1.1\r\n\r\n"
    async with Wire(resolve=nowhere) as wire:
        assert b"HTTP/1.1 502 cannot connect to up.example.org:" in await wire.ask(request)
        assert (wire.log[0].verdict, wire.log[0].method) == ("failed", "CONNECT")
    async with Wire(resolve=empty) as wire:
        assert (await wire.ask(request)).startswith(b"HTTP/1.1 502 ")
    async with Wire(resolve=never, caps=Caps(connect=0.1)) as wire:
        assert (await wire.ask(request)).startswith(b"HTTP/1.1 504 ")
    async with Wire() as wire:
        wire.server.close()
        assert (await wire.ask(request)).startswith(b"HTTP/1.1 502 ")


@pytest.mark.integration
async def test_a_connection_that_the_end_interrupts_was_not_refused() -> None:
    looking = asyncio.Event()

    async def never(host: str, port: int) -> list[str]:
        looking.set()
        await asyncio.Event().wait()
        return []

    async with Wire(resolve=never) as wire:
        asked = asyncio.create_task(wire.ask(b"CONNECT up.example.org:PORT HTTP/1.1\r\n\r\n"))
        await looking.wait()
        for serving in list(wire.busy):
            serving.cancel()
        await asked
    assert [(one.verdict, one.reason) for one in wire.log] == [("failed", "cut off: the sandbox was closed")]


@pytest.mark.integration
async def test_the_second_address_is_tried() -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]  # no server listens at the first

    async with Wire(resolve=two) as wire:
        assert (await wire.ask(b"GET http://up.example.org:PORT/ HTTP/1.1\r\n\r\n")).endswith(b"ok")


async def test_names_are_looked_up_by_this_machine() -> None:
    assert {"127.0.0.1", "::1"} & set(await proxy.lookup("localhost", 80))
    with pytest.raises(OSError):
        await proxy.lookup("no-such-name.invalid", 80)


@pytest.mark.integration
async def test_an_index_that_the_user_named_may_be_at_any_address() -> None:
    request = b"GET http://up.example.org:PORT/ HTTP/1.1\r\n\r\n"
    async with Wire(reach=lambda _: False) as wire:
        assert b" 403 up.example.org is at 127.0.0.1, not a public address" in await wire.ask(request)
    async with Wire(reach=lambda _: False, anywhere=True) as wire:
        assert (await wire.ask(request)).endswith(b"ok")
    assert EVERY_HOST.allows("example.org", 443)
    assert EVERY_HOST.allows("8.8.8.8", 80)
    assert not EVERY_HOST.allows("example.org", 22)


# -- behind another proxy ---------------------------------------------------------------------------------------


async def unknown(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.integration
async def test_a_name_that_only_the_proxy_of_this_machine_knows() -> None:
    async with Wire(resolve=unknown, behind=True, answer=b"HTTP/1.1 200 OK\r\n\r\nfirst word") as wire:
        answer = await wire.ask(b"CONNECT up.example.org:PORT HTTP/1.1\r\n\r\n")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nfirst word"
        where = b"up.example.org:%d" % wire.port
        assert wire.got == b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (where, where)
        assert (await wire.ask(b"GET http://up.example.org:PORT/a?b HTTP/1.1\r\n\r\n")).endswith(
            b"first word"
        )
        assert wire.got.startswith(b"GET http://%b/a?b HTTP/1.1\r\nHost: %b\r\n" % (where, where))


@pytest.mark.integration
async def test_the_proxy_of_this_machine_gets_no_name_that_is_inside() -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    for request in (b"CONNECT up.example.org:PORT", b"GET http://up.example.org:PORT/"):
        async with Wire(resolve=inside, behind=True) as wire:
            answer = await wire.ask(request + b" HTTP/1.1\r\n\r\n")
            assert b" 403 up.example.org is at 10.0.0.1" in answer
            assert wire.got == b""


@pytest.mark.integration
@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b"", b"nonsense\r\n\r\n"])
async def test_a_refusal_of_the_proxy_of_this_machine_is_told(answer: bytes) -> None:
    async with Wire(resolve=unknown, behind=True, answer=answer) as wire:
        told = await wire.ask(b"CONNECT up.example.org:PORT HTTP/1.1\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 502 cannot connect to up.example.org:")
        assert b"the proxy of this machine" in told


@pytest.mark.parametrize(
    ("variables", "scheme", "proxy_of_it"),
    [
        ({}, "http", None),
        ({"http_proxy": "http://p.test:8080"}, "http", ("p.test", 8080)),
        ({"http_proxy": "p.test"}, "http", ("p.test", 80)),
        ({"http_proxy": "http://p.test"}, "https", None),
        ({"all_proxy": "http://p.test"}, "https", ("p.test", 80)),
        ({"all_proxy": "socks5://p.test"}, "https", None),
        ({"all_proxy": "http://p.test:x"}, "https", None),
        ({"https_proxy": "http://p.test", "no_proxy": "a.test, .example.org"}, "https", None),
        ({"https_proxy": "http://p.test", "no_proxy": "a.test"}, "https", ("p.test", 80)),
    ],
)
def test_the_usual_variables_name_the_proxy(
    variables: dict[str, str], scheme: str, proxy_of_it: tuple[str, int] | None
) -> None:
    assert Upstream(variables).of(scheme, "up.example.org") == (proxy_of_it and NextProxy(*proxy_of_it))


ACCOUNT = "me:p%40ss@"
TOKEN = b"bWU6cEBzcw=="


@pytest.mark.integration
@pytest.mark.parametrize(
    "request_line", [b"CONNECT up.example.org:PORT", b"GET http://up.example.org:PORT/a"]
)
async def test_a_proxy_with_a_password_gets_it(request_line: bytes) -> None:
    async with Wire(resolve=unknown, behind=True, account=ACCOUNT) as wire:
        forged = b" HTTP/1.1\r\nProxy-Authorization: Basic b3RoZXI=\r\n\r\n"
        await wire.ask(request_line + (b" HTTP/1.1\r\n\r\n" if request_line[:1] == b"C" else forged))
        assert wire.got.count(b"Proxy-Authorization") == 1
        assert b"\r\nProxy-Authorization: Basic %b\r\n" % TOKEN in wire.got


@pytest.mark.integration
@pytest.mark.parametrize(
    "request_line", [b"CONNECT up.example.org:PORT", b"GET http://up.example.org:PORT/a"]
)
async def test_no_answer_shows_the_password(request_line: bytes) -> None:
    answer = b"HTTP/1.1 407 no account %b\r\n\r\nno %b%b" % (TOKEN, TOKEN, TOKEN[:5])
    async with Wire(resolve=unknown, behind=True, account=ACCOUNT, answer=answer) as wire:
        told = await wire.ask(request_line + b" HTTP/1.1\r\n\r\n")
        assert b"407 no account ************" in told
        assert TOKEN not in told
        assert all(b"p@ss" not in text for text in (told, repr(wire.log).encode()))
        if request_line.startswith(b"GET"):
            assert told.endswith(b"no ************" + TOKEN[:5])


@pytest.mark.integration
async def test_the_proxy_of_this_machine_gets_no_trace() -> None:
    async with Wire(resolve=unknown, behind=True, account=ACCOUNT) as wire:
        answer = await wire.ask(b"TRACE http://up.example.org:PORT/ HTTP/1.1\r\nMax-Forwards: 0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert wire.got == b""


@pytest.mark.parametrize("cut", range(1, len(TOKEN)))
def test_a_password_in_pieces_is_masked(cut: int) -> None:
    hop = NextProxy("p.test", 80, TOKEN)
    assert hop.withheld(b"x" + TOKEN[:cut]) == cut


def test_proxies_that_cannot_be_used_are_named() -> None:
    environment = {
        "ALL_PROXY": "socks5h://me:secret@p.test",
        "https_proxy": "p.test:3128",
        "HTTP_PROXY": "http://p.test:x",
        "NO_PROXY": "a://b",
    }
    assert Upstream.of_environment(environment).unusable() == ["http_proxy", "all_proxy"]
