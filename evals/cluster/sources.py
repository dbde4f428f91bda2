"""Code that is only on this machine, on its way to another one: a tar of one commit, which any node can check out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.agent.whole_file import write_whole
from m3agent.evals.archive import TAKEN
from m3agent.evals.codebase import codebase
from m3agent.evals.data.instance import Source, Task
from m3agent.evals.leak_proof import BRANCH
from m3agent.sandbox.env_build import files_as_tar

ROOT = "code.git"
RECEIVED = Path("evals", "received")
"""In the state folder: code that came from another machine, by its hash."""


@dataclass(frozen=True)
class Parcel:
    """One commit as a tar of a bare repository."""

    tar: bytes

    @property
    def key(self) -> str:
        """A hash of its content."""
        return hashlib.sha256(self.tar).hexdigest()


def is_local(task: Task) -> bool:
    """Whether a task's code is nowhere but on this machine."""
    return task.source.kind != "git" or urlsplit(task.source.location).scheme != "https"


def parcel(task: Task, state: Path) -> Parcel:
    """The code of a task. Blocking. Raises as `codebase`."""
    git = codebase(task, state).path / ".git"
    paths = sorted(path for name in TAKEN for path in [git / name, *(git / name).rglob("*")])
    files = {str(path.relative_to(git)): path.read_bytes() for path in paths if path.is_file()}
    # folders that a bare repository is known by, with or without files
    return Parcel(files_as_tar(files, ROOT, folders=[f"{ROOT}/{name}" for name in TAKEN[:2]]))


def arrived(task: Task, sent: Parcel, state: Path) -> Task:
    """The task with its code where it is now. Raises OSError where it cannot be written."""
    folder = state / RECEIVED
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{sent.key}.tar"
    if not file.exists():
        write_whole(file, sent.tar)
    source = Source(kind="archive", location=str(file), ref=BRANCH)
    return task.model_copy(update={"source": source})
