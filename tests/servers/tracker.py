"""A real HTTP server on loopback that plays an issue tracker: GitHub, GitLab, and the hosts of their images.

It also serves git repositories, with git's own `http-backend`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.loopback import LoopbackServer, QuietHandler

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@dataclass(frozen=True)
class Page:
    """One answer: status, body (bytes are sent unchanged, anything else as JSON), headers."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """A request as it arrived; header names are in lower case."""

    path: str
    headers: dict[str, str]
    method: str = "GET"
    body: bytes = b""


class TrackerServer(LoopbackServer):
    """Answers each path from `pages`, with its query if that is listed, otherwise without it.

    A page is a `Page`, or a function that writes the answer itself. The key of a path for POST starts with `POST `. The
    repository `git` is served below `/owner/repo.git`, each of `forks` below its name.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page | Callable[[QuietHandler], None]] = {}
        self.visits: list[Visit] = []
        self.bytes_sent = 0
        self.git: Path | None = None
        self.forks: dict[str, Path] = {}
        self.password: str | None = None
        """The password that a push needs; any user name will do."""
        self.closing = threading.Event()
        tracker = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                tracker._answer(self)

            do_POST = do_GET

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
        """Add an issue of owner/repo, with the fields of GitHub's issues."""
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

    def _answer(self, handler: QuietHandler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        visit = Visit(
            handler.path, headers, handler.command, handler.rfile.read(int(headers.get("content-length", 0)))
        )
        self.visits.append(visit)
        served = self.forks | ({} if self.git is None else {"owner/repo": self.git})
        for name, repository in served.items():
            if visit.path.startswith(f"/{name}.git/"):
                self.send(handler, self._from_git(visit, name, repository))
                return
        prefix = "POST " if visit.method == "POST" else ""
        path = prefix + visit.path
        path = path if path in self.pages else path.partition("?")[0]
        page = self.pages.get(path, Page({"message": "Not Found"}, 404))
        if not isinstance(page, Page):
            page(handler)
            return
        self.send(handler, page)

    def send(self, handler: QuietHandler, page: Page) -> None:
        data = page.body if isinstance(page.body, bytes) else json.dumps(page.body).encode()
        handler.answer(page.status, data, page.headers)

    def _from_git(self, visit: Visit, name: str, repository: Path) -> Page:
        """Return the answer of git's CGI program."""
        path, _, query = visit.path.partition("?")
        pushes = "git-receive-pack" in visit.path
        _, _, login = visit.headers.get("authorization", "").partition(" ")
        _, _, password = base64.b64decode(login).decode().partition(":")
        if pushes and self.password is not None and password != self.password:
            return Page(b"", 403 if login else 401, {"WWW-Authenticate": 'Basic realm="git"'})
        env = os.environ | {
            "GIT_PROJECT_ROOT": str(repository),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.removeprefix(f"/{name}.git"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": visit.method,
            "CONTENT_TYPE": visit.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(visit.body)),
            "HTTP_CONTENT_ENCODING": visit.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": visit.headers.get("git-protocol", ""),
            "REMOTE_USER": "tester",  # git accepts pushes only from a named user
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=visit.body, capture_output=True, check=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode().split("\r\n"))
        headers = {name: value for name, _, value in lines}
        status = int(headers.pop("Status", "200").split()[0])
        return Page(body, status, headers)

    def silent(self, handler: QuietHandler) -> None:
        """Accept the request and never answer."""
        self.closing.wait(30)
        handler.close_connection = True

    def dripping(self, handler: QuietHandler) -> None:
        """Answer a byte at a time, for ever."""
        self._begin(handler)
        while not self.closing.wait(0.05):
            handler.wfile.write(b"1\r\n \r\n")
            handler.wfile.flush()

    def endless(self, handler: QuietHandler) -> None:
        """Answer as fast as the client reads, for ever, without a content length."""
        self._begin(handler)
        piece = b" " * 65536
        with contextlib.suppress(OSError):
            while not self.closing.is_set():
                handler.wfile.write(b"10000\r\n" + piece + b"\r\n")
                self.bytes_sent += len(piece)
        handler.close_connection = True

    def cut(self, handler: QuietHandler) -> None:
        """Promise more bytes than it sends."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"title": "Wro')
        handler.close_connection = True

    def _begin(self, handler: QuietHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
