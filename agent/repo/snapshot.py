"""Build a sandbox's start state from a repository's files, and manage scratch folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from m3agent.agent.repo.git_spawn import blocked_in
from m3agent.agent.repo.host_git import read_regular
from m3agent.agent.repo.repository import Repository
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import LARGEST_FILE, TOO_LARGE, Workspace
from m3agent.util.counted import first_of
from m3agent.util.errors import EnvironmentFault

TREES = "trees.git"
"""A folder in a session's folder. It holds the states of the session's work tree."""
MOST_BYTES = 16 << 30
"""The most bytes of a work tree. A sandbox has less room, unless its memory is larger than 32 GiB."""
ROOM_FOR_SUBMODULES, LEAST_ROOM = 256 << 20, 8 << 10
"""Most bytes of the submodules' files together, and the bytes that the smallest file counts as. A sandbox of 4 GiB has room for about 700
MiB of files."""
SCRATCH = "scratch"
"""A folder in the state folder. It holds one folder for each command that needs one."""

_MOST_BOUNDARY = 16 << 20  # bytes; 400,000 commits


def workspace_of(repository: Repository, folder: Path, say: Callable[[str], None]) -> Workspace:
    """Return the tree to start from.

    It has the current files of the work tree and of the submodules that are checked out, or those of HEAD for a bare
    repository. Files that are too large are left out.

    Args:
        say: Names each file that is left out.

    Raises:
        EnvironmentFault: The work tree is too large, or has a file that git cannot read.
    """
    store = TreeStore(folder / TREES, objects_of(repository))
    store.note_submodules(repository.submodules())
    if repository.root is not None:
        paths = repository.list_files()
        paths += (path for _, inner in submodules_with_room(repository).values() for path in inner)
        paths = _readable(repository.root, paths, say)
        return Workspace.from_folder(store, repository.root, paths)
    wanted = set(repository.list_files())
    return Workspace(store, store.write_tree(e for e in store.list_tree(repository.head) if e.path in wanted))


def submodules_with_room(repository: Repository) -> dict[str, tuple[list[Repository], list[str]]]:
    """Return the submodules whose files sandboxes get, by path: those that are checked out, the smallest first.

    Returns:
        For each, its repository and those of the submodules in it, and the paths of all their files in the work tree around it.
    """
    root, parts = repository.root, dict[str, tuple[list[Repository], list[str]]]()
    if root is None:
        return parts
    for place, inner in repository.checkouts():
        top = next((each for each in parts if place.startswith(f"{each}/")), place)
        repositories, paths = parts.setdefault(top, ([], []))
        repositories.append(inner)
        paths += (f"{place}/{path}" for path in inner.list_files())
    room = {
        place: sum(max(size, LEAST_ROOM) for size in sizes_of(root, paths).values())
        for place, (_, paths) in parts.items()
    }
    smallest_first = sorted(parts, key=lambda place: (room[place], place))
    sums = itertools.accumulate(room[place] for place in smallest_first)
    return {
        place: parts[place]
        for place, total in zip(smallest_first, sums, strict=True)
        if total <= ROOM_FOR_SUBMODULES
    }


def _readable(root: Path, paths: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Return the paths without those of files that are too large; refuse a work tree that git could not read in time."""
    inner = {PurePosixPath(path.rpartition("/")[0]) for path in paths}
    folders = {root, *(root / folder for each in inner for folder in (each, *each.parents))}
    if (fault := blocked_in((str(folder), ()) for folder in folders)) is not None:
        raise fault
    sizes = sizes_of(root, paths)
    if large := too_large(sizes):
        say(f"not copied into sandboxes, because {TOO_LARGE}: {first_of(large, 5)}")
        for path in large:
            del sizes[path]
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        raise EnvironmentFault(
            f"The files of {root} are larger than {MOST_BYTES >> 30} GiB together, the largest is {largest}: leave them out "
            "with .gitignore."
        )
    return list(sizes)


def sizes_of(root: Path, paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of files in bytes; `paths` are relative to `root`."""
    return {path: (root / path).lstat().st_size for path in paths}


def too_large(sizes: Mapping[str, int]) -> list[str]:
    """Return the paths of the files that are too large for a sandbox."""
    return [path for path, size in sizes.items() if size > LARGEST_FILE]


def borrowing_store(repository: Repository, git_dir: Path) -> TreeStore:
    """Create a store at `git_dir` that reads the repository's objects and knows where its history is cut off.

    It has none of the repository's configuration, references, attributes, hooks or replaced objects.
    """
    store = TreeStore(git_dir, objects_of(repository), "sha256" if len(repository.head) == 64 else "sha1")
    if repository.shallow:
        boundary = read_regular(str(repository.common_dir / "shallow"), _MOST_BOUNDARY) or b""
        (git_dir / "shallow").write_bytes(boundary)
    return store


def objects_of(repository: Repository) -> Path:
    """Return the folder with the repository's objects."""
    return (repository.common_dir / "objects").resolve()


@contextlib.contextmanager
def scratch_folder(where: Path, name: str = SCRATCH) -> Iterator[Path]:
    """Make a folder below `where`/`name` for one command, and remove it at the end.

    If the command is killed, the next command removes the folder. Each owner holds a lock on its folder,
    which the kernel releases when the process ends for any reason.

    Raises:
        OSError: The folder cannot be made, or `where`/`name` is a symbolic link. In a repository, the link may
            lead to any folder of the user, whose content would be removed.
    """
    base = where / name
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link", str(base))
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
    if base.is_symlink() or not base.is_dir():
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
