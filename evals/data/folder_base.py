"""Turn a folder of files into a commit with a reproducible id.

The id does not depend on the time or the machine.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from m3agent.evals.data.instance import DataError
from m3agent.sandbox.store.git import TreeStore, run_git
from m3agent.sandbox.store.workspace import inside_git

BASE = "refs/heads/base"
"""The ref that points to the folder's latest commit."""

# These values are part of the commit: changing one changes the ids of all commits made here.
_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "base"),
        ("EMAIL", "base@invalid"),
        ("DATE", "2000-01-01T00:00:00+00:00"),
    )
}


def commit_folder(store: TreeStore, folder: Path, *, links: bool = False) -> str:
    """Store a folder's files as one commit without a parent.

    Left out are the files that test runs leave behind, files that the folder's `.gitignore` names, and
    `.git`.

    Args:
        store: Where to.
        links: Whether it may have symbolic links.

    Returns:
        The commit's id.

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
    found: list[str] = []

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from None

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
            found.append(str(path.relative_to(folder)))
    return found
