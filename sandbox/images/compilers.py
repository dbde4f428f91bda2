"""Add compilers to an image, for projects whose own build compiles something: a C compiler, Python's headers, Rust.

They come from Debian's packages. Nothing can be installed over the skeleton image, which has this machine's /usr; if that
lacks a compiler, Debian's base image takes its place.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.image import Image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.debian import base_image, best_base, just_built
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.images.probe import probe
from m3agent.sandbox.images.system_packages import install_with_apt

RECIPE = 1  # part of every hash; increase it if the same image must get other compilers
PROBE = r"""
command -v cc >/dev/null || echo 'a C compiler'
include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
[ -e "$include/Python.h" ] || echo "Python's headers"
command -v cargo >/dev/null || echo Rust
"""
"""Shell script that prints what an image lacks, one name a line."""


def with_compilers(
    api: Any,
    image: Image,
    rust: bool,
    pythons: Collection[str],
    indexes: Indexes,
    *,
    state: Path,
    say: Say,
    stop: threading.Event,
) -> Image:
    """Return an image with a C compiler and Python's headers; `image` itself if it has them or they cannot be had.

    Blocking; takes minutes if something must be installed. What cannot be installed is a note, because some build
    backends bring their compilers themselves.

    Args:
        api: The engine's client.
        image: The image to start from.
        rust: Whether the project needs Rust.
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        indexes: Where packages come from.
        state: Folder for logs, locks and times of last use.
        say: Receives notes for people.
        stop: Ends the work early.

    Raises:
        EnvironmentBuildFailed: `stop` was set.
    """
    made_from = [RECIPE, image.ident, rust]
    name = f"compilers-{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]}"
    tag = f"{REPOSITORY}:{name}"
    has_all = folder(state) / f"{name}.has-all"
    if has_all.exists():
        return image
    try:
        with one_at_a_time(state, tag, say, stop):
            if there := local_image(api, tag):
                touch(state, tag, api)
                return there
            missing = _missing(api, image, rust)
            if not missing:
                has_all.touch()
                return image
            if image.binds:
                say(
                    f"this machine's /usr lacks {' and '.join(missing)} for the project's build: using Debian's"
                )
                python = best_base(pythons)
                image = base_image(api, python, state=state, say=say, stop=stop).image
            if _missing(api, image, rust):
                say(
                    f"installing {' and '.join(missing)} for the project's build once (this may take minutes)"
                )
                install_with_apt(
                    api,
                    image,
                    ["rust"] if rust else [],
                    "an image with compilers",
                    tag,
                    indexes,
                    log=folder(state) / f"{name}.log",
                    say=say,
                    stop=stop,
                )
                image = just_built(api, tag)
                touch(state, tag, api)
            return image
    except EnvironmentBuildFailed as error:
        if stop.is_set():
            raise
        say(f"{error}; the project's build has to do without")
        return image


def _missing(api: Any, image: Image, rust: bool) -> list[str]:
    """Return what the image lacks, in words."""
    lines = probe(api, image, PROBE, (), "the search for compilers")
    return [line for line in lines if rust or line != "Rust"]
