"""Decide which hosts a sandbox with a network may reach: those that the user lists, never a private address.

An entry is `example.org`, `*.example.org` (every name below it, not itself), `192.0.2.1` or `[2001:db8::1]`,
each with or without `:port`. Without a port, the entry allows 443 and 80.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

DEFAULT_PORTS = frozenset({443, 80})
LONGEST_NAME = 253  # characters of a host name (RFC 1035)
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._*-]+)(?::([0-9]{1,5}))?", re.ASCII)

# IANA's special-purpose address registries (RFC 6890 and later entries), with multicast and the reserved
# class E. They are written out here because the standard library's definition of "global" differs between
# versions of Python.
INSIDE_V4 = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        *("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        "100.64.0.0/10",  # carriers' NAT, and some clouds' metadata (100.100.100.200)
        "169.254.0.0/16",  # link-local, and most clouds' metadata (169.254.169.254)
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4"),
    )
)
METADATA_V4 = (ipaddress.IPv4Address("168.63.129.16"),)  # Azure's platform service, on a public address
UNICAST_V6 = ipaddress.IPv6Network(
    "2000::/3"
)  # the addresses in public use; loopback, private and link-local addresses are outside
INSIDE_V6 = tuple(
    ipaddress.IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments, among them Teredo (which embeds an IPv4 address)
        "2001:db8::/32",
        "2002::/16",  # 6to4, which embeds an IPv4 address too
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # how an IPv6-only network writes an IPv4 address


@dataclass(frozen=True)
class AllowedHost:
    """One entry of the list."""

    host: str
    """The name in lower case, or the address in its canonical form."""
    below: bool
    """Whether the entry is `*.host`: every name below the host; with an empty host, all hosts."""
    ports: frozenset[int]
    anywhere: bool = False
    """Whether the host may have any address, even a private one. No list that a user writes for a sandbox
    sets this.
    """

    def allows(self, host: str, port: int) -> bool:
        """Return whether this entry allows a port of a host; `normal_host` gives the host's form."""
        fits = host == self.host
        if self.below:
            fits = not self.host or host.endswith(f".{self.host}")
        return fits and port in self.ports

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'*.' if self.below else ''}{name}:{','.join(str(port) for port in sorted(self.ports))}"


class AllowList(str):
    """The text of a list, as the user wrote it, with its entries parsed in `hosts`.

    It is a string, so that settings and logs show it as the user wrote it.
    """

    __slots__ = ("hosts",)
    hosts: tuple[AllowedHost, ...]

    def __new__(cls, text: str) -> Self:
        """Parse the list; raises ValueError as `parse_hosts` does."""
        self = super().__new__(cls, text)
        self.hosts = parse_hosts(text)
        return self


EVERY_HOST = AllowedHost("", below=True, ports=DEFAULT_PORTS)
"""All public hosts. Only builds of images may reach so many."""


def parse_hosts(text: str) -> tuple[AllowedHost, ...]:
    """Parse a list separated by commas; an empty list allows nothing.

    Raises:
        ValueError: An entry is not a host, or is one that is never allowed; the text says which and why.
    """
    return tuple(_parse_host(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse_host(entry: str) -> AllowedHost:
    if entry.startswith("*") and not entry.startswith("*."):
        raise ValueError(f"{entry!r} opens too much: name the hosts, or write *.example.org")
    below = entry.startswith("*.")
    try:
        host, port = split_authority(entry.removeprefix("*."))
    except ValueError:
        raise ValueError(
            f"{entry!r} is not a host: write example.org, *.example.org or example.org:8443"
            f"{' (and a name in its xn-- form)' if not entry.isascii() else ''}"
        ) from None
    address = as_address(host)
    if address is not None and below:
        raise ValueError(f"{entry!r} is not a host: an address has no names below it")
    if address is not None and not is_public(address):
        raise ValueError(f"{host} is not a public address: a sandbox never reaches such addresses")
    if address is None and "." not in host:
        raise ValueError(
            f"{entry!r} opens too much: name the hosts"
            if below
            else f"{host!r} is not a public host name: a sandbox reaches only public hosts"
        )
    return AllowedHost(host, below, DEFAULT_PORTS if port is None else frozenset({port}))


def describe(hosts: Iterable[AllowedHost]) -> str:
    """Return a sentence about the list for the user."""
    return f"the sandbox may reach {' '.join(str(host) for host in hosts)} through a proxy, and nothing else"


def split_authority(text: str) -> tuple[str, int | None]:
    """Split `host` or `host:port` into the normalised host and the port, or None.

    Raises:
        ValueError: `text` has another form.
    """
    match = AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError("not a host")
    port = None if match[2] is None else int(match[2])
    if port is not None and not 0 < port < 65536:
        raise ValueError("not a port")
    return normal_host(match[1]), port


def normal_host(text: str) -> str:
    """Normalise a host for comparison.

    A name becomes lower case without the last dot; an address gets its canonical form. In `text`, an IPv6
    address must be in brackets; the result has none. An IPv4 address counts only as four decimal numbers.
    Other notations of the C library (`127.1`, `0x7f000001`, `2130706433`, `0177.0.0.1`) are refused. Any
    other name that ends in a number is refused too, as in browsers (the WHATWG's URL standard).

    Raises:
        ValueError: `text` is neither a name nor an address.
    """
    if text.startswith("["):
        return str(ipaddress.IPv6Address(text[1:-1]))
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if NUMBER.fullmatch(labels[-1]):
        return str(ipaddress.IPv4Address(name))
    if len(name) > LONGEST_NAME or not all(LABEL.fullmatch(label) for label in labels):
        raise ValueError("not a host")
    return name


def as_address(host: str) -> str | None:
    """Return a normalised host if it is an address, None if it is a name."""
    return host if ":" in host or host.rpartition(".")[2].isdigit() else None


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet, in whatever notation.

    These do not: private, loopback, link-local, shared (100.64/10), multicast, reserved and documentation
    addresses, cloud metadata addresses, and their IPv6 forms. 6to4 and Teredo addresses never count as
    public. An IPv4-mapped or NAT64 address counts as the IPv4 address in it.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            return False
        if ip not in MAPPED and ip not in NAT64:
            return ip in UNICAST_V6 and not any(ip in net for net in INSIDE_V6)
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip not in METADATA_V4 and not any(ip in net for net in INSIDE_V4)


def is_own(address: str) -> bool:
    """Return whether an address belongs to this machine.

    Even if it is public, services that trust this machine may listen there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))  # succeeds only for addresses of this machine; nothing is sent
        except OSError:
            return False
    return True


def may_reach(address: str) -> bool:
    """Return whether the proxy may connect to an address: a public one that is not this machine's."""
    return is_public(address) and not is_own(address)
