"""Find the image of the repository's own devcontainer.json or Dockerfile, or what its Dockerfile names.

An image is used only if it can run a sandbox (it has a python3).
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import replace
from typing import Any

from m3agent.sandbox.backends.image import Image, local_image
from m3agent.sandbox.declared.container import Container, MayBuild, read_containers
from m3agent.sandbox.declared.dockerfile import Named, read_named
from m3agent.sandbox.declared.types import Files, ScanResult
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.images.dockerfile_build import build_dockerfile, find_named
from m3agent.sandbox.images.image_build import engine_failures
from m3agent.sandbox.images.kept import REPOSITORY, touch
from m3agent.sandbox.images.layers import Builder, container_of, digest
from m3agent.sandbox.store.workspace import Workspace

NOTHING = Named(None, (), ())
# Files whose content determines what is installed. Changes of other files need no new image: the sandbox replaces the
# image's copies of them by the files of the work tree.
DECIDING = (
    "requirements",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    ".lock",
    "package.json",
    "environment.y",
)
RECIPE = 2  # part of every hash; increase it if the same files must give another image
NO_PYTHON = "its image has no python3, which every sandbox needs"


def own_image(
    builder: Builder, workspace: Workspace, files: Files, may_build: MayBuild
) -> tuple[str | None, Named]:
    """Return the repository's own image; without one, what the first Dockerfile names that may not be built. Blocking.

    Raises:
        SandboxError: The search was stopped.
    """
    found, named = ScanResult(), NOTHING
    for container in read_containers(files, found):
        while found.notices:
            builder.say(found.notices.pop(0))
        try:
            text = _text(files, container)
            if text is None or may_build(container, text):
                return _built(builder, container, workspace), NOTHING
            named = named if named != NOTHING else _named(builder, container, text)
        except SandboxError as error:
            if builder.stop.is_set():
                raise
            builder.say(f"{container.source} is not used: {error}")
    for notice in found.notices:
        builder.say(notice)
    return None, named


def _text(files: Files, container: Container) -> str | None:
    """Return the text of the Dockerfile; None if the image is not built."""
    if container.dockerfile is None:
        return None
    text = files.text(container.dockerfile)
    if text is None:
        raise EnvironmentBuildFailed(f"{container.dockerfile} is too large, or is no text")
    return text


def _named(builder: Builder, container: Container, text: str) -> Named:
    """Return what a Dockerfile names; without its image if that cannot run a sandbox."""
    try:
        named = read_named(text, container.target, container.args)
    except ValueError as error:
        builder.say(f"nothing is read from {container.dockerfile}: {error}")
        return NOTHING
    if named.image is not None:
        try:
            _pull_usable(builder, named.image)
        except ImageMissing as error:
            builder.say(f"the image {named.image} of {container.dockerfile} is not used: {error}")
            return replace(named, image=None)
    return named


@engine_failures("it")
def _built(builder: Builder, container: Container, workspace: Workspace) -> str:
    """Return the name of the image; pull or build the image if it is not here. Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: The build failed.
        ImageMissing: No registry has the image, or the image has no python3.
    """
    if container.image is not None:
        _pull_usable(builder, container.image)
        return container.image
    tag = f"{REPOSITORY}:{_key(container, workspace)}"
    # remembers an image without python3, so that it is not built again at every start
    unfit = builder.log(tag).with_suffix(".unfit")
    with builder.lock(tag):
        if unfit.exists():
            raise ImageMissing(NO_PYTHON)
        if local_image(builder.api, tag) is None:
            builder.say(f"building the image of {container.source} once (this may take minutes)")

            def check(image: str) -> None:
                try:
                    _check_python(builder.api, image)
                except ImageMissing:
                    unfit.touch()
                    raise

            build_dockerfile(builder, container, workspace, tag, check)
    touch(builder.state, tag, builder.api)
    return tag


def _key(container: Container, workspace: Workspace) -> str:
    entries = workspace.entries(workspace.base)
    deciding = sorted(
        (path, entry.sha)
        for path, entry in entries.items()
        if path in {container.dockerfile, f"{container.dockerfile}.dockerignore", ".dockerignore"}
        or any(word in posixpath.basename(path) for word in DECIDING)
    )
    made_from = [RECIPE, container.dockerfile, container.context, container.target, container.args, deciding]
    return digest(made_from)


@engine_failures("it")
def _pull_usable(builder: Builder, image: str) -> None:
    """Pull an image that a repository names if it is not here. Blocking.

    Raises:
        ImageMissing: It cannot be pulled, or it has no python3.
    """
    find_named(builder, image)
    _check_python(builder.api, image)


def _check_python(api: Any, image: str) -> None:
    """Raise ImageMissing if the image's python3 does not run."""
    from docker.errors import APIError

    plain = Image(image, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    command, silent = ("python3", "-I", "-S", "-c", ""), {"Type": "none", "Config": {}}
    with container_of(api, plain, command, log_config=silent) as container:
        works = False
        with contextlib.suppress(APIError):  # it does not start
            api.start(container)
            works = api.wait(container, timeout=60)["StatusCode"] == 0
    if not works:
        raise ImageMissing(NO_PYTHON)
