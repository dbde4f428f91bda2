"""Compilers in images: what is missing, where it comes from, and what people are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image, find_image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import compilers, system_packages
from m3agent.sandbox.images.compilers import with_compilers
from m3agent.sandbox.images.compilers_script import newest_rust, updates_of, version_of
from m3agent.sandbox.images.debian import BaseImage
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.system_packages import with_system_packages
from tests.conftest import docker_here

POLICY = """\
cargo:
  Installed: (none)
  Candidate: 0.66.0+ds1-1
  Version table:
cargo-web:
  Installed: (none)
  Candidate: 1.85.0+dfsg3-1~deb12u3
"""


def test_the_newest_rust_of_debian_counts() -> None:
    assert newest_rust(POLICY) == ("-web", "1.85.0+dfsg3-1~deb12u3")
    assert newest_rust(POLICY.partition("cargo-web")[0]) == ("", "0.66.0+ds1-1")
    assert newest_rust("cargo:\n  Installed: (none)\n  Candidate: (none)\n") == ("", "")
    assert version_of("1.100") > version_of("1.85.0+dfsg3") >= version_of("1.85") > version_of("")


@pytest.mark.parametrize(
    ("sources", "line"),
    [
        ("deb http://mirror.test/debian bookworm main\n", "deb http://mirror.test/debian-security bookworm-security main\n"),
        ("URIs: https://mirror.test/x/debian/\nSuites: a\n", "deb https://mirror.test/x/debian-security bookworm-security main\n"),
        ("deb http://mirror.test/debian a main\ndeb http://mirror.test/debian-security a-security main\n", None),
        ("deb http://mirror.test/other a main\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_security_updates_come_from_the_same_mirror(sources: str, line: str | None) -> None:
    release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    assert updates_of(sources, release) == line
    assert updates_of(sources, {**release, "ID": "ubuntu"}) is None


@pytest.fixture
def api() -> Iterator[Any]:
    if not docker_here():
        pytest.skip("no Docker engine answers")
    client = connect()
    yield client
    client.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def image(api: Any, own_images: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """The default image. What is made from it has another name than outside of tests."""
    monkeypatch.setattr(compilers, "RECIPE", str(tmp_path))
    return find_image(api, None, lambda _: None)


def able_to(api: Any, image: Image, said: list[str], state: Path, rust: bool = False) -> Image:
    return with_compilers(
        api, image, rust, (), Indexes(), state=state, say=said.append, stop=threading.Event()
    )


def lacks(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(compilers, "PROBE", "\n".join(f'echo "{name}"' for name in names) or "true")


@pytest.mark.docker
@pytest.mark.integration
def test_an_image_that_has_all_is_asked_once(
    api: Any, image: Image, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(monkeypatch, "Rust")
    assert able_to(api, image, said, tmp_path) is image
    monkeypatch.setattr(compilers, "PROBE", "echo 'a C compiler'")
    assert able_to(api, image, said, tmp_path) is image
    assert said == []


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.integration
def test_what_is_missing_is_installed_once(
    api: Any, image: Image, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(monkeypatch, "Rust")
    script = tmp_path / "compilers_script.py"
    script.write_text("import sys\nprint('notice: asked for', sys.argv[1])\n")
    monkeypatch.setattr(system_packages, "compilers_script", SimpleNamespace(__file__=str(script)))
    monkeypatch.setattr(compilers, "base_image", lambda *_, **__: BaseImage(image, "3.11"))
    made = able_to(api, image, said, tmp_path, True)
    assert made.name.startswith("m3agent-env:compilers-")
    assert said[-1] == "asked for rust"
    count = len(said)
    assert able_to(api, image, said, tmp_path, True) == made
    assert len(said) == count


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.integration
def test_packages_that_a_dockerfile_names_are_installed_once(
    api: Any,
    own_images: None,
    python_image: str,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_packages(image: Image, *names: str) -> Image:
        return with_system_packages(
            api,
            image,
            names,
            Indexes(),
            why="which a test names",
            state=tmp_path,
            say=said.append,
            stop=threading.Event(),
        )

    script = tmp_path / "compilers_script.py"
    script.write_text("import sys\nprint('notice: asked for', *sys.argv[1:])\nsys.exit('gone' in sys.argv)\n")
    monkeypatch.setattr(system_packages, "compilers_script", SimpleNamespace(__file__=str(script)))
    base = local_image(api, python_image)
    assert base is not None
    assert with_packages(base) is base
    made = with_packages(base, "gcc", "libpq-dev")
    assert made.name.startswith("m3agent-env:packages-")
    assert said[-1] == "asked for packages gcc libpq-dev"
    count = len(said)
    assert with_packages(base, "libpq-dev", "gcc") == made
    assert len(said) == count
    assert with_packages(base, "gone") is base
    assert "; continuing without them" in said[-1]
    assert with_packages(replace(base, binds=("/usr",)), "gcc").binds == ("/usr",)
    assert said[-1] == "left out, because nothing can be installed over this machine's /usr: gcc"


@pytest.mark.docker
@pytest.mark.integration
def test_compilers_that_cannot_be_had_are_one_sentence(
    api: Any, image: Image, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def base_image(*_: object, **__: object) -> BaseImage:
        raise EnvironmentBuildFailed("only root can make a base image")

    lacks(monkeypatch, "a C compiler", "Python's headers")
    monkeypatch.setattr(compilers, "base_image", base_image)
    assert able_to(api, image, said, tmp_path) is image
    first = (
        "this machine's /usr lacks a C compiler and Python's headers for the project's build: using Debian's"
    )
    assert said == [first, "only root can make a base image; the project's build has to do without"]
