"""A small router on loopback: each session's requests go to one of several servers, as `X-Session-ID` says."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from urllib.parse import urlsplit

from tests.servers.loopback import LoopbackServer, QuietHandler


class SessionRouter(LoopbackServer):
    """Relays requests to the server of their session; new sessions get the servers in turn.

    If a server is gone, the request gets status 502, and the session's next request goes to the next server.

    Attributes:
        served: The server of each chat request, by number, with its session.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.served: list[tuple[str, int]] = []
        self._servers = [urlsplit(server) for server in servers]
        self._chosen: dict[str, int] = {}
        router = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                router._relay(self, None)

            def do_POST(self) -> None:
                router._relay(self, self.rfile.read(int(self.headers["Content-Length"])))

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def _relay(self, asked: QuietHandler, body: bytes | None) -> None:
        session = asked.headers.get("X-Session-ID", "")
        number = self._chosen.setdefault(session, len(self._chosen) % len(self._servers))
        at = self._servers[number]
        upstream = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
        try:
            upstream.request(asked.command, asked.path, body, {"Content-Type": "application/json"})
            answer = upstream.getresponse()
            data = answer.read()
        except OSError:
            self._chosen[session] = (number + 1) % len(self._servers)
            data = b'{"error": {"message": "the worker is gone"}}'
            status, kind = 502, "application/json"
        else:
            if asked.command == "POST":
                self.served.append((session, number))
            status, kind = answer.status, answer.getheader("Content-Type", "")
        finally:
            upstream.close()
        asked.answer(status, data, {"Content-Type": kind})
