"""A hub of models over loopback HTTP, with the answers that huggingface_hub asks for, and with faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.servers.loopback import LoopbackServer, QuietHandler

COMMIT = "0123456789" * 4
NAME = "someone/small-m3"


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """What the hub has, what goes wrong, and what was asked.

    Attributes:
        files: Its files at COMMIT; those that end in .safetensors are in LFS.
        token: Token that it asks for; None asks for none.
        status: Status of every answer; 0 lets each answer have its own.
        code: The hub's name of the fault of every answer.
        cut: Bytes after which the first answers with a file of LFS end, by its name; each is used once.
        held: Files of LFS whose answer stops in the middle until `release` is set.
        damaged: Files of LFS that are delivered with a wrong byte.
        sizes: Sizes that the list of files has in place of the true ones.
        listed: Changes of the list's entries.
        asked: Method, path and range of every request.
    """

    files: dict[str, bytes]
    token: str | None = None
    status: int = 0
    code: str = ""
    cut: dict[str, int] = field(default_factory=dict[str, int])
    held: set[str] = field(default_factory=set[str])
    damaged: set[str] = field(default_factory=set[str])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    listed: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    asked: list[tuple[str, str, str | None]] = field(default_factory=list[tuple[str, str, str | None]])
    holding: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def tree(self) -> list[dict[str, Any]]:
        entries = []
        for path, data in self.files.items():
            size = self.sizes.get(path, len(data))
            entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": git_hash(data)}
            if path.endswith(".safetensors"):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 134}
            entries.append({**entry, **self.listed.get(path, {})})
        return entries

    def fetched(self) -> list[str]:
        """Return the names of the files whose bytes were asked for, in order."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.asked
            if method == "GET" and "/api/" not in path
        ]


def serve_hub(hub: Hub) -> LoopbackServer:
    """Return a server of the hub."""

    class Handler(QuietHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range")))
            if hub.status:
                self.answer(hub.status, b"{}", {"X-Error-Code": hub.code} if hub.code else {})
            elif path.startswith("/cdn/"):
                self._deliver(path.removeprefix("/cdn/"))
            elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                said = "Invalid credentials in Authorization header"
                self.answer(
                    401, b'{"error":"no"}', {"X-Error-Message": said, "Content-Type": "application/json"}
                )
            elif path.startswith("/api/models/"):
                self._api(path.removeprefix("/api/models/"))
            else:
                self._resolve(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))

        def _api(self, path: str) -> None:
            if not path.startswith(f"{NAME}/"):
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif path in (f"{NAME}/revision/{word}" for word in ("main", "v1", COMMIT)):
                self._json({"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": []})
            elif path == f"{NAME}/tree/{COMMIT}":
                self._json(hub.tree())
            else:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})

        def _json(self, value: object) -> None:
            self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _resolve(self, path: str) -> None:
            data = hub.files.get(path)
            about = {"X-Repo-Commit": COMMIT}
            if data is None:
                self.answer(404, b"", {**about, "X-Error-Code": "EntryNotFound"})
            elif path.endswith(".safetensors"):
                # the bytes are on another host, as with the real hub
                linked = {
                    "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                    "X-Linked-Size": str(len(data)),
                    "Location": f"http://localhost:{server.host.rpartition(':')[2]}/cdn/{path}",
                }
                self.answer(302, b"", {**about, **linked})
            else:
                self.answer(200, data, {**about, "ETag": f'"{git_hash(data)}"'})

        def _deliver(self, path: str) -> None:
            data = hub.files[path]
            if path in hub.damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            first = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
            span: Mapping[str, str] = (
                {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if first else {}
            )
            self.send_response(206 if first else 200)
            for name, value in {**span, "Content-Length": str(len(data) - first)}.items():
                self.send_header(name, value)
            self.end_headers()
            part = data[first:]
            if path in hub.held:
                self.wfile.write(part[: len(part) // 2])
                hub.holding.set()
                hub.release.wait(60)
                self.close_connection = True
            elif path in hub.cut:
                self.wfile.write(part[: hub.cut.pop(path)])
                self.close_connection = True
            else:
                self.wfile.write(part)

    server = LoopbackServer(Handler)
    return server
