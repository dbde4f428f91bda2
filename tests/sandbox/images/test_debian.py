"""Base images: made once on a machine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import debian
from m3agent.sandbox.images.debian import BASES, RELEASED, UBUNTU, best_base, nearest


def test_two_state_folders_make_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    waiting, stop = threading.Event(), threading.Event()

    def bootstrap(_: object, python: str, tag: str, *__: object) -> None:
        waiting.wait(60)
        made.append(tag)

    def say(line: str) -> None:
        if "waiting" in line:
            waiting.set()

    def local_image(_: object, name: str) -> Image | None:
        return Image(name) if name in made else None

    monkeypatch.setattr(debian, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(debian, "_bootstrap", bootstrap)
    monkeypatch.setattr(debian, "local_image", local_image)
    monkeypatch.setattr(debian, "pull", lambda *_: False)
    monkeypatch.setattr(debian, "_not_pulled", set[str]())

    def base(state: str) -> debian.BaseImage:
        return debian.base_image(None, "3.11", state=tmp_path / state, say=say, stop=stop)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(base, ("first", "second"))
    assert waiting.is_set() and first == second and len(made) == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("3.9", "3.9"), ("3.10", "3.9"), ("3.6", "3.9"), ("3.11", "3.11"), ("3.12", "3.11"), ("3.15", "3.13")],
)
def test_the_nearest_python_is_debians_newest_that_is_not_newer(wanted: str, found: str) -> None:
    assert nearest(wanted) == found


@pytest.mark.parametrize(
    ("pythons", "best"),
    [
        ((), None),
        (("3.12", "3.13"), "3.13"),
        (("3.12",), "3.12"),
        (("3.7", "3.6"), "3.7"),
        (("3.4",), None),
    ],
    ids=["any", "Debian first", "Ubuntu", "the best of Ubuntu", "none"],
)
def test_the_base_for_a_choice_of_pythons(pythons: tuple[str, ...], best: str | None) -> None:
    assert best_base(pythons) == best


def test_every_python_has_a_base_and_its_day() -> None:
    assert list(BASES) == list(RELEASED) == [f"3.{minor}" for minor in range(5, 15)]


@pytest.mark.parametrize(
    ("wanted", "fails", "python"),
    [("3.6", (), "3.6"), ("3.6", ("3.6",), "3.9"), ("3.15", (), "3.13"), ("3.9", ("3.9",), None)],
)
def test_a_base_that_cannot_be_made_gives_way_to_the_nearest_of_debian(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    fails: tuple[str, ...],
    python: str | None,
) -> None:
    made: list[str] = []
    notes: list[str] = []

    def bootstrap(_: object, python: str, tag: str, *__: object) -> None:
        if python in fails:
            raise EnvironmentBuildFailed("no mirror")
        made.append(tag)

    monkeypatch.setattr(debian, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(debian, "_bootstrap", bootstrap)
    monkeypatch.setattr(debian, "local_image", lambda _, name: Image(name) if name in made else None)
    monkeypatch.setattr(debian, "pull", lambda *_: False)
    monkeypatch.setattr(debian, "_not_pulled", set[str]())

    def base() -> str:
        stop = threading.Event()
        return debian.base_image(None, wanted, state=tmp_path, say=notes.append, stop=stop).python

    if python is None:
        with pytest.raises(EnvironmentBuildFailed, match="no mirror"):
            base()
    else:
        assert base() == python
    told = [note for note in notes if "is not available here" in note]
    assert bool(told) == (python not in (None, wanted)), notes


def test_packages_without_their_keys_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "debootstrap"
    program.write_text('#!/bin/sh\nDEF_MIRROR="http://mirror.invalid/debian"\n')
    monkeypatch.setattr(debian, "KEYRINGS", tmp_path / "keys")
    asked: list[str] = []

    def downloaded(package: str, *_: object) -> None:
        asked.append((tmp_path / "keys.list").read_text())

    monkeypatch.setattr(debian, "_downloaded", downloaded)
    log = (tmp_path / "log").open("wb")
    with log, pytest.raises(EnvironmentBuildFailed, match="install ubuntu-keyring"):
        debian._options(BASES["3.6"], str(program), tmp_path, log, threading.Event())
    assert asked[0].startswith("deb [signed-by=") and " http://mirror.invalid/debian trixie main" in asked[0]
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ubuntu-archive-keyring.gpg").touch()
    with (tmp_path / "log").open("wb") as output:
        options = debian._options(BASES["3.6"], str(program), tmp_path, output, threading.Event())
    assert {*UBUNTU.options, f"--keyring={tmp_path}/keys/ubuntu-archive-keyring.gpg"} <= {*options}
