"""Check whether the Docker engine that DOCKER_HOST names (else the one at the usual socket) answers.

Exit code 0: it answers, or this script cannot ask it (ssh, TLS); 1: nothing answers; 2: this user may not connect.
The script uses only the standard library, because it runs before anything is installed.
"""

import http.client
import os
import socket
import sys
from urllib.parse import urlsplit

SECONDS = 5


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self.path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.path)


def ping(host: str) -> int:
    """Return the exit code for one engine."""
    address = urlsplit(host)
    connection: http.client.HTTPConnection
    if address.scheme == "unix":
        connection = UnixConnection(address.path)
    elif address.scheme == "tcp" and not os.environ.get("DOCKER_TLS_VERIFY"):
        connection = http.client.HTTPConnection(
            address.hostname or "localhost", address.port or 2375, timeout=SECONDS
        )
    else:
        return 0
    try:
        connection.request("GET", "/_ping")
        return 0 if connection.getresponse().status == http.client.OK else 1
    except PermissionError:
        return 2
    except (OSError, http.client.HTTPException):
        return 1
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(ping(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"))
