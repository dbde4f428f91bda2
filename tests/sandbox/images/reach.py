"""Sandboxes from images, and what a build can reach and start: a service on this machine, and programs that try."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.store.workspace import Workspace

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


def sandbox_from(image: str | None, workspace: Workspace, memory: int = 1 << 30) -> Sandbox:
    spec = SandboxSpec("docker", image, SandboxLimits(memory=memory))
    return new_sandbox("docker", spec, workspace, lambda _: None)


def yes(*_: object) -> bool:
    """Agree to the build of a Dockerfile."""
    return True


REACH = """
import os, socket, urllib.request
HOSTS, PORT = {hosts!r}, {port}
def directly(host):
    try:
        socket.create_connection((host, PORT), 2).close()
        return "reached"
    except OSError as error:
        return error.strerror or str(error)
def through_the_proxy(host):
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
    try:
        return urllib.request.urlopen("http://%s/" % host, timeout=10).read().decode()
    except OSError as error:
        return str(error)
def look():
    return {{host: [directly(host), through_the_proxy(host)] for host in HOSTS}}
"""
"""What a host answers directly, and through the proxy."""


FORK = """
import os, signal
def count_processes():
    made = []
    try:
        for _ in range(5000):
            child = os.fork()
            if child == 0:
                signal.pause()
            made.append(child)
    except OSError:
        pass
    for child in made:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(made)
"""
"""How many processes can be started at the same time."""


@contextlib.contextmanager
def service() -> Iterator[tuple[int, list[str]]]:
    """Listen on every address of this machine; yield the port, and the list of who connected."""
    seen: list[str] = []
    with socket.create_server(("", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, address = server.accept()
                    seen.append(address[0])
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)


def addresses_here() -> set[str]:
    """Return this machine's IPv4 addresses, that of the engine's bridge among them."""
    table = Path("/proc/net/fib_trie").read_text()
    return set(re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", table))
