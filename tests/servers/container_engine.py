"""A container engine's API on a unix socket that can be found and has images, but runs no containers."""

from __future__ import annotations

import json
import socketserver
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.servers.loopback import QuietHandler, ServerThread


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class ContainerEngine(ServerThread):
    """Serves, while the context is entered, as Docker of this version does, or as Podman."""

    def __init__(self, socket: Path, version: str, *, podman: bool = False) -> None:
        self.address = f"unix://{socket}"
        self.version = version
        self.images = {"python:3.12-slim"}
        self.pulled: list[str] = []
        name = "Podman Engine" if podman else "Engine"
        engine = self

        class Handler(QuietHandler):
            disable_nagle_algorithm = False  # only TCP sockets have the option

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if path.endswith("/version"):
                    components = [{"Name": name, "Version": version}]
                    self._answer(200, {"Version": version, "ApiVersion": "1.41", "Components": components})
                elif (image := path.rpartition("/images/")[2].removesuffix("/json")) in engine.images:
                    self._answer(200, {"Id": "sha256:0", "Config": {}})
                else:
                    self._answer(404, {"message": f"No such image: {image}"})

            def do_POST(self) -> None:
                wanted = parse_qs(urlsplit(self.path).query)
                engine.pulled.append(f"{wanted['fromImage'][0]}:{wanted['tag'][0]}")
                self._answer(200, {"status": "Download complete"})

            def _answer(self, status: int, body: object) -> None:
                self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

        super().__init__(_Server(str(socket), Handler))
