"""Remove this process's containers when it dies, whatever the cause.

A container's own supervisor exits when its standard input ends. The reaper covers the rest: a container that
was created but not started, and an engine that notices the end late. It is a child process that waits for the
end of a pipe, and only our process holds the other end. It uses only the standard library, so it starts in
milliseconds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

SWEEPS = 8  # number of searches after the death: a container may still be in creation
PAUSE = 0.15  # seconds between two searches; all together stay within the documented two seconds


class EngineConnection(http.client.HTTPConnection):
    """HTTP to the engine's unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self.sock.connect(self.path)


def call(path: str, method: str, url: str) -> bytes:
    """Send one request to the engine; return the response's body."""
    connection = EngineConnection(path)
    try:
        connection.request(method, url)
        return connection.getresponse().read()
    finally:
        connection.close()


def sweep(path: str, label: str) -> None:
    """Remove every container with the label, started or not."""
    query = urllib.parse.urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
    for container in json.loads(call(path, "GET", f"/containers/json?{query}")):
        call(path, "DELETE", f"/containers/{container['Id']}?force=1&v=1")


def start_reaper(socket_path: str, label: str) -> subprocess.Popen[bytes]:
    """Start the reaper; it begins its work when its standard input is closed, which our death does."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, socket_path, label],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(socket_path: str, label: str) -> None:
    """Wait for the end of standard input, then remove the containers; data before the end cancels that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read():
        return
    for _ in range(SWEEPS):
        # if the engine has stopped too, so have its containers
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            sweep(socket_path, label)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
