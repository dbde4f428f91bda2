"""The work tree's states as git trees on the host, and the patch between them.

The store is a bare repository of ours in the session's folder. The sandbox never sees it and nothing the sandbox
wrote is ever read as git configuration: files come out as bytes with a path and a mode, and trees are built from
those on the host.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.git import TreeEntry, TreeStore

TreeId = str
"""A git tree id: names one state of the work tree."""

MOST_FILES = 2000  # changed files in one checkpoint: more is an accident (a build, a download), not a patch
MOST_BYTES = 10 << 20  # bytes of one changed file

# Files that run by themselves later, on the user's machine or in CI: allowed, but the user is told.
RUNS_LATER_FOLDERS = {".github", ".gitlab", ".vscode", ".idea", ".circleci", ".devcontainer", ".husky"}
RUNS_LATER_NAMES = {
    ".envrc",
    ".pre-commit-config.yaml",
    ".gitlab-ci.yml",
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "setup.py",
    "setup.cfg",
    "pytest.ini",
    "tox.ini",
    "noxfile.py",
    "makefile",
}


@dataclass(frozen=True)
class Patch:
    """What a session changed.

    text: as `git apply` takes it, in bytes; empty when nothing changed.
    paths: the files it touches.
    runs_later: those of them that run by themselves later (CI, editor, test configuration).
    """

    base: TreeId
    tree: TreeId
    text: bytes
    paths: tuple[str, ...]
    runs_later: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not self.text


class Workspace:
    """The trees of one session: the base it started from and every checkpoint since."""

    def __init__(self, store: TreeStore, base: TreeId) -> None:
        self.store = store
        self.base = base
        self._ignore_files = store.git_dir / f"ignore-files-{base}"

    @classmethod
    def from_folder(cls, store: TreeStore, folder: Path, paths: Sequence[str]) -> Workspace:
        """A workspace that starts from these files of a folder, byte for byte as they are now."""
        return cls(store, store.tree_of_folder(folder, paths))

    def entries(self, tree: TreeId) -> dict[str, TreeEntry]:
        """The files of a state, by path."""
        return {entry.path: entry for entry in self.store.list_tree(tree)}

    def commit_changes(
        self, before: TreeId, changed: Sequence[tuple[str, int, bytes]], deleted: Sequence[str]
    ) -> TreeId:
        """The state after these changes to `before`: (path, mode, content) and paths gone."""
        entries = self.entries(before)
        for path in deleted:
            entries.pop(path, None)
        for path, mode, content in changed:
            entries[path] = TreeEntry(path, mode, self.store.put_blob(content))
        return self.store.write_tree(entries.values())

    def wanted(self, paths: Sequence[str], tracked: set[str]) -> list[str]:
        """Those of the changed paths that belong to the work: tracked at the base, or new and not ignored.

        The ignore rules are the base's: what the sandbox writes into a `.gitignore` hides nothing.
        """
        new = [path for path in paths if path not in tracked]
        ignored = self.store.ignored(new, self._base_ignore_files())
        return [path for path in paths if path in tracked or path not in ignored]

    def patch(self, tree: TreeId) -> Patch:
        """The difference between the base and a state.

        Raises:
            PathEscapes: it holds a link that leads out of the tree, or touches git's own files.
        """
        changes = self.store.changed_paths(self.base, tree)
        entries = self.entries(tree)
        for status, path in changes:
            refuse_git_files(path)
            if status != "D" and stat.S_IFMT(entries[path].mode) == stat.S_IFLNK:
                refuse_escaping_link(path, self.store.get_blob(entries[path].sha))
        paths = tuple(path for _, path in changes)
        text = self.store.diff(self.base, tree) if changes else b""
        return Patch(self.base, tree, text, paths, tuple(path for path in paths if runs_later(path)))

    def _base_ignore_files(self) -> Path:
        if not self._ignore_files.exists():
            entries = [
                e for e in self.store.list_tree(self.base) if PurePosixPath(e.path).name == ".gitignore"
            ]
            plain = [e for e in entries if stat.S_IFMT(e.mode) == stat.S_IFREG]
            self._ignore_files.mkdir()
            for entry, content in zip(plain, self.store.get_blobs([e.sha for e in plain]), strict=True):
                target = self._ignore_files / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        return self._ignore_files


def inside_git(path: str) -> bool:
    """Whether a path is, or is in, a repository's own folder: never part of a tree."""
    return any(
        part.lower() == ".git" or part.lower().startswith("git~") for part in PurePosixPath(path).parts
    )


def refuse_git_files(path: str) -> None:
    """Raise PathEscapes for a path that git itself reads as its own."""
    if inside_git(path) or PurePosixPath(path).name.lower() in {".gitmodules", ".gitattributes"}:
        raise PathEscapes(f"the change touches {path}, which git itself reads: such a patch is refused")


def refuse_escaping_link(path: str, target: bytes) -> None:
    """Raise PathEscapes for a symbolic link that leads out of the tree."""
    text = target.decode(errors="replace")
    depth = len(PurePosixPath(path).parts) - 1
    for part in PurePosixPath(text).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or text.startswith("/"):
            raise PathEscapes(f"the change makes {path} a link to {text}, outside the work tree: refused")


def runs_later(path: str) -> bool:
    """Whether a file runs by itself later: CI, editors, test and environment configuration."""
    parts = PurePosixPath(path).parts
    name = parts[-1].lower()
    return bool(RUNS_LATER_FOLDERS & set(parts[:-1])) or name in RUNS_LATER_NAMES or name.endswith(".pth")
