"""Compute the changes that an external agent left in its checkout.

The checkout's own `.git` is not used: the agent may have committed, rewritten history or put a program into
the configuration. Instead, the files are read into a separate store, before and after the agent's work.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from m3agent.sandbox.store.git import SKIP_FOLDERS, TreeStore
from m3agent.sandbox.store.workspace import Workspace, inside_git


class LeftDiff:
    """A snapshot of a checkout, kept in a new store at `store`. The methods block.

    Raises:
        SandboxError: git or the disk fails.
    """

    def __init__(self, checkout: Path, store: Path) -> None:
        self._checkout = checkout
        self._workspace = Workspace.from_folder(TreeStore(store), checkout, _files(checkout))

    def patch(self) -> bytes:
        """Return the changes since the snapshot as a patch for `git apply`.

        New files are included, except those that the base ignores.

        Raises:
            PathEscapes: A change leads out of the tree or into git's own files.
            SandboxError: git or the disk fails.
        """
        tracked = set(self._workspace.entries(self._workspace.base))
        kept = self._workspace.wanted(_files(self._checkout), tracked)
        tree = self._workspace.store.tree_of_folder(self._checkout, kept)
        return self._workspace.patch(tree).text


def _files(folder: Path) -> list[str]:
    """Return the relative paths of regular files and symbolic links.

    Skip folders that running programs creates.
    """
    paths = []
    for root, folders, files in os.walk(folder):
        inside = Path(root).relative_to(folder)
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and name not in SKIP_FOLDERS]
        for name in (*files, *links):
            path = str(inside / name)
            mode = (Path(root) / name).lstat().st_mode
            if (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and not inside_git(path):
                paths.append(path)
    return sorted(paths)
