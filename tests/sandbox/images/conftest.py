"""A base image for tests that build one, made of this machine's files, so that no registry is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import host_python_usable, usr_links
from tests.conftest import docker_here
from tests.servers.dockerd import wait_until_removed
from tests.servers.packages import OUR_UV, PackageIndex, reachable_index

PROGRAMS = ("env", "sh", "cat", "id", "mkdir", "touch")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def api() -> Iterator[Any]:
    if not docker_here():
        pytest.skip("no Docker engine answers: environment images need one")
    with contextlib.closing(connect()) as client:
        yield client


@pytest.fixture
def nothing_stays(own_images: None, api: Any) -> Iterator[None]:
    """Assert that no test leaves a container."""
    yield
    wait_until_removed(api)


@pytest.fixture
def index(own_images: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with reachable_index(monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def python_image() -> Iterator[str]:
    """A small image with its own python3, a shell and a few programs, copied from this machine."""
    if not host_python_usable():
        pytest.skip("this machine has no /usr/bin/python3 to make an image of")
    python = Path("/usr/bin/python3").resolve()
    standard = Path("/usr/lib") / python.name
    programs = [Path("/usr/bin", name) for name in PROGRAMS]
    uv = [
        path for path in (shutil.which("uv"), OUR_UV / "uv") if path and Path(path).exists()
    ]  # builds run it there
    linked = subprocess.run(
        ["ldd", python, *programs, *uv], capture_output=True, text=True, check=True
    ).stdout
    lines = [
        line for line in linked.splitlines() if not line.endswith(":")
    ]  # without the names of the programs
    words = [word for line in lines for word in line.split() if word.startswith("/")]
    libraries = {Path(word).resolve() for word in words}
    loaders = {Path(word) for word in words}
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in usr_links():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target.lstrip("/")
            archive.addfile(info)
        paths = {python, *libraries, *loaders, *_extension_libraries(standard)}
        inside = {str(path).lstrip("/"): path for path in paths}
        for name, path in {n if n.startswith("usr/") else f"usr/{n}": p for n, p in inside.items()}.items():
            archive.add(path.resolve(), name)
        archive.add(standard, str(standard).lstrip("/"), filter=_without_tests)
        for program in programs:
            archive.add(program.resolve(), str(program).lstrip("/"))
        info = tarfile.TarInfo("usr/bin/python3")
        info.type, info.linkname = tarfile.SYMTYPE, python.name
        archive.addfile(info)
        for folder in ("tmp", "ws", "opt/m3agent", "proc", "sys", "dev"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(info)
    client = connect()
    name = f"m3agent-test-python:{os.getpid()}"
    client.import_image_from_data(buffer.getvalue(), repository=name.split(":")[0], tag=name.split(":")[1])
    yield name
    with contextlib.suppress(Exception):  # after a failed test, another image may still depend on it
        client.remove_image(name, force=True)
    client.close()


def _extension_libraries(standard: Path) -> set[Path]:
    """Return the libraries that the interpreter's extension modules (zlib, ctypes) are linked with."""
    modules = [str(path) for path in (standard / "lib-dynload").glob("*.so")]
    linked = subprocess.run(["ldd", *modules], capture_output=True, text=True, check=False).stdout
    return {Path(word) for word in linked.split() if word.startswith("/") and not word.endswith(":")}


def _without_tests(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    skipped = ("/test", "/__pycache__", "/idlelib", "/lib2to3", "/site-packages", "/dist-packages")
    return None if info.name.endswith(skipped) or "/config-" in info.name else info
