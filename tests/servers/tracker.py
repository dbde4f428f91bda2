"""A real HTTP server on loopback that plays an issue tracker: GitHub, GitLab, and the hosts of their images."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.servers.loopback import LoopbackServer, QuietHandler

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@dataclass(frozen=True)
class Page:
    """One answer: status, body (bytes as they are, anything else as JSON), headers."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """A request as it came in; header names are in lower case."""

    path: str
    headers: dict[str, str]


class TrackerServer(LoopbackServer):
    """Answers each path (with its query, else without) from `pages`: a `Page`, or a function that writes by itself."""

    def __init__(self) -> None:
        self.pages: dict[str, Page | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.visits: list[Visit] = []
        self.bytes_sent = 0
        self.closing = threading.Event()
        tracker = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                tracker._answer(self)

        super().__init__(Handler)

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        super().__exit__()

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def paths(self) -> list[str]:
        return [visit.path for visit in self.visits]

    def add_issue(
        self, number: int = 1, *, body: str = "It fails.", comments: int = 0, **fields: Any
    ) -> None:
        """An issue of owner/repo, with the fields that GitHub's have."""
        self.pages[f"/repos/owner/repo/issues/{number}"] = Page(
            {
                "number": number,
                "title": "Wrong sums",
                "body": body,
                "comments": comments,
                "user": {"login": "reporter", "type": "User"},
                **fields,
            }
        )

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.visits.append(
            Visit(handler.path, {name.lower(): value for name, value in handler.headers.items()})
        )
        path = handler.path if handler.path in self.pages else handler.path.partition("?")[0]
        page = self.pages.get(path, Page({"message": "Not Found"}, 404))
        if not isinstance(page, Page):
            page(handler)
            return
        data = page.body if isinstance(page.body, bytes) else json.dumps(page.body).encode()
        handler.send_response(page.status)
        for name, value in page.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def silent(self, handler: BaseHTTPRequestHandler) -> None:
        """Accepts the request and never answers."""
        self.closing.wait(30)
        handler.close_connection = True

    def dripping(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers a byte at a time, for ever."""
        self._begin(handler)
        while not self.closing.wait(0.05):
            handler.wfile.write(b"1\r\n \r\n")
            handler.wfile.flush()

    def endless(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers as fast as it is read, for ever, without saying how long it will be."""
        self._begin(handler)
        piece = b" " * 65536
        with contextlib.suppress(OSError):
            while not self.closing.is_set():
                handler.wfile.write(b"10000\r\n" + piece + b"\r\n")
                self.bytes_sent += len(piece)
        handler.close_connection = True

    def cut(self, handler: BaseHTTPRequestHandler) -> None:
        """Promises more than it sends."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"title": "Wro')
        handler.close_connection = True

    def _begin(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
