"""The Python of an image: the image's own, one that uv installs, or that of another base image."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import toolchains
from m3agent.sandbox.images.debian import BaseImage
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.images.layers import Builder, Layer
from m3agent.sandbox.images.toolchains import with_python
from tests.evals.bases import needs_base, needs_docker
from tests.sandbox.images.reach import WorkspaceOf


@dataclass
class Machine:
    """What can be had: Pythons of the image, bases that are here, those of uv, and bases that can be made."""

    own: tuple[str, ...] = ("3.11",)
    here: tuple[str, ...] = ()
    uv: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()

    def fake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def base_here(_: object, python: str, **__: object) -> BaseImage | None:
            return BaseImage(Image(f"here-{python}"), python) if python in self.here else None

        def exact_base(_: object, python: str, **__: object) -> BaseImage:
            if python not in self.makes:
                raise EnvironmentBuildFailed("no mirror")
            return BaseImage(Image(f"made-{python}"), python)

        def image(_: Builder, layer: Layer, below: Image) -> Image:
            if layer.what.rpartition(" ")[2] not in self.uv:
                raise EnvironmentBuildFailed("no Python")
            return Image("of uv")

        monkeypatch.setattr(toolchains, "pythons_of", lambda *_: self.own)
        monkeypatch.setattr(toolchains, "base_here", base_here)
        monkeypatch.setattr(toolchains, "exact_base", exact_base)
        monkeypatch.setattr(Builder, "image", image)


USING_OWN = "Python 3.12 is not available here: using 3.11"
CASES = {
    "any Python will do": (Machine(), (), True, "start", []),
    "the image has one": (Machine(), ("3.12", "3.11"), True, "start", []),
    "the image has one under another name": (Machine(own=("3.8", "3.7")), ("3.7",), True, "start", []),
    "another base is here": (Machine(here=("3.13",), uv=("3.12",)), ("3.12", "3.13"), True, "here-3.13", []),
    "the image stays": (Machine(here=("3.12",), uv=("3.12",)), ("3.12",), False, "of uv", []),
    "uv before a new base": (Machine(uv=("3.12",), makes=("3.12",)), ("3.12",), True, "of uv", []),
    "a new base, Debian's first": (Machine(makes=("3.12", "3.13")), ("3.12", "3.13"), True, "made-3.13", []),
    "no Python for an image that stays": (Machine(makes=("3.12",)), ("3.12",), False, "start", [USING_OWN]),
    "no base has it": (Machine(), ("3.4",), True, "start", [USING_OWN.replace("12", "4")]),
    "the base cannot be made": (Machine(), ("3.12",), True, "start", ["no mirror", USING_OWN]),
    "an image without Python": (Machine(own=()), ("3.12",), True, "start", []),
}


@pytest.mark.parametrize(("machine", "accepted", "replaceable", "name", "notes"), CASES.values(), ids=CASES)
def test_an_image_gets_a_python_that_the_project_accepts(
    machine: Machine,
    accepted: tuple[str, ...],
    replaceable: bool,
    name: str,
    notes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.fake(monkeypatch)
    told: list[str] = []
    builder = Builder(None, tmp_path, told.append)
    image = with_python(builder, Image("start"), accepted, replaceable=replaceable)
    assert (image.name, told) == (name, notes)


def test_a_stop_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(makes=("3.12",)).fake(monkeypatch)
    stop = threading.Event()
    stop.set()
    with pytest.raises(EnvironmentBuildFailed):
        with_python(Builder(None, tmp_path, print, stop), Image("start"), ("3.12",), replaceable=True)


@pytest.mark.docker
@needs_docker
@needs_base
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_repository_that_excludes_the_default_python_gets_a_base_with_another(
    workspace_of: WorkspaceOf, tmp_path: Path
) -> None:
    workspace = workspace_of({"pyproject.toml": '[project]\nname = "own"\nrequires-python = "==3.9.*"\n'})
    image = await find_environment(workspace, tmp_path, print)
    assert image is not None
    api = connect()
    try:
        there = local_image(api, image)
        assert there is not None and toolchains.pythons_of(Builder(api, tmp_path, print), there) == ("3.9",)
    finally:
        api.close()
