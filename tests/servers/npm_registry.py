"""An npm registry over real HTTP, with packages that tests make."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer

from tests.servers.loopback import QuietHandler


def tarball(files: Mapping[str, str]) -> bytes:
    """Return an npm package with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


class NpmRegistry:
    """A registry; `requests` are the paths that clients asked for."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.packages: dict[str, tuple[dict[str, object], bytes]] = {}
        self.requests: list[str] = []
        registry = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                name, _, file = self.path.strip("/").partition("/-/")
                if name not in registry.packages:
                    self.send_error(404)
                    return
                manifest, content = registry.packages[name]
                body = content if file else json.dumps(registry.document(name, manifest, content)).encode()
                self.answer(200, body)

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._server.server_port}/"

    def add(self, manifest: dict[str, object], files: Mapping[str, str]) -> None:
        """Add a package, whose manifest has `name` and `version`."""
        content = tarball({"package.json": json.dumps(manifest), **files})
        self.packages[str(manifest["name"])] = (manifest, content)

    def document(self, name: str, manifest: dict[str, object], content: bytes) -> dict[str, object]:
        version = str(manifest["version"])
        integrity = base64.b64encode(hashlib.sha512(content).digest()).decode()
        dist = {"tarball": f"{self.url}{name}/-/{name}-{version}.tgz", "integrity": f"sha512-{integrity}"}
        return {
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: {**manifest, "dist": dist}},
        }

    @contextlib.contextmanager
    def serve(self) -> Iterator[NpmRegistry]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
