"""A repository's files as the state a sandbox starts from, and folders for sessions that leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from m3agent.agent.repository import Repository
from m3agent.sandbox.git import TreeStore
from m3agent.sandbox.workspace import Workspace

TREES = "trees.git"
"""In a session's folder: the states of its work tree."""
SCRATCH = "scratch"
"""In the state folder: a folder for each command that needs one."""


def workspace_of(repository: Repository, folder: Path) -> Workspace:
    """The tree to start from: the work tree's files as they are now, or HEAD's where there is none."""
    store = TreeStore(folder / TREES, objects_of(repository))
    if repository.root is not None:
        return Workspace.from_folder(store, repository.root, repository.list_files())
    wanted = set(repository.list_files())
    return Workspace(store, store.write_tree(e for e in store.list_tree(repository.head) if e.path in wanted))


def objects_of(repository: Repository) -> Path:
    """The folder with the repository's objects."""
    return (repository.common_dir / "objects").resolve()


@contextlib.contextmanager
def scratch_folder(where: Path, name: str = SCRATCH) -> Iterator[Path]:
    """A folder for one command, below `where`/`name`, removed at its end; what a killed one left is removed by the next.

    Whether its owner lives is told by a lock, which the kernel lets go of with the process, whatever ended it. Raises
    OSError where it cannot be made.
    """
    base = where / name
    base.mkdir(mode=0o700, exist_ok=True)
    sweep_scratch(where, name)
    with _locked(base):  # or another's sweep could come between the making and the locking
        folder = Path(tempfile.mkdtemp(dir=base))
        lock = _lock(folder, fcntl.LOCK_SH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep_scratch(where: Path, name: str = SCRATCH) -> int:
    """Remove the folders whose owner is gone; returns how many."""
    base = where / name
    if not base.is_dir():
        return 0
    removed = 0
    with _locked(base):
        for folder in base.iterdir():
            lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                removed += 1
    return removed


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _lock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, how: int) -> int | None:
    """Take the folder's lock; None if another process holds it or the folder is gone."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(held, how)
    except OSError:
        os.close(held)
        return None
    return held
