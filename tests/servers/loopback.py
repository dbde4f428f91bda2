"""The common parts of test servers that use `http.server`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from types import MappingProxyType
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open between requests, and writes no log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing: the tests read standard error."""

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up: many tests do so on purpose."""


class ServerThread:
    """Runs a server in its own thread while the context is entered."""

    def __init__(self, server: BaseServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class LoopbackServer(ServerThread):
    """Serves `handler` in its own thread on 127.0.0.1, or on all addresses (`everywhere`); port 0 means a free port."""

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], port: int = 0, *, everywhere: bool = False
    ) -> None:
        server = _Server(("0.0.0.0" if everywhere else "127.0.0.1", port), handler)
        super().__init__(server)
        self._port = server.server_address[1]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"
