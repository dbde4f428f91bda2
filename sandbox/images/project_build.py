"""Build the project itself over its environment: an image that keeps the files that only the build makes.

The project's build code runs like that of any source distribution: in a build container, never on this machine.
Its results are laid into every sandbox that starts from the image, and are never part of a patch (see `BESIDE`).

The image also keeps the downloaded build requirements. With them, another tree of the repository can be built without a
network: a model wrote parts of that tree.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from m3agent.sandbox.backends.docker_machine import LABEL, USER
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.backends.sandbox import BESIDE
from m3agent.sandbox.images import env_script, project_script
from m3agent.sandbox.images.env_build import WORK
from m3agent.sandbox.images.image_build import Build, add_entry, build_image, files_as_tar
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.portable_source import portable_files
from m3agent.sandbox.store.workspace import Workspace

OWNER = 1000
CACHE = "/opt/m3agent-cache"
"""Folder with the downloaded build requirements in the image."""
MADE_FROM = f"{LABEL}.project"
"""Label of the image: the job, and a hash of the files that decided its result."""
MOST_IN_MEMORY = 64 << 20  # bytes of the tree's archive that are kept in memory; a larger archive is a file


@dataclass(frozen=True)
class ProjectJob:
    """What to build.

    Attributes:
        inputs: Hash of the files that decide the result.
        version_files: Paths of the generated version files to keep.
        extensions: Whether compiled extension modules are kept.
        version: The version that the build backend is told.
        tag: The repository's last tag; None without one.
        rust: The oldest version of Rust that it accepts, if it needs Rust; empty for any version.
        exclude_newer: Packages that were uploaded later do not count.
        indexes: Where packages come from.
    """

    inputs: str
    version_files: tuple[str, ...]
    extensions: bool
    version: str
    tag: str | None = None
    rust: str | None = None
    exclude_newer: str | None = None
    indexes: Indexes = field(default_factory=Indexes)

    def as_label(self) -> str:
        """Return what another tree of the repository needs to be built in the same way."""
        return json.dumps({key: value for key, value in asdict(self).items() if key != "indexes"})

    @classmethod
    def from_label(cls, text: str) -> ProjectJob:
        """Return the job that a label describes; its indexes are empty."""
        parts = json.loads(text)
        return cls(**{**parts, "version_files": tuple(parts["version_files"])})


def build_project(
    api: Any,
    job: ProjectJob,
    workspace: Workspace,
    base: Image,
    tag: str,
    *,
    log: Path,
    say: Callable[[str], None],
    stop: threading.Event,
    again: bool = False,
) -> None:
    """Build the image and tag it. Blocking; takes minutes. Other arguments and errors are those of `build_image`.

    Args:
        again: `base` is the image of such a build of another tree. The build then has no network. If it fails, the image
            has none of the files, so that those of the other tree are not taken for this tree's.
    """
    build = Build(
        what="the project itself",
        base=base,
        command=("python3", "-I", "-S", f"{WORK}/project_script.py"),
        user=USER,
        folder="/",
        image_env=base.env,
        image_command="python3",
        indexes=None if again else job.indexes,
        labels={MADE_FROM: job.as_label()},
    )
    with closing(_tree(workspace)) as tree:
        archives: Iterable[bytes | IO[bytes]] = [_files(job, again), tree]
        build_image(api, build, tag, archives, log=log, say=say, stop=stop)


def _files(job: ProjectJob, again: bool) -> bytes:
    """Return the program and its settings as a tar for the container's root."""
    files = {
        **portable_files(env_script, project_script),
        "job.json": json.dumps(
            {
                "version_files": job.version_files,
                "extensions": job.extensions,
                "version": job.version,
                "tag": job.tag,
                "rust": job.rust,
                "exclude_newer": job.exclude_newer,
                "python": "python3",
                "archive": BESIDE,
                "cache": CACHE,
                "again": again,
                "env": job.indexes.environment(f"{WORK}/certificates.pem"),
            }
        ).encode(),
        **installers(),
    }
    if job.indexes.certificates is not None:
        files["certificates.pem"] = job.indexes.certificates.read_bytes()
    inside = {f"{WORK}/{name}": content for name, content in files.items()}
    return files_as_tar({**inside, BESIDE: b""}, folders=(WORK, f"{WORK}/tree", CACHE), owner=OWNER)


def _tree(workspace: Workspace) -> IO[bytes]:
    """Return the files of the base tree as a tar for the container's root."""
    buffer = cast("IO[bytes]", tempfile.SpooledTemporaryFile(MOST_IN_MEMORY))  # noqa: SIM115 - the caller closes it
    entries = list(workspace.entries(workspace.base).values())
    blobs = workspace.store.each_blob([entry.sha for entry in entries])
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in sorted({parent for entry in entries for parent in _parents(entry.path)}):
            info = tarfile.TarInfo(f"{WORK}/tree/{folder}".strip("/"))
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, OWNER, OWNER
            archive.addfile(info)
        for entry, blob in zip(entries, blobs, strict=True):
            add_entry(archive, f"{WORK}/tree/{entry.path}".strip("/"), entry.mode, blob, OWNER)
    buffer.seek(0)
    return buffer


def _parents(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents if str(parent) != "."]
