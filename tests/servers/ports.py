"""Ports for servers that must be told one before they start."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_PORTS = (20_000 + (100 * os.getpid() + n) % 12_000 for n in itertools.count())


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and that no other process is given by chance before they are used.

    Systems choose ports from 32768 on for who does not name one. Ray's workers take those from 10002 to 19999.
    """
    ports: list[int] = []
    while len(ports) < count:
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("", port := next(_PORTS)))
            ports.append(port)
    return ports
