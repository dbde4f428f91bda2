"""Toolchains of images: what is missing, which versions are there, and what is installed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.images import probe as probing
from m3agent.sandbox.images import toolchains
from m3agent.sandbox.images.debian import BaseImage
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.toolchains import read_answers, toolchains_of, tools_of, with_toolchains

HOST = Image("skeleton", ("/usr",), {}, "sha256:host")
DEBIAN_BASE = Image("base", (), {}, "sha256:base")


class Probe:
    """A stand-in for the probe: what each image lacks."""

    def __init__(self, missing: dict[str, set[str]]) -> None:
        self.missing = missing
        self.asked: list[str] = []

    def __call__(self, api: Any, image: Image, script: str, arguments: list[str], what: str) -> list[str]:
        self.asked.append(image.name)
        wanted = [arguments[at + 2] for at in range(0, len(arguments), 3) if arguments[at] != "version"]
        lines = [f"missing {name}" for name in wanted if name in self.missing[image.name]]
        return [*lines, "version go go version go1.19.8 linux/amd64"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Record what is installed instead of installing it; Debian's base image is there."""
    calls: list[tuple[str, tuple[str, ...]]] = []

    def install(api: Any, image: Image, names: Any, *_: Any, **__: Any) -> Image:
        calls.append((image.name, tuple(names)))
        return image

    monkeypatch.setattr(toolchains, "with_system_packages", install)
    monkeypatch.setattr(toolchains, "base_image", lambda *_, **__: BaseImage(DEBIAN_BASE, "3.11"))
    return calls


def equip(image: Image, state: Path, said: list[str], *packages: str) -> Image:
    return with_toolchains(
        None, image, packages, (), Indexes(), state=state, say=said.append, stop=threading.Event()
    )


def test_what_is_there_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[tuple[str, tuple[str, ...]]]
) -> None:
    probe = Probe({"skeleton": set()})
    monkeypatch.setattr(probing, "probe", probe)
    said: list[str] = []
    assert equip(HOST, tmp_path, said, "golang", "own-package") == HOST
    assert (said, installed) == ([], [("skeleton", ())])
    assert equip(HOST, tmp_path, said, "golang", "own-package") == HOST
    assert probe.asked == ["skeleton"], "the answer was not kept"


def test_nothing_is_installed_over_this_machines_usr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[tuple[str, tuple[str, ...]]]
) -> None:
    monkeypatch.setattr(probing, "probe", Probe({"skeleton": {"cargo-web"}, "base": {"golang", "cargo-web"}}))
    said: list[str] = []
    assert equip(HOST, tmp_path, said, "golang", "cargo-web") == DEBIAN_BASE
    assert said == ["this machine's /usr lacks cargo-web for the tests: using Debian's base image"]
    assert installed == [("base", ("cargo-web", "golang"))]


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
    monkeypatch.setattr(probing, "probe", Probe({"base": set()}))
    assert toolchains_of(None, DEBIAN_BASE, (), tmp_path).versions == {"Go": "1.19.8"}
