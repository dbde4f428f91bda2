"""A package index over real HTTP, with wheels and source distributions that tests make."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import ipaddress
import json
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from m3agent.sandbox.backends.engine import connect
from tests.servers.loopback import QuietHandler

OUR_UV = Path(__file__).parents[2] / ".setup" / "uv" / "bin"
UPLOADED = "2024-06-01T00:00:00Z"


@dataclass
class Release:
    """One file in the index."""

    filename: str
    content: bytes
    uploaded: str = UPLOADED

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def wheel(name: str, version: str, uploaded: str = UPLOADED, requires: tuple[str, ...] = ()) -> Release:
    """Return a pure Python wheel with one module, which contains its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD"
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    files[record] = "".join(rows) + f"{record},,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return Release(f"{name}-{version}-py3-none-any.whl", buffer.getvalue(), uploaded)


LOOK_AROUND = """
import os, pathlib
def look():
    mounts = pathlib.Path("/proc/mounts").read_text()
    status = pathlib.Path("/proc/self/status").read_text()
    return {"environ": dict(os.environ), "mounts": mounts, "status": status, "uid": os.getuid(),
            "homes": sorted(os.listdir("/root")) if os.access("/root", os.R_OK) else []}
"""
# The build backend is in the package and needs nothing. It writes what `look` returns into the module.
NOSY = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "nosy-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "nosy-1.0-py3-none-any.whl"), "w") as z:
        z.writestr("nosy.py", "SEEN = " + repr(look()))
        z.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: nosy\\nVersion: 1.0\\n")
        z.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        z.writestr(info + "/RECORD", "")
    return "nosy-1.0-py3-none-any.whl"
"""


def nosy_source(look: str = LOOK_AROUND) -> Release:
    """Return a source distribution; `look()` of the given program runs while it is built, and its result is `nosy.SEEN`."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "nosy"\nversion = "1.0"\n',
        "backend.py": look + NOSY,
        "PKG-INFO": "Metadata-Version: 2.1\nName: nosy\nVersion: 1.0\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"nosy-1.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return Release("nosy-1.0.tar.gz", buffer.getvalue())


@dataclass
class PackageIndex:
    """A package index; `requests` are the paths that clients asked for. A project named `slow` never gets an answer."""

    host: str
    releases: dict[str, list[Release]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    asked_slow: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def add(self, *releases: Release) -> None:
        for release in releases:
            self.releases.setdefault(release.filename.split("-")[0], []).append(release)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._server.server_port}/simple"

    def __enter__(self) -> Self:
        index = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                index.requests.append(self.path)
                kind, _, name = self.path.strip("/").partition("/")
                if name == "slow":
                    index.asked_slow.set()
                    index.closing.wait()
                    return
                every = [r for releases in index.releases.values() for r in releases]
                content = next((r.content for r in every if r.filename == name), None)
                if kind == "simple" and name in index.releases:
                    page = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
                    self.answer(200, index.page(name), page)
                elif kind == "files" and content is not None:
                    self.answer(200, content, {"Content-Type": "application/octet-stream"})
                else:
                    self.send_error(404)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer((self.host, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def page(self, name: str) -> bytes:
        releases = self.releases[name]
        files = [
            {
                "filename": release.filename,
                "url": f"/files/{release.filename}",
                "hashes": {"sha256": release.digest},
                "upload-time": release.uploaded,
            }
            for release in releases
        ]
        versions = sorted({r.filename.split("-")[1].removesuffix(".tar.gz") for r in releases})
        return json.dumps(
            {"meta": {"api-version": "1.1"}, "name": name, "files": files, "versions": versions}
        ).encode()


def bridge_address() -> str:
    """Return the address of the engine's bridge, at which build containers reach a server on this machine."""
    api = connect()
    config = api.inspect_network("bridge")["IPAM"]["Config"]
    api.close()
    # some engines report the bridge's address only after a restart; it is the first address of the network
    first = str(next(ipaddress.ip_network(config[0]["Subnet"]).hosts())) if config else "127.0.0.1"
    return next((one["Gateway"] for one in config if one.get("Gateway")), first)


@contextlib.contextmanager
def reachable_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """Serve, on the engine's bridge, an index that build containers can reach, and set this machine's uv to use it."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{OUR_UV}")
    if shutil.which("uv") is None:
        pytest.skip("no uv on this machine, and without one a build would have to get it from a registry")
    address = bridge_address()
    for name in [n for n in os.environ if n.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    try:
        server = PackageIndex(address).__enter__()
    except OSError:
        pytest.skip("the engine's bridge is not on this machine: its containers cannot reach an index here")
    try:
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.url)
        yield server
    finally:
        server.__exit__()
