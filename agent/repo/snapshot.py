"""Build a sandbox's start state from a repository's files, and manage scratch folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from m3agent.agent.repo.repository import Repository
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace

TREES = "trees.git"
"""A folder in a session's folder. It holds the states of the session's work tree."""
SCRATCH = "scratch"
"""A folder in the state folder. It holds one folder for each command that needs one."""


def workspace_of(repository: Repository, folder: Path) -> Workspace:
    """Return the tree to start from.

    It has the current files of the work tree, or those of HEAD for a bare repository.
    """
    store = TreeStore(folder / TREES, objects_of(repository))
    if repository.root is not None:
        return Workspace.from_folder(store, repository.root, repository.list_files())
    wanted = set(repository.list_files())
    return Workspace(store, store.write_tree(e for e in store.list_tree(repository.head) if e.path in wanted))


def objects_of(repository: Repository) -> Path:
    """Return the folder with the repository's objects."""
    return (repository.common_dir / "objects").resolve()


@contextlib.contextmanager
def scratch_folder(where: Path, name: str = SCRATCH) -> Iterator[Path]:
    """Make a folder below `where`/`name` for one command, and remove it at the end.

    If the command is killed, the next command removes the folder. Each owner holds a lock on its folder,
    which the kernel releases when the process ends for any reason.

    Raises:
        OSError: The folder cannot be made.
    """
    base = where / name
    base.mkdir(mode=0o700, exist_ok=True)
    sweep_scratch(where, name)
    with _locked(base):  # otherwise another process could sweep the folder before it is locked
        folder = Path(tempfile.mkdtemp(dir=base))
        lock = _lock(folder, fcntl.LOCK_SH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep_scratch(where: Path, name: str = SCRATCH) -> int:
    """Remove the folders whose owner has ended, and return their number."""
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
    """Lock the folder and return the file descriptor.

    Return None if another process holds the lock or the folder is gone.
    """
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
