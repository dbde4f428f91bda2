"""Build one layer of an image: run a script as root in a container of the layer below, and commit the container.

The container has the capabilities that installing needs; its other limits are those of every build (`sandbox/images/image_build.py`).
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.backends.sandbox import ROOT
from m3agent.sandbox.images.image_build import INSTALLING, Build, build_files, build_image, files_as_tar
from m3agent.sandbox.images.indexes import indexes_here
from m3agent.sandbox.images.installers import installers

WORK = "/opt/m3agent-layer"
"""Folder of a layer's script and files while the script runs. It is not part of the image."""


@dataclass(frozen=True)
class Layer:
    """The inputs of a layer. A hash of them and of the layer below is the key of the layer's image."""

    name: str
    """Name of the layer in messages."""
    script: str
    """A bash script, run in `WORK`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files in `WORK`, by name."""
    commit: str = ""
    """Id of the work tree's commit; empty without a work tree."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the image sets from this layer on."""


def build_layer(
    api: Any,
    layer: Layer,
    below: Image,
    tag: str,
    *,
    work_tree: Path | None,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Build the layer's image and tag it. Blocking; takes minutes.

    Args:
        work_tree: A checkout to copy to the place of a sandbox's work tree.

    Raises:
        EnvironmentBuildFailed: A command failed, or the build exceeded its time or its disk space. The log has the output.
    """
    with _inputs(layer, below, work_tree) as (build, archives):
        build_image(api, build, tag, archives, log=log, say=say, stop=stop)


def files_of(
    api: Any,
    layer: Layer,
    below: Image,
    folder: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
) -> dict[str, bytes]:
    """Run the layer's script, and return the files that it leaves in a folder, by name. Blocking.

    Raises:
        EnvironmentBuildFailed: As for `build_layer`, or the files are too large.
    """
    with _inputs(layer, below, None) as (build, archives):
        return build_files(api, build, archives, folder, log=log, say=say, stop=stop)


@contextlib.contextmanager
def _inputs(
    layer: Layer, below: Image, work_tree: Path | None
) -> Iterator[tuple[Build, list[bytes | IO[bytes]]]]:
    """Yield the layer's build, and the archives of its files and of the work tree."""
    indexes = indexes_here()
    files = {**installers(), **layer.files, "layer.sh": layer.script.encode()}
    if indexes.certificates is not None:
        files["certificates.pem"] = indexes.certificates.read_bytes()
    build = Build(
        what=f"the {layer.name}",
        base=below,
        command=("/bin/bash", f"{WORK}/layer.sh"),
        user="0:0",
        folder=WORK,
        env=indexes.environment(f"{WORK}/certificates.pem"),
        capabilities=INSTALLING,
        indexes=indexes,
        image_env={**below.env, **layer.env},
        image_command="/bin/bash",
    )
    archives: list[bytes | IO[bytes]] = [files_as_tar(files, WORK, folders=[WORK])]
    with contextlib.ExitStack() as stack:
        if work_tree is not None:
            archives.append(stack.enter_context(_packed(work_tree)))
        yield build, archives


@contextlib.contextmanager
def _packed(work_tree: Path) -> Iterator[IO[bytes]]:
    """Return a folder as a tar, in which its path is `ROOT`."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(work_tree, arcname=ROOT.lstrip("/"))
        file.seek(0)
        yield file
