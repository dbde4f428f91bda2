"""Makes the image that a repository's devcontainer.json or Dockerfile asks for.

It is used only if it can run a sandbox (it has a python3).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import posixpath
import socket
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import USER, our_labels
from m3agent.sandbox.backends.image import local_image, pull
from m3agent.sandbox.declared.container import Container
from m3agent.sandbox.declared.dockerfile import read_instructions, read_stages
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing
from m3agent.sandbox.images.dockerfile_build import DockerfileBuild
from m3agent.sandbox.images.image_build import add_entry, engine_failures, remove_container
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.network.allow_list import may_reach, split_authority
from m3agent.sandbox.store.workspace import Workspace

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
MOST_CONTEXT = 1 << 30  # most bytes of files that the builder gets


@engine_failures("it")
def build_container(
    api: Any,
    container: Container,
    workspace: Workspace,
    repository: str,
    indexes: Indexes,
    *,
    log_folder: Path,
    say: Callable[[str], None],
    stop: threading.Event,
    lock: Callable[[str], contextlib.AbstractContextManager[None]],
) -> str:
    """Return the name of the image; pull or build the image if it is not here. Blocking; takes minutes.

    Raises:
        EnvironmentBuildFailed: The build failed.
        ImageMissing: No registry has the image, or the image has no python3.
    """
    if container.image is not None:
        return usable(api, container.image, say)
    tag = f"{repository}:{_key(container, workspace)}"
    unfit = (
        log_folder / f"{tag.partition(':')[2]}.unfit"
    )  # remembers an image without python3, so that it is not built again at every start
    with lock(tag):
        if unfit.exists():
            raise ImageMissing(NO_PYTHON)
        if local_image(api, tag) is None:
            say(f"building the image of {container.source} once (this may take minutes)")

            def check(image: str) -> None:
                try:
                    _check_python(api, image)
                except ImageMissing:
                    unfit.touch()
                    raise

            _build(api, container, workspace, tag, indexes, log_folder, say, stop, check)
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
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]


def build_context(workspace: Workspace, container: Container) -> bytes:
    """Return the builder's files as a tar: those below the context, except those that .dockerignore excludes."""
    from docker.utils.build import PatternMatcher

    assert container.dockerfile is not None
    entries = workspace.entries(workspace.base)
    prefix = "" if container.context == "." else f"{container.context}/"
    ignore_file = next(
        (p for p in (f"{container.dockerfile}.dockerignore", f"{prefix}.dockerignore") if p in entries), None
    )
    text = workspace.store.get_blob(entries[ignore_file].sha).decode(errors="replace") if ignore_file else ""
    lines = (line.strip() for line in text.splitlines())
    matcher: Any = PatternMatcher([line for line in lines if line and not line.startswith("#")])
    chosen = [
        entry
        for path, entry in entries.items()
        if path.startswith(prefix) and not matcher.matches(path[len(prefix) :])
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for start in range(0, len(chosen), 500):
            batch = chosen[start : start + 500]
            blobs = workspace.store.get_blobs([entry.sha for entry in batch])
            for entry, blob in zip(batch, blobs, strict=True):
                add_entry(archive, entry.path[len(prefix) :], entry.mode, blob)
            if buffer.tell() > MOST_CONTEXT:
                raise EnvironmentBuildFailed(f"its context is larger than {MOST_CONTEXT >> 30} GiB")
    return buffer.getvalue()


def _build(
    api: Any,
    container: Container,
    workspace: Workspace,
    tag: str,
    indexes: Indexes,
    log_folder: Path,
    say: Callable[[str], None],
    stop: threading.Event,
    check: Callable[[str], None],
) -> None:
    assert container.dockerfile is not None
    entry = workspace.entries(workspace.base)[container.dockerfile]
    text = workspace.store.get_blob(entry.sha).decode(errors="replace")
    try:
        stages = read_stages(read_instructions(text), container.target, container.args)
    except ValueError as error:
        raise EnvironmentBuildFailed(f"it cannot be built: {error}") from None
    DockerfileBuild(
        api,
        container.args,
        lambda: build_context(workspace, container),
        lambda name: find_named(api, name, say),
        indexes,
        log=log_folder / f"{tag.partition(':')[2]}.log",
        say=say,
        stop=stop,
    ).run(stages, tag, check)


@engine_failures("it")
def usable(api: Any, image: str, say: Callable[[str], None]) -> str:
    """Return the name of an image that a repository names; pull it if it is not here. Blocking.

    Raises:
        ImageMissing: It cannot be pulled, or it has no python3.
    """
    find_named(api, image, say)
    _check_python(api, image)
    return image


def find_named(api: Any, name: str, say: Callable[[str], None]) -> str:
    """Return the id of an image that a repository names; pull it if it is not here.

    The engine pulls from the host's own network. So it is not asked to if the registry is this machine or in a private
    network.

    Raises:
        ImageMissing: No registry has it, or its registry is not a public host.
    """
    image = local_image(api, name)
    if image is None:
        registry, slash, _ = name.partition("/")
        if slash and (registry == "localhost" or set(".:") & set(registry)):
            _check_registry(registry)
        if not pull(name, say) or (image := local_image(api, name)) is None:
            raise ImageMissing(f"no registry has {name}")
    return image.ident


def _check_registry(registry: str) -> None:
    try:
        host, port = split_authority(registry)
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)}
    except (OSError, ValueError):
        raise ImageMissing(f"the registry {registry} cannot be found") from None
    for address in found:
        if not may_reach(address):
            raise ImageMissing(
                f"the registry {registry} is at {address}, which is not a public address: pull the image yourself"
            )


def _check_python(api: Any, image: str) -> None:
    """Raise ImageMissing if the image's python3 does not run."""
    from docker.errors import APIError

    created = api.create_container(
        image,
        command=["python3", "-I", "-S", "-c", ""],
        entrypoint=[],
        user=USER,
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        network_disabled=True,
        labels=our_labels(),
        host_config=api.create_host_config(
            network_mode="none", cap_drop=["ALL"], log_config={"Type": "none", "Config": {}}
        ),
    )["Id"]
    try:
        api.start(created)
        works = api.wait(created, timeout=60)["StatusCode"] == 0
    except APIError:
        works = False
    finally:
        remove_container(api, created)
    if not works:
        raise ImageMissing(NO_PYTHON)
