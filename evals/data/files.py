"""Find the files that data names, refuse those outside the data's own folder, and store a folder as a commit."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from m3agent.evals.data.instance import INSTANCE_ID, DataError
from m3agent.sandbox.store.git import TreeStore, run_git
from m3agent.sandbox.store.workspace import inside_git
from m3agent.util.sanitize import printable_line

BASE = "refs/heads/base"
"""The ref that points to a stored folder's latest commit."""

# These values are part of the commit: changing one changes the ids of all commits made here.
_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "base"), ("EMAIL", "base@invalid"), ("DATE", "2000-01-01T00:00:00+00:00"))
}


def unreadable(path: Path | str, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be read."""
    return DataError(f"{path} cannot be read ({error.strerror})")


def id_of(path: Path) -> str:
    """Return the name of a file or folder as the id of an instance.

    Raises:
        DataError: It cannot be an id.
    """
    if not INSTANCE_ID.fullmatch(path.name):
        raise DataError(
            f"{path}: its name is not an id; an id has at most 200 letters, digits, dots, dashes and underscores"
        )
    return path.name


def within(folder: Path, name: str, what: str) -> Path:
    """Return the path of the file `name` in a folder, with links resolved.

    Raises:
        DataError: The location leads out of the folder (an absolute path, `..`, a link), or is not an
            existing file.
    """
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise DataError(f"{what} {printable_line(name, 60)!r} cannot be followed") from None
    if not path.is_relative_to(root):
        raise DataError(f"{what} names {Path(name)}, which is outside the data's folder: refused")
    try:
        there = path.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise DataError(f"{what} {path} does not exist")
    return path


def commit_folder(store: TreeStore, folder: Path, *, links: bool = False) -> str:
    """Store a folder's files as one commit without a parent; return its id, which no time and no machine changes.

    Left out are the files that test runs leave behind, files that the folder's `.gitignore` names, and
    `.git`.

    Raises:
        DataError: The folder cannot be read, or contains something other than such files.
        SandboxError: git or the disk fails.
    """
    paths = files_in(folder, links=links)
    ignored = store.ignored(paths, folder)
    tree = store.tree_of_folder(folder, [path for path in paths if path not in ignored])
    env = {**_WHO, "GIT_DIR": str(store.git_dir)}
    commit = run_git("commit-tree", tree, "-m", "base", env=env).stdout.decode().strip()
    store.git("update-ref", BASE, commit)
    return commit


def files_in(folder: Path, *, links: bool = False) -> list[str]:
    """Return the paths of a folder's regular files, relative to it; `.git` is left out.

    Raises:
        DataError: It cannot be read, or has other files (with `links`: other than symbolic links).
    """
    paths: list[str] = []

    def fail(error: OSError) -> None:
        raise unreadable(error.filename, error) from None

    for where, folders, names in os.walk(folder, onerror=fail):
        here = Path(where)
        folders[:] = sorted(name for name in folders if not inside_git(name))
        for name in sorted([*names, *(name for name in folders if (here / name).is_symlink())]):
            path = here / name
            if inside_git(name):
                continue
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not (links and stat.S_ISLNK(mode)):
                raise DataError(f"{path} is not a regular file: links and other special files are refused")
            paths.append(str(path.relative_to(folder)))
    return paths


def read_statement(path: Path) -> str:
    """Return the text of an issue.

    Raises:
        DataError: The file cannot be read as UTF-8, or is empty.
    """
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty: it should say what goes wrong")
    return text


def read_text(path: Path) -> str:
    """Return the text of a file, with the ends of lines as they are: they are part of a patch.

    Raises:
        DataError: The file cannot be read as UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise unreadable(path, error) from None


def hash_of_folder(folder: Path) -> str:
    """Return a hash of a folder's files with their paths and modes.

    Raises:
        DataError: The folder has other than regular files, or one of them cannot be read.
    """
    whole = hashlib.sha256()
    for name in sorted(files_in(folder)):
        path = folder / name
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(
                f"{name}\0{path.stat().st_mode & 0o100}\0{digest}\n".encode(errors="surrogateescape")
            )
        except OSError as error:
            raise unreadable(path, error) from None
    return whole.hexdigest()
