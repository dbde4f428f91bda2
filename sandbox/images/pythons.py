"""Give an image a Python that the project accepts, if it has none.

It is one that uv installs, or a base image with that Python takes the place of the image.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.images import env_script
from m3agent.sandbox.images.debian import RELEASED, base_here, best_base, exact_base
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.images.layers import Builder, Layer, Step, digest

FOLDER = "/opt/m3agent-env"
"""Folder of Pythons that uv installs, and of the virtual environment, in an image."""
RECIPE = 1  # part of every hash; increase it if the same image must get another Python
PROBE = r"""
for python in python3 "$@"; do
  "$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
done
"""
"""Shell script that prints the versions of the Pythons of an image; first, that of python3."""
NAMES = tuple(f"python{python}" for python in RELEASED)


def pythons_of(builder: Builder, image: Image) -> tuple[str, ...]:
    """Return the minor versions of the Pythons of an image; first, that of its python3. Blocking; the result is kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    lines = builder.ask(image, PROBE, NAMES, "the search for Pythons")
    return tuple(dict.fromkeys(line for line in lines if re.fullmatch(r"\d+\.\d+", line)))


def with_python(builder: Builder, image: Image, pythons: Sequence[str], *, replaceable: bool) -> Image:
    """Return an image with a Python that the project accepts; `image` itself if it has one, or if none can be had.

    Blocking; takes minutes if something must be made. If none can be had, a note says so.

    Args:
        builder: Builds what is missing.
        image: The image to start from.
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        replaceable: Whether another image may take its place.

    Raises:
        EnvironmentBuildFailed: The work was stopped, or the engine failed.
    """
    if not pythons:
        return image
    own = pythons_of(builder, image)
    if not own or not {*own}.isdisjoint(pythons):
        return image
    for python in pythons if replaceable else ():
        if base := base_here(builder.api, python, state=builder.state):
            return base.image
    with builder.tolerant(None):
        return builder.image(_layer(builder, image, pythons[0]), image)
    if replaceable and (best := best_base(pythons)) is not None:
        with builder.tolerant(""):
            return exact_base(
                builder.api, best, state=builder.state, say=builder.say, stop=builder.stop
            ).image
    builder.say(f"Python {pythons[0]} is not available here: using {own[0]}")
    return image


def _layer(builder: Builder, image: Image, python: str) -> Layer:
    """Return the layer with a Python that uv installs."""

    def steps() -> list[Step]:
        job = {"folder": FOLDER, "pythons": [python], "env": builder.env}
        return [Step(env_script, job, ("python",), installers(), folders=(FOLDER,))]

    key = f"python-{digest([RECIPE, image.ident or image.name, python, platform.machine()])}"
    return Layer(key, f"an image with Python {python}", steps)
