"""Removes this process's containers when it dies, however it dies.

A container's own supervisor ends when its standard input does, so what is left to a reaper is the moment between
"created" and "started", and an engine that is slow to notice. It is a child process that waits for the end of a
pipe whose other end only we hold; standard library only, so that it starts in milliseconds.
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

SWEEPS = 8  # looks for containers after the death: one may still be on its way into being
PAUSE = 0.15  # seconds between two looks; all of them fit into the two seconds that are promised


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
    """One request to the engine; returns the answer's body."""
    connection = EngineConnection(path)
    try:
        connection.request(method, url)
        return connection.getresponse().read()
    finally:
        connection.close()


def sweep(path: str, label: str) -> None:
    """Remove every container that carries the label, started or not."""
    query = urllib.parse.urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
    for container in json.loads(call(path, "GET", f"/containers/json?{query}")):
        call(path, "DELETE", f"/containers/{container['Id']}?force=1&v=1")


def start_reaper(socket_path: str, label: str) -> subprocess.Popen[bytes]:
    """Start the child; closing its standard input (our death does) sets it to work."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, socket_path, label],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(socket_path: str, label: str) -> None:
    """Wait for the end of standard input, then sweep; a word before the end says there is nothing to do."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read():
        return
    for _ in range(SWEEPS):
        # the engine may be gone too: then its containers are as well
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            sweep(socket_path, label)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
