"""The choice of the container engine, with each combination of engines on real unix sockets. `doctor` agrees."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from m3agent.agent.settings.loader import settings_of
from m3agent.agent.settings.settings import Settings
from m3agent.cli import doctor
from m3agent.sandbox.backends import engine
from m3agent.sandbox.backends.engine import connect, find_engine, is_podman
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, allowed_backends, choose_backend
from m3agent.sandbox.backends.image import pull
from m3agent.sandbox.errors import EngineUnavailable
from tests.agent.repositories import write_files
from tests.servers.container_engine import ContainerEngine

pytestmark = pytest.mark.integration

DOCKER, PODMAN, OTHER = "27.5.1", "4.9.3", "20.10.1"
"""Versions that identify the engines."""


@dataclass
class Engines:
    """The sockets where m3agent looks for engines, and the engines that listen there."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    stack: contextlib.ExitStack

    @property
    def docker(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def podman(self) -> Path:
        return self.folder / "podman" / "podman.sock"

    def start(self, place: Path, version: str, *, podman: bool = False) -> ContainerEngine:
        return self.stack.enter_context(ContainerEngine(place, version, podman=podman))

    def dead(self, place: Path) -> None:
        """Create a socket without a listener, as a stopped engine leaves it."""
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(place))

    def name(self, address: str) -> None:
        self.monkeypatch.setenv("DOCKER_HOST", address)

    def context(self, name: str, address: object, folder: Path | None = None) -> None:
        """Write a context as `docker context create` does."""
        ident = hashlib.sha256(name.encode()).hexdigest()
        endpoints = {"docker": {"Host": address, "SkipTLSVerify": False}}
        meta = {"Name": name, "Metadata": {}, "Endpoints": endpoints}
        write_files(folder or Path.home() / ".docker", {f"contexts/meta/{ident}/meta.json": json.dumps(meta)})

    def use(self, name: object) -> None:
        """Choose a context as `docker context use` does."""
        write_files(Path.home(), {".docker/config.json": json.dumps({"currentContext": name})})


