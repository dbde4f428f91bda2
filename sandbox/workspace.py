"""The work tree's states as git trees on the host, and the patch between them.

The store is a bare repository of ours in the session's folder. The sandbox never sees it and nothing the sandbox
wrote is ever read as git configuration: files come out as bytes with a path and a mode, and trees are built from
those on the host.
"""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.git import UNFINISHED, TreeEntry, TreeStore, writing

TreeId = str
"""A git tree id: names one state of the work tree."""

MOST_FILES = 2000  # changed files in one checkpoint: more is an accident (a build, a download), not a patch
MOST_BYTES = 10 << 20  # bytes of one changed file

# Characters that macOS leaves out when it compares names (the list git has for the same purpose).
IGNORED_IN_NAMES = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")

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
            PathEscapes: it holds a link that leads out of the tree, or touches git's own files or what passes for them.
        """
        changes = self.store.changed_paths(self.base, tree)
        entries = self.entries(tree)
        links = {path.lower() for path, entry in entries.items() if stat.S_IFMT(entry.mode) == stat.S_IFLNK}
        for status, path in changes:
            refuse_git_files(path)
            if status != "D" and stat.S_IFMT(entries[path].mode) == stat.S_IFLNK:
                refuse_escaping_link(path, self.store.get_blob(entries[path].sha), links)
        paths = tuple(path for _, path in changes)
        refuse_repositories(paths, entries)
        text = self.store.diff(self.base, tree) if changes else b""
        return Patch(self.base, tree, text, paths, tuple(path for path in paths if runs_later(path)))

    def _base_ignore_files(self) -> Path:
        if not self._ignore_files.exists():
            entries = [
                e for e in self.store.list_tree(self.base) if PurePosixPath(e.path).name == ".gitignore"
            ]
            plain = [e for e in entries if stat.S_IFMT(e.mode) == stat.S_IFREG]
            # made whole under another name: somebody else may want it too, and we may be killed
            contents = self.store.get_blobs([e.sha for e in plain])
            with writing(self._ignore_files):
                folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.store.git_dir))
                for entry, content in zip(plain, contents, strict=True):
                    target = folder / entry.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
            try:
                folder.rename(self._ignore_files)
            except OSError:  # it is there by now
                shutil.rmtree(folder)
        return self._ignore_files


def inside_git(path: str) -> bool:
    """Whether a path is, or is in, a repository's own folder, on any file system: never part of a tree."""
    parts = [plain_name(part) for part in path.replace("\\", "/").split("/")]
    return any(part == ".git" or part.startswith("git~") for part in parts)


def plain_name(name: str) -> str:
    """What Windows and macOS take a name for: no case, no ending dots or blanks, no stream, no joining characters."""
    return IGNORED_IN_NAMES.sub("", name).partition(":")[0].rstrip(". ").lower()


def refuse_git_files(path: str) -> None:
    """Raise PathEscapes for a path that git itself reads as its own."""
    if inside_git(path) or plain_name(PurePosixPath(path).name) in {".gitmodules", ".gitattributes"}:
        raise PathEscapes(f"the change touches {path}, which git itself reads: such a patch is refused")


def refuse_escaping_link(path: str, target: bytes, links: Collection[str] = ()) -> None:
    """Raise PathEscapes for a symbolic link that leads out of the tree.

    `links` are the tree's symbolic links, in lower case: what `..` behind one of them leads to is not looked into.
    """
    text = target.decode(errors="replace")
    at = list(PurePosixPath(path).parts[:-1])
    through = False
    for part in PurePosixPath(text).parts:
        if text.startswith("/") or (part == ".." and (through or not at)):
            raise PathEscapes(f"the change makes {path} a link to {text}, outside the work tree: refused")
        if part == "..":
            at.pop()
        else:
            at.append(part)
            through = through or "/".join(at).lower() in links


def refuse_repositories(paths: Iterable[str], tree: Collection[str]) -> None:
    """Raise PathEscapes for changes in a folder that git takes for a bare repository: its `config` can run programs.

    `paths` are the changes, `tree` all paths after them.
    """
    for head in [path for path in tree if plain_name(path.rpartition("/")[2]) == "head"]:
        folder = head[: -len(PurePosixPath(head).name)]
        names = {
            plain_name(path[len(folder) :].partition("/")[0]) for path in tree if path.startswith(folder)
        }
        if {"objects", "refs"} <= names or "commondir" in names:
            for path in paths:
                if path.startswith(folder):
                    raise PathEscapes(
                        f"the change touches {path}, which git takes for part of a repository: refused"
                    )


def runs_later(path: str) -> bool:
    """Whether a file runs by itself later: CI, editors, test and environment configuration."""
    parts = PurePosixPath(path).parts
    name = parts[-1].lower()
    return bool(RUNS_LATER_FOLDERS & set(parts[:-1])) or name in RUNS_LATER_NAMES or name.endswith(".pth")
