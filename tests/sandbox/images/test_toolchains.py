"""Toolchains and compilers of images: what is missing, where it comes from, and what people are told."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from m3agent.sandbox.backends.image import Image, find_image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import layers, toolchains
from m3agent.sandbox.images.debian import BaseImage
from m3agent.sandbox.images.layers import Builder
from m3agent.sandbox.images.packages_script import (
    BACKPORTS,
    SECURITY,
    candidates_in,
    compilers_of_rust,
    may_suffice,
    source_line,
    version_of,
)
from m3agent.sandbox.images.toolchains import (
    PROBE,
    libraries_for,
    read_answers,
    toolchains_of,
    tools_of,
    with_compilers,
    with_system_packages,
    with_toolchains,
)

HOST = Image("skeleton", ("/usr",), {}, "sha256:host")
DEBIAN_BASE = Image("base", (), {}, "sha256:base")


class Probe:
    """A stand-in for the probe: what each image lacks."""

    def __init__(self, missing: dict[str, set[str]]) -> None:
        self.missing = missing
        self.asked: list[str] = []

    def __call__(self, image: Image, command: tuple[str, ...], what: str) -> list[str]:
        self.asked.append(image.name)
        arguments = command[4:]
        wanted = [arguments[at + 2] for at in range(0, len(arguments), 3) if arguments[at] != "version"]
        lines = [f"missing {name}" for name in wanted if name in self.missing[image.name]]
        return [*lines, "version go go version go1.19.8 linux/amd64"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Record what is installed instead of installing it; Debian's base image is there."""
    calls: list[tuple[str, tuple[str, ...]]] = []

    def install(builder: Builder, image: Image, names: Any, **_: Any) -> Image:
        calls.append((image.name, tuple(names)))
        return image

    monkeypatch.setattr(toolchains, "with_system_packages", install)
    monkeypatch.setattr(toolchains, "base_image", lambda *_, **__: BaseImage(DEBIAN_BASE, "3.11"))
    return calls


def equip(image: Image, state: Path, said: list[str], *packages: str) -> Image:
    return with_toolchains(Builder(None, state, said.append), image, packages, ())


def test_what_is_there_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[tuple[str, tuple[str, ...]]]
) -> None:
    probe = Probe({"skeleton": set()})
    monkeypatch.setattr(Builder, "_asked", probe)
    said: list[str] = []
    assert equip(HOST, tmp_path, said, "golang", "own-package") == HOST
    assert (said, installed) == ([], [("skeleton", ())])
    assert equip(HOST, tmp_path, said, "golang", "own-package") == HOST
    assert probe.asked == ["skeleton"], "the answer was not kept"


def test_nothing_is_installed_over_this_machines_usr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[tuple[str, tuple[str, ...]]]
) -> None:
    monkeypatch.setattr(
        Builder, "_asked", Probe({"skeleton": {"cargo-web"}, "base": {"golang", "cargo-web"}})
    )
    said: list[str] = []
    assert equip(HOST, tmp_path, said, "golang", "cargo-web") == DEBIAN_BASE
    assert said == ["this machine's /usr lacks cargo-web for the tests: using Debian's base image"]
    assert installed == [("base", ("cargo-web", "golang"))]


@pytest.mark.parametrize(
    ("asked", "replaced"),
    [({"Go": "1.19"}, False), ({"Go": "1.23"}, True), ({"Go": "1.19.9"}, True), ({"Node.js": "99"}, False)],
)
def test_a_toolchain_that_is_too_old_is_missing(
    asked: dict[str, str],
    replaced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: list[tuple[str, tuple[str, ...]]],
) -> None:
    """If Debian's backports may have a newer one: the image has Go 1.19.8."""
    monkeypatch.setattr(Builder, "_asked", Probe({"skeleton": set(), "base": {"golang", "npm"}}))
    said: list[str] = []
    image = with_toolchains(Builder(None, tmp_path, said.append), HOST, ("golang", "npm"), (), asked)
    assert image == (DEBIAN_BASE if replaced else HOST)
    assert installed == ([("base", ("golang", "npm"))] if replaced else [("skeleton", ())])
    assert [asked["Go"] in line for line in said] == ([True] if replaced else [])


def test_answers_name_packages_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "missing php-cli",
        "version node v20.20.2",
        'version java openjdk version "17.0.15" 2025',
        "version go oops",
        "x",
    ]
    found = read_answers(lines)
    assert found.missing == ("php-cli",)
    assert found.versions == {"Node.js": "20.20.2", "Java": "17.0.15"}
    assert tools_of(["golang", "libx-dev", "cargo-web", "npm"]) == {"Go", "Rust"}
    monkeypatch.setattr(Builder, "_asked", Probe({"base": set()}))
    assert toolchains_of(Builder(None, tmp_path, print), DEBIAN_BASE, ()).versions == {"Go": "1.19.8"}


def test_libraries_of_python_packages_come_from_debian() -> None:
    requirements = ["PyODBC>=4,<6 --hash=sha256:00", "python-magic ; python_version > '3'", "numpy"]
    assert libraries_for(requirements) == ("libmagic1", "libodbc2")
    assert toolchains._questions(["libodbc2"])[:3] == ["library", "libodbc.so.2", "libodbc2"]


@pytest.mark.integration
def test_a_library_is_there_if_its_file_is() -> None:
    (own, *_) = sorted(path.name for path in Path("/usr/lib").iterdir())
    questions = ["library", own, "one", "library", "no-such.so.9", "two"]
    done = subprocess.run(["sh", "-c", PROBE, "sh", *questions], capture_output=True, text=True, check=True)
    assert done.stdout == "missing two\n"