@pytest.fixture
def engines(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    folder = tmp_path_factory.mktemp("e")  # the path of a unix socket must be short
    (folder / "podman").mkdir()
    monkeypatch.setattr(engine, "DOCKER_SOCKET", f"unix://{folder}/docker.sock")
    monkeypatch.setattr(doctor, "DOCKER_SOCKET", f"unix://{folder}/docker.sock")
    monkeypatch.setattr(engine, "PODMAN_SOCKET", f"{folder}/none.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as stack:
        yield Engines(folder, monkeypatch, stack)


def found() -> str | None:
    """Return the version of the engine that sandboxes, images and evals use."""
    try:
        api = connect()
    except EngineUnavailable:
        return None
    with contextlib.closing(api):
        return str(api.version()["Version"])


def seen_by_doctor(**settings: str) -> tuple[bool | None, str]:
    check, _ = doctor._engine(settings_of(settings))
    return check.ok, check.detail


async def agreed(engines: Engines) -> str | None:
    """Return the version of the chosen engine. Assert that the choice of the sandbox and `doctor` agree with it."""
    version = found()
    ok, detail = seen_by_doctor()
    assert bool(ok) == (version is not None)
    if version is None:
        with pytest.raises(EngineUnavailable):
            await choose_backend(SandboxSpec(image="an-image"), print)
    else:
        assert version in detail
        assert await choose_backend(SandboxSpec(), print) == "docker"
    return version


async def test_docker_alone(engines: Engines) -> None:
    engines.start(engines.docker, DOCKER)
    assert await agreed(engines) == DOCKER
    assert seen_by_doctor() == (True, f"{DOCKER} at the local socket")


@pytest.mark.parametrize("docker_left_a_socket", [False, True])
async def test_podman_alone(engines: Engines, docker_left_a_socket: bool) -> None:
    if docker_left_a_socket:
        engines.dead(engines.docker)
    podman = engines.start(engines.podman, PODMAN, podman=True)
    assert await agreed(engines) == PODMAN
    assert seen_by_doctor() == (True, f"Podman {PODMAN} at {podman.address}")
    chosen = find_engine()
    with contextlib.closing(chosen.client):
        assert chosen.address == podman.address
        assert is_podman(chosen.client.version())


async def test_docker_comes_before_podman(engines: Engines) -> None:
    engines.start(engines.docker, DOCKER)
    engines.start(engines.podman, PODMAN, podman=True)
    assert await agreed(engines) == DOCKER
    with contextlib.closing(connect()) as api:
        assert not is_podman(api.version())


async def test_without_an_engine_there_is_an_error(engines: Engines) -> None:
    assert await agreed(engines) is None
    with pytest.raises(EngineUnavailable, match="no Docker engine answers at the local socket") as refused:
        connect()
    assert not refused.value.permission_denied


async def test_the_one_that_is_named(engines: Engines) -> None:
    engines.start(engines.docker, DOCKER)
    engines.start(engines.podman, PODMAN, podman=True)
    other = engines.start(engines.folder / "other.sock", OTHER)
    engines.name(other.address)
    assert await agreed(engines) == OTHER
    assert seen_by_doctor() == (True, f"{OTHER} at {other.address}")


@pytest.mark.parametrize("left", [False, True])
async def test_no_other_takes_the_place_of_one_that_is_named_and_dead(engines: Engines, left: bool) -> None:
    engines.start(engines.docker, DOCKER)
    engines.start(engines.podman, PODMAN, podman=True)
    if left:
        engines.dead(engines.folder / "other.sock")
    address = f"unix://{engines.folder}/other.sock"
    engines.name(address)
    assert await agreed(engines) is None
    assert seen_by_doctor() == (False, f"no engine answers at DOCKER_HOST={address}")


async def test_the_one_of_a_docker_context(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.start(engines.docker, DOCKER)
    other = engines.start(engines.folder / "other.sock", OTHER)
    podman = engines.start(engines.podman, PODMAN, podman=True)
    engines.context("colima", other.address)
    assert await agreed(engines) == DOCKER, "nothing chose the context"
    monkeypatch.setenv("DOCKER_CONTEXT", "colima")
    assert await agreed(engines) == OTHER
    engines.use("colima")
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert await agreed(engines) == DOCKER
    monkeypatch.delenv("DOCKER_CONTEXT")
    assert await agreed(engines) == OTHER
    engines.name(podman.address)
    assert await agreed(engines) == PODMAN


async def test_no_other_takes_the_place_of_a_context(engines: Engines) -> None:
    engines.start(engines.docker, DOCKER)
    engines.context("colima", f"unix://{engines.folder}/none.sock")
    engines.use("colima")
    assert await agreed(engines) is None
    assert (
        seen_by_doctor()[1]
        == f"no engine answers at unix://{engines.folder}/none.sock (Docker context 'colima')"
    )


@pytest.mark.parametrize("address", [None, 7, {}])
async def test_a_context_that_cannot_be_read(engines: Engines, address: object) -> None:
    engines.start(engines.docker, DOCKER)
    engines.context("odd", address)
    engines.use("odd")
    assert await agreed(engines) is None
    assert seen_by_doctor() == (False, "the Docker context 'odd' does not exist or cannot be read")


@pytest.mark.parametrize("name", ["", "no", 7, ["a"], None])
async def test_any_name_of_a_context(engines: Engines, name: object) -> None:
    engines.start(engines.docker, DOCKER)
    engines.use(name)
    assert await agreed(engines) == (None if name else DOCKER)


async def test_the_repository_names_no_context(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines.start(engines.docker, DOCKER)
    engines.context("mine", engines.start(engines.folder / "other.sock", OTHER).address, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert await agreed(engines) is None


async def test_an_engine_that_does_not_answer_in_time(engines: Engines) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(engines.docker))
        silent.listen()
        podman = engines.start(engines.podman, PODMAN, podman=True)
        chosen = find_engine(timeout=1)
        chosen.client.close()
        assert chosen.address == podman.address


def test_an_image_is_pulled_by_the_engine_that_is_used(engines: Engines) -> None:
    podman = engines.start(engines.podman, PODMAN, podman=True)
    assert pull("python:3.12-slim", lambda _: None)
    assert podman.pulled == ["python:3.12-slim"]
    other = engines.start(engines.folder / "other.sock", OTHER)
    engines.name(other.address)
    assert pull("busybox:1", lambda _: None)
    assert (podman.pulled, other.pulled) == (["python:3.12-slim"], ["busybox:1"])
    engines.name(f"unix://{engines.folder}/none.sock")
    assert not pull("busybox:2", lambda _: None)


def test_the_doctor_looks_for_images_where_sandboxes_start(engines: Engines) -> None:
    engines.start(engines.docker, DOCKER).images.clear()
    other = engines.start(engines.folder / "other.sock", OTHER)
    other.images = {"an-image"}
    engine_check, image = doctor._engine(Settings(image="an-image"))
    assert (engine_check.ok, image.ok) == (True, False)
    engines.name(other.address)
    _, image = doctor._engine(Settings(image="an-image"))
    assert (image.ok, image.detail) == (True, "an-image")


@pytest.mark.parametrize(
    ("backend", "image", "allowed"),
    [
        (None, None, ("docker", "bwrap")),
        (None, "an-image", ("docker",)),
        ("docker", None, ("docker",)),
        ("bwrap", None, ("bwrap",)),
        ("bwrap", "an-image", ("bwrap",)),
    ],
)
def test_backends_that_a_sandbox_may_get(backend: Backend | None, image: str | None, allowed: object) -> None:
    assert allowed_backends(backend, image) == allowed
