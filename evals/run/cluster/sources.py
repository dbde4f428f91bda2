"""Send code that exists only on this machine to another one.

The code travels as a tar of one commit, which any node can check out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.agent.util.atomic_write import write_whole
from m3agent.evals.code.archive import TAKEN
from m3agent.evals.code.codebase import codebase
from m3agent.evals.code.leak_proof import BRANCH
from m3agent.evals.data.instance import Source, Task
from m3agent.sandbox.images.image_build import files_as_tar

ROOT = "code.git"
RECEIVED = Path("evals", "received")
"""Folder below the state folder for code from other machines; the files are named by their hash."""


@dataclass(frozen=True)
class Parcel:
    """A bare repository with one commit, as a tar."""

    tar: bytes

    @property
    def key(self) -> str:
        """Hash of the tar."""
        return hashlib.sha256(self.tar).hexdigest()


def is_local(task: Task) -> bool:
    """Return whether a task's code exists only on this machine."""
    return task.source.kind != "git" or urlsplit(task.source.location).scheme != "https"


def parcel(task: Task, state: Path) -> Parcel:
    """Return the code of a task. This function blocks; it raises the errors of `codebase`."""
    git = codebase(task, state).path / ".git"
    paths = sorted(path for name in TAKEN for path in [git / name, *(git / name).rglob("*")])
    files = {str(path.relative_to(git)): path.read_bytes() for path in paths if path.is_file()}
    # git recognises a bare repository by these folders, even if they are empty
    return Parcel(files_as_tar(files, ROOT, folders=[f"{ROOT}/{name}" for name in TAKEN[:2]]))


def arrived(task: Task, sent: Parcel, state: Path) -> Task:
    """Store the received code and return the task with that code as its source.

    Raises:
        OSError: The code cannot be written.
    """
    folder = state / RECEIVED
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{sent.key}.tar"
    if not file.exists():
        write_whole(file, sent.tar)
    source = Source(kind="archive", location=str(file), ref=BRANCH)
    return task.model_copy(update={"source": source})
