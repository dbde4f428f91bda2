"""A Ray cluster of processes on this machine. Each node has its own state folder of m3agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.ports import free_ports

START_SECONDS = 90
"""How long a node may take to start."""


class RayNodes:
    """A running cluster; node 0 is its head.

    Attributes:
        address: Address for Ray clients.
        states: The state folders of the nodes.
    """

    def __init__(self, folder: Path, count: int, sockets: Path, *, cpus: int, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.sockets = sockets
        self.cpus = cpus
        self.env = dict(env)
        self.port, client = free_ports(2)
        self.address = f"ray://127.0.0.1:{client}"
        self.states = [folder / f"state{number}" for number in range(count)]
        self._head = ["--head", f"--port={self.port}", f"--ray-client-server-port={client}"]
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        """Start a node and wait until it is ready."""
        log = self.folder / f"node{number}.log"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={self.cpus}"]
        ray += ["--disable-usage-stats", "--node-ip-address=127.0.0.1"]
        of_node = (
            [*self._head, "--include-dashboard=false"]
            if number == 0
            else [f"--address=127.0.0.1:{self.port}"]
        )
        with log.open("wb") as output:
            node = subprocess.Popen(
                [*ray, *of_node],
                env={**self.env, "RAY_TMPDIR": str(self.sockets), "M3AGENT_STATE": str(self.states[number])},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes[number] = node
        until = time.monotonic() + START_SECONDS
        while b"Ray runtime started" not in log.read_bytes():
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < until, "the node does not start"
            time.sleep(0.1)

    def lose(self, number: int) -> None:
        """Kill all processes of a node, also those that it started."""
        state = b"M3AGENT_STATE=%s\0" % os.fsencode(self.states[number])
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if state in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)

    def stop(self) -> None:
        """Stop all nodes, the head last."""
        nodes = [self._nodes[number] for number in sorted(self._nodes, reverse=True)]
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


@contextlib.contextmanager
def ray_nodes(
    folder: Path, count: int, *, cpus: int = 1, env: Mapping[str, str] = os.environ
) -> Iterator[RayNodes]:
    """Run a cluster with this many nodes, each with `cpus` processors; its logs and states are in `folder`."""
    sockets = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # other paths are too long for some sockets
    made = RayNodes(folder, count, sockets, cpus=cpus, env=env)
    try:
        for number in range(count):
            made.start(number)
        yield made
    finally:
        made.stop()
        shutil.rmtree(sockets, ignore_errors=True)  # Ray's processes may still write there
