"""Makes the image that a repository's devcontainer.json or Dockerfile asks for, by the engine's own builder.

The builder runs the file's steps as the engine runs any build: in containers with a network, without anything of this
machine but the repository's files. What is built is used only if it can run a sandbox (it has a python3).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import posixpath
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.docker_machine import LABEL, USER, our_labels
from m3agent.sandbox.backends.image import local_image, pull
from m3agent.sandbox.declared.container import Container
from m3agent.sandbox.errors import EnvironmentBuildFailed, ImageMissing
from m3agent.sandbox.images.image_build import (
    BUILD_SECONDS,
    MEMORY,
    add_entry,
    engine_failures,
    remove_container,
    wait_for,
)
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
NO_PYTHON = "its image has no python3, which every sandbox needs"
MOST_CONTEXT = 1 << 30  # most bytes of files that the builder gets


@engine_failures("it")
def build_container(
    api: Any,
    container: Container,
    workspace: Workspace,
    repository: str,
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
        if local_image(api, container.image) is None and not pull(container.image, say):
            raise ImageMissing(f"no registry has {container.image}")
        _check_python(api, container.image)
        return container.image
    tag = f"{repository}:{_key(container, workspace)}"
    unfit = (
        log_folder / f"{tag.partition(':')[2]}.unfit"
    )  # remembers an image without python3, so that it is not built again at every start
    if unfit.exists():
        raise ImageMissing(NO_PYTHON)
    with lock(tag):
        if local_image(api, tag) is None:
            say(f"building the image of {container.source} once (this may take minutes)")
            _Build(api, container, workspace, tag, log_folder, say, stop).run()
            try:
                _check_python(api, tag)
            except ImageMissing:
                api.remove_image(tag, noprune=False)
                unfit.touch()
                raise
    return tag


def _key(container: Container, workspace: Workspace) -> str:
    entries = workspace.entries(workspace.base)
    deciding = sorted(
        (path, entry.sha)
        for path, entry in entries.items()
        if path in {container.dockerfile, f"{container.dockerfile}.dockerignore", ".dockerignore"}
        or any(word in posixpath.basename(path) for word in DECIDING)
    )
    made_from = [container.dockerfile, container.context, container.target, container.args, deciding]
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
        # The Dockerfile may be outside the context, so the archive contains it under a fixed name of m3agent's.
        dockerfile = workspace.store.get_blob(entries[container.dockerfile].sha)
        add_entry(archive, DOCKERFILE, 0o100644, dockerfile)
    return buffer.getvalue()


DOCKERFILE = ".m3agent-dockerfile"


class _Build:
    """One run of the engine's builder."""

    def __init__(
        self,
        api: Any,
        container: Container,
        workspace: Workspace,
        tag: str,
        log_folder: Path,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.api = api
        self.container = container
        self.workspace = workspace
        self.tag = tag
        self.log = log_folder / f"{tag.partition(':')[2]}.log"
        self.say = say
        self.stop = stop
        self.last = "starting"
        self.error: str | None = None
        self.built = False

    def run(self) -> None:
        context = build_context(self.workspace, self.container)
        reader = threading.Thread(target=self._read, args=(context,), daemon=True, name="m3agent-build")
        reader.start()
        source = self.container.source
        if problem := wait_for(reader, source, lambda: self.last, self.say, self.stop):
            self.api.close()  # the engine ends a build if its client disconnects
            raise EnvironmentBuildFailed(f"its build was stopped: {problem}; the log is {self.log}")
        if not self.built:
            reason = self.error or f"the builder ended with '{self.last}'"
            raise EnvironmentBuildFailed(f"it cannot be built: {reason}; the log is {self.log}")

    def _read(self, context: bytes) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        options = self.container
        try:
            with self.log.open("wb") as file:
                for line in self.api.build(
                    fileobj=io.BytesIO(context),
                    custom_context=True,
                    dockerfile=DOCKERFILE,
                    tag=self.tag,
                    buildargs=options.args or None,
                    target=options.target,
                    labels={LABEL: "1", f"{LABEL}.environment": self.tag.partition(":")[2]},
                    container_limits={"memory": MEMORY, "memswap": MEMORY},
                    rm=True,
                    forcerm=True,
                    decode=True,
                    timeout=int(BUILD_SECONDS),
                ):
                    text = str(line.get("stream") or line.get("error") or line.get("status") or "")
                    file.write(text.encode(errors="replace"))
                    file.flush()
                    self.last = text.strip()[:100] or self.last
                    self.error = str(line["error"]).strip()[:300] if "error" in line else self.error
        except (DockerException, RequestException, OSError, ValueError) as error:
            self.error = self.error or str(error)[:300]
            return
        self.built = self.error is None


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