# -- compilers and packages by name ----------------------------------------------------------------------------------

POLICY = """\
cargo:
  Installed: (none)
  Candidate: 0.66.0+ds1-1
  Version table:
cargo-web:
  Installed: (none)
  Candidate: 1.85.0+dfsg3-1~deb12u3
golang:
  Installed: (none)
  Candidate: 2:1.19~1
"""


def test_the_newest_rust_of_debian_counts() -> None:
    there = candidates_in(POLICY)
    assert there == {"cargo": "0.66.0+ds1-1", "cargo-web": "1.85.0+dfsg3-1~deb12u3", "golang": "1.19~1"}
    assert compilers_of_rust(there) == ["cargo-web", "rustc-web"]
    assert compilers_of_rust({"cargo": "0.66"}) == ["cargo", "rustc"]
    assert compilers_of_rust(candidates_in("cargo:\n  Installed: (none)\n  Candidate: (none)\n")) == []
    assert version_of("1.100") > version_of("1.85.0+dfsg3") >= version_of("1.85") > version_of("")


@pytest.mark.parametrize(
    ("there", "asked", "suffices"),
    [
        ("1.23~1~bpo12+1", "1.22", True),
        ("1.23~1~bpo12+1", "1.23.4", True),
        ("1.23~1~bpo12+1", "1.24", False),
        ("1.23.1", "1.23.4", False),
        ("", "1.22", False),
    ],
)
def test_what_is_too_old_in_the_backports_stays_there(there: str, asked: str, suffices: bool) -> None:
    assert may_suffice(there, asked) is suffices


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
    assert source_line("security", SECURITY, sources, release) == line
    assert source_line("security", SECURITY, sources, {**release, "ID": "ubuntu"}) is None
    if line is not None:
        backports = line.replace("-security bookworm-security", " bookworm-backports")
        assert source_line("backports", BACKPORTS, sources, release) == backports


@pytest.fixture
def image(api: Any, own_images: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """The default image. What is made from it has another name than outside of tests."""
    monkeypatch.setattr(toolchains, "COMPILERS_RECIPE", str(tmp_path))
    return find_image(api, None, lambda _: None)


def able_to(api: Any, image: Image, said: list[str], state: Path, rust: bool = False) -> Image:
    return with_compilers(Builder(api, state, said.append), image, (), rust=rust)


def lacks(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(
        toolchains, "COMPILERS_PROBE", "\n".join(f'echo "{name}"' for name in names) or "true"
    )


def fake_program(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """Let containers run these lines, which know the settings as `job`, instead of the program that installs packages."""
    script = folder / "packages_script.py"
    read = "import json, sys\ndef main():\n    job = json.load(open('/opt/m3agent-build/job.json'))\n"
    script.write_text(read + textwrap.indent(lines, "    "))
    monkeypatch.setattr(toolchains, "packages_script", SimpleNamespace(__file__=str(script)))


@pytest.mark.docker
@pytest.mark.integration
def test_an_image_that_has_all_is_asked_once(
    api: Any, image: Image, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(monkeypatch, "Rust")
    assert able_to(api, image, said, tmp_path) is image
    monkeypatch.setattr(Builder, "_asked", None)  # nothing is asked again
    assert able_to(api, image, said, tmp_path) is image
    assert said == []


def test_compilers_of_this_machine_are_looked_for_again_after_its_usr_changed(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = "compilers"

    def asked(*_: object) -> list[str]:
        return [] if installed == "compilers" else ["a C compiler"]

    monkeypatch.setattr(layers, "installed_on_host", lambda: installed)
    monkeypatch.setattr(layers, "local_image", lambda *_: None)
    monkeypatch.setattr(Builder, "_asked", asked)
    assert able_to(None, HOST, said, tmp_path) is HOST
    installed = "nothing"
    monkeypatch.setattr(toolchains, "base_image", lambda *_, **__: BaseImage(DEBIAN_BASE, "3.11"))
    monkeypatch.setattr(Builder, "image", lambda _, layer, below: below)
    assert able_to(None, HOST, said, tmp_path) is DEBIAN_BASE
    assert said == ["this machine's /usr lacks a C compiler for the project's build: using Debian's"]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.integration
def test_what_is_missing_is_installed_once(
    api: Any, image: Image, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(monkeypatch, "Rust")
    fake_program(monkeypatch, tmp_path, "print('notice: asked for rust', job['rust'])\n")
    monkeypatch.setattr(toolchains, "base_image", lambda *_, **__: BaseImage(image, "3.11"))
    made = able_to(api, image, said, tmp_path, True)
    assert made.name.startswith("m3agent-env:compilers-")
    assert said[-1] == "asked for rust True"
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
        return with_system_packages(builder, image, names, why="which a test names")

    builder = Builder(api, tmp_path, said.append)
    ask = "print('notice: asked for', *job['packages'])\nsys.exit('gone' in job['packages'])\n"
    fake_program(monkeypatch, tmp_path, ask)
    base = local_image(api, python_image)
    assert base is not None
    assert with_packages(base) is base
    made = with_packages(base, "gcc", "libpq-dev")
    assert made.name.startswith("m3agent-env:packages-")
    assert said[-1] == "asked for gcc libpq-dev"
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
    monkeypatch.setattr(toolchains, "base_image", base_image)
    assert able_to(api, image, said, tmp_path) is image
    first = (
        "this machine's /usr lacks a C compiler and Python's headers for the project's build: using Debian's"
    )
    assert said == [first, "only root can make a base image; the project's build has to do without"]
