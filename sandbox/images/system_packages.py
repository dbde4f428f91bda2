"""Add Debian packages to an image: compilers, toolchains of test suites, and what a repository's Dockerfile names."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.image import Image, local_image
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images import compilers_script
from m3agent.sandbox.images.debian import just_built
from m3agent.sandbox.images.image_build import INSTALLING, Build, build_image, files_as_tar
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.kept import REPOSITORY, Say, folder, one_at_a_time, touch
from m3agent.sandbox.portable_source import portable_files

WORK = "/opt/m3agent-compilers"
RECIPE = 1  # part of every hash; increase it if the same names must give another image


def with_system_packages(
    api: Any,
    image: Image,
    names: Sequence[str],
    indexes: Indexes,
    *,
    why: str,
    state: Path,
    say: Say,
    stop: threading.Event,
) -> Image:
    """Return an image with those of these packages that can be installed. Blocking; takes minutes.

    Args:
        api: The engine's client.
        image: The image to start from.
        names: Names of Debian packages.
        indexes: Where packages come from.
        why: Why they are installed, as a relative clause for people.
        state: Folder for logs, locks and times of last use.
        say: Receives notes for people: what is left out.
        stop: Ends the work early.

    Raises:
        EnvironmentBuildFailed: `stop` was set.
    """
    if not names:
        return image
    if image.binds:
        say(f"left out, because nothing can be installed over this machine's /usr: {' '.join(names)}")
        return image
    made_from = json.dumps([RECIPE, image.ident, sorted(names)])
    tag = f"{REPOSITORY}:packages-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    try:
        with one_at_a_time(state, tag, say, stop):
            if local_image(api, tag) is None:
                say(f"installing {' '.join(names)}, {why}, once (this may take minutes)")
                log = folder(state) / f"{tag.partition(':')[2]}.log"
                what, arguments = "an image with these packages", ["packages", *names]
                install_with_apt(api, image, arguments, what, tag, indexes, log=log, say=say, stop=stop)
        touch(state, tag, api)
        return just_built(api, tag)
    except EnvironmentBuildFailed as error:
        if stop.is_set():
            raise
        say(f"{error}; continuing without them")
        return image


def install_with_apt(
    api: Any,
    image: Image,
    arguments: Sequence[str],
    what: str,
    tag: str,
    indexes: Indexes,
    *,
    log: Path,
    say: Say,
    stop: threading.Event,
) -> None:
    """Build an image with `compilers_script.py`, which gets these arguments; the others are those of `build_image`."""
    build = Build(
        what=what,
        base=image,
        command=("python3", "-I", "-S", f"{WORK}/compilers_script.py", *arguments),
        user="0:0",
        folder="/",
        env=indexes.environment(f"{WORK}/certificates.pem"),
        capabilities=INSTALLING,
        indexes=indexes,
        image_env=image.env,
        image_command="python3",
    )
    files = portable_files(compilers_script)
    if indexes.certificates is not None:
        files["certificates.pem"] = indexes.certificates.read_bytes()
    build_image(api, build, tag, [files_as_tar(files, WORK, folders=[WORK])], log=log, say=say, stop=stop)
