"""Give an image a Python that the project accepts, if it has none.

It is one that uv installs, or a base image with that Python takes the place of the image.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.image import Image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.debian import RELEASED, base_here, best_base, exact_base, just_built
from m3agent.sandbox.images.env_build import install_python
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.images.probe import kept_probe

RECIPE = 1  # part of every hash; increase it if the same image must get another Python
PROBE = r"""
for python in python3 "$@"; do
  "$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
done
"""
"""Shell script that prints the versions of the Pythons of an image; first, that of python3."""
NAMES = tuple(f"python{python}" for python in RELEASED)


def pythons_of(api: Any, image: Image, state: Path) -> tuple[str, ...]:
    """Return the minor versions of the Pythons of an image; first, that of its python3. Blocking; the result is kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    lines = kept_probe(api, image, PROBE, NAMES, "the search for Pythons", state)
    return tuple(dict.fromkeys(line for line in lines if re.fullmatch(r"\d+\.\d+", line)))


def with_python(
    api: Any,
    image: Image,
    pythons: Sequence[str],
    indexes: Indexes,
    *,
    replaceable: bool,
    state: Path,
    say: Say,
    stop: threading.Event,
) -> Image:
    """Return an image with a Python that the project accepts; `image` itself if it has one, or if none can be had.

    Blocking; takes minutes if something must be made. If none can be had, a note says so.

    Args:
        api: The engine's client.
        image: The image to start from.
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        indexes: Where packages come from.
        replaceable: Whether another image may take its place.
        state: Folder for logs, locks and times of last use.
        say: Receives notes for people.
        stop: Ends the work early.

    Raises:
        EnvironmentBuildFailed: `stop` was set, or the engine failed.
    """
    if not pythons:
        return image
    own = pythons_of(api, image, state)
    if not own or not {*own}.isdisjoint(pythons):
        return image
    for python in pythons if replaceable else ():
        if base := base_here(api, python, state=state):
            return base.image
    try:
        return _with_uvs_python(api, image, pythons[0], indexes, state=state, say=say, stop=stop)
    except EnvironmentBuildFailed:
        if stop.is_set():
            raise
    if replaceable and (best := best_base(pythons)) is not None:
        try:
            return exact_base(api, best, state=state, say=say, stop=stop).image
        except EnvironmentBuildFailed as error:
            if stop.is_set():
                raise
            say(str(error))
    say(f"Python {pythons[0]} is not available here: using {own[0]}")
    return image


def _with_uvs_python(
    api: Any, image: Image, python: str, indexes: Indexes, *, state: Path, say: Say, stop: threading.Event
) -> Image:
    """Return an image with a Python that uv installs. The arguments are those of `with_python`.

    Raises:
        EnvironmentBuildFailed: uv cannot install it.
    """
    made_from = json.dumps([RECIPE, image.ident or image.name, python, platform.machine()])
    tag = f"{REPOSITORY}:python-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    with one_at_a_time(state, tag, say, stop):
        if local_image(api, tag) is None:
            log = folder(state) / f"{tag.partition(':')[2]}.log"
            install_python(api, python, image, tag, indexes, log=log, say=say, stop=stop)
    touch(state, tag, api)
    return just_built(api, tag)
