"""Find or build the image that contains a task's code, and take the code from it."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from m3agent.evals.code.archive import extract_files
from m3agent.evals.data.files import commit_folder, files_in
from m3agent.evals.data.instance import DataError, DockerContext, Environment
from m3agent.sandbox.backends.container_files import archive_of
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import REPOSITORY, Image, local_image, pull
from m3agent.sandbox.declared.container import Container
from m3agent.sandbox.errors import EngineFailed, EnvironmentBuildFailed, ImageMissing, SandboxDied
from m3agent.sandbox.images.dockerfile_build import build_dockerfile
from m3agent.sandbox.images.image_build import engine_failures, remove_container
from m3agent.sandbox.images.layers import Builder
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace

RECIPE = 1  # part of every hash: raise it if the same Dockerfile should give another image
DOCKERFILE = "Dockerfile"
MOST_BYTES = 4 << 30
"""Limit for the code in an image, in bytes."""


@contextlib.contextmanager
def not_of_the_task() -> Iterator[None]:
    """Raise `SandboxDied` where the engine fails during a build, so that the task does not count as one that cannot be built."""
    try:
        yield
    except EngineFailed as error:
        raise SandboxDied(str(error)) from None


@not_of_the_task()
def code_image(
    environment: Environment, kept: Path, say: Callable[[str], None], stop: threading.Event
) -> Image:
    """Return the image of an environment as its author made it; pull or build it if it is not here. Blocking.

    Raises:
        ImageMissing: No registry has it, and there is no Dockerfile; or the Dockerfile's own base is missing.
        EnvironmentBuildFailed: The build fails.
        EngineUnavailable, SandboxDied: No container engine answers, or it fails.
    """
    with contextlib.closing(connect()) as api:
        name, context = environment.image, environment.dockerfile
        if name is not None:
            image = local_image(api, name)
            if image is None and pull(name, say):
                image = local_image(api, name)
            if image is not None:
                return image
            if context is None:
                raise ImageMissing(f"no registry has {name}")
        assert context is not None
        return _built(api, context, kept, say, stop)


@engine_failures("the task's image")
def _built(
    api: Any, context: DockerContext, kept: Path, say: Callable[[str], None], stop: threading.Event
) -> Image:
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = hashlib.sha256(f"{RECIPE} {context.content}".encode()).hexdigest()[:16]
    tag = f"{REPOSITORY}:{key}"
    builder = Builder(api, kept, say, stop)
    with builder.lock(tag), tempfile.TemporaryDirectory(prefix="m3agent-context-") as scratch:
        if local_image(api, tag) is None:
            say("building the image of a Dockerfile once (this may take minutes)")
            files = Path(context.folder)
            store = TreeStore(Path(scratch) / "context.git")
            workspace = Workspace.from_folder(store, files, files_in(files))
            build_dockerfile(builder, Container(DOCKERFILE, dockerfile=DOCKERFILE), workspace, tag)
        built = local_image(api, tag)
    if built is None:
        raise EnvironmentBuildFailed(f"{tag} was removed as soon as it was built")
    return built


def commit_of_image(image: Image, path: str, store: TreeStore) -> str:
    """Store the files of a folder of an image as one commit; return its id. Nothing of the image is run. Blocking.

    Raises:
        DataError: The folder is missing, has other than files and links, or is too large.
        EnvironmentBuildFailed: The engine fails.
        SandboxError: git or the disk fails.
    """
    with tempfile.TemporaryDirectory(prefix="m3agent-code-") as temporary:
        target = Path(temporary) / "code"
        target.mkdir()
        _copy_out(image, path, target)
        return commit_folder(store, target, links=True)


@engine_failures("a copy of the task's code")
def _copy_out(image: Image, path: str, target: Path) -> None:
    from docker.errors import NotFound

    with contextlib.closing(connect()) as api:
        container: str = api.create_container(image.name, command=["true"], entrypoint=[])["Id"]
        try:
            # with the dot, a link is followed
            with archive_of(api, container, f"{path}/.", MOST_BYTES) as archive:
                extract_files(archive, target, MOST_BYTES, links=True)
        except NotFound:
            raise DataError(f"{image.name} has no folder {path}") from None
        except (tarfile.TarError, ValueError) as error:
            raise DataError(f"the code in {path} of {image.name} cannot be used: {error}") from None
        finally:
            remove_container(api, container)
