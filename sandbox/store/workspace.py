"""Keep the states of the work tree as git trees on the host, and compute the patch between them.

The store is our own bare repository in the session's folder. The sandbox cannot see it, and no file from the
sandbox is ever read as git configuration. Files leave the sandbox as bytes with a path and a mode; the host
builds the trees from those.
"""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.git import UNFINISHED, TreeEntry, TreeStore, writing
from m3agent.util.counted import first_of

TreeId = str
"""A git tree id, which names one state of the work tree."""

MOST_FILES = 2000  # changed files in one checkpoint; more are an accident (a build, a download), not a patch
MOST_BYTES = 10 << 20  # bytes of one changed file
LARGEST_FILE = 100 << 20
"""The most bytes of one file, as on GitHub. Larger ones do not go into sandboxes, whose files are in memory."""
TOO_LARGE = f"larger than {LARGEST_FILE >> 20} MiB"

# Characters that macOS ignores when it compares names (the same list as in git).
IGNORED_IN_NAMES = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")

# Files that run automatically later, on the user's machine or in CI. They are allowed, but the user is
# warned.
RUNS_LATER_FOLDERS = {
    *(".github", ".gitlab", ".circleci", ".buildkite", ".husky"),
    *(".vscode", ".idea", ".zed", ".cursor", ".claude", ".devcontainer"),
}
RUNS_LATER_NAMES = {
    *(".gitlab-ci.yml", ".travis.yml", "azure-pipelines.yml", "jenkinsfile", ".pre-commit-config.yaml"),
    *(".envrc", ".mcp.json", ".m3agent.toml", "package.json"),
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "setup.cfg"),
    *("noxfile.py", "tox.ini"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("makefile", "gnumakefile", "justfile"),
    *("dockerfile", "containerfile"),
    *("compose.yml", "compose.yaml", "docker-compose.yml", "docker-compose.yaml"),
}


@dataclass(frozen=True)
class Patch:
    """The changes of a session."""

    base: TreeId
    """State before the changes."""
    tree: TreeId
    """State after the changes."""
    text: bytes
    """The patch in bytes, as `git apply` takes it; empty if nothing changed."""
    paths: tuple[str, ...]
    runs_later: tuple[str, ...]
    """Those changed files that run automatically later (CI, editor, test configuration)."""

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not self.text


class Workspace:
    """The states of one session: the base and every checkpoint since."""

    def __init__(self, store: TreeStore, base: TreeId) -> None:
        self.store = store
        self.base = base
        self._ignore_files = store.git_dir / f"ignore-files-{base}"

    @cached_property
    def submodules(self) -> frozenset[str]:
        """Paths of the repository's submodules. Their files belong to other repositories, so no patch has them."""
        return self.store.noted_submodules()

    @property
    def about_submodules(self) -> str:
        """What people and the model are told about the submodules; empty without any."""
        if not self.submodules:
            return ""
        filled = {self.submodule_of(path) for path in self.entries(self.base)}
        return about_submodules(self.submodules, {place for place in filled if place is not None})

    def submodule_of(self, path: str) -> str | None:
        """Return the submodule that a path is, or is in; None for other paths."""
        places = (path, *map(str, PurePosixPath(path).parents)) if self.submodules else ()
        return next((place for place in places if place in self.submodules), None)

    def refuse_submodule(self, path: str) -> None:
        """Raise PathEscapes for a path that is a submodule, or is in one."""
        if (place := self.submodule_of(path)) is not None:
            raise PathEscapes(
                f"{path} belongs to the submodule {place}, which is a repository of its own: refused"
            )

    @classmethod
    def from_folder(cls, store: TreeStore, folder: Path, paths: Sequence[str]) -> Workspace:
        """Return a workspace whose base is these files of a folder, byte for byte as they are now."""
        return cls(store, store.tree_of_folder(folder, paths))

    def entries(self, tree: TreeId) -> dict[str, TreeEntry]:
        """Return the files of a state, by path."""
        return {entry.path: entry for entry in self.store.list_tree(tree)}

    def commit_changes(
        self, before: TreeId, changed: Sequence[tuple[str, int, bytes]], deleted: Sequence[str]
    ) -> TreeId:
        """Return the state after changes to `before`."""
        entries = self.entries(before)
        for path in deleted:
            entries.pop(path, None)
        for path, mode, content in changed:
            entries[path] = TreeEntry(path, mode, self.store.put_blob(content))
        return self.store.write_tree(entries.values())

    def wanted(self, paths: Sequence[str], tracked: set[str]) -> list[str]:
        """Return the changed paths that belong to the work.

        They are tracked at the base, or new and not ignored. The base's ignore rules apply: a `.gitignore`
        written in the sandbox has no effect.
        """
        new = [path for path in paths if path not in tracked]
        ignored = self.store.ignored(new, self._base_ignore_files())
        return [path for path in paths if path in tracked or path not in ignored]

    def patch(self, tree: TreeId) -> Patch:
        """Return the difference between the base and a state.

        Raises:
            PathEscapes: The change contains a link that leads out of the tree, or touches git's own files or
                names that a file system could equate with them, or adds or changes a submodule or a file in one.
        """
        changes = self.store.changed_paths(self.base, tree)
        entries = self.entries(tree)
        links = {path.lower() for path, entry in entries.items() if stat.S_IFMT(entry.mode) == stat.S_IFLNK}
        for status, path in changes:
            refuse_git_files(path)
            if status != "D" and path not in entries:  # a tree lists its submodules, `entries` does not
                raise PathEscapes(f"the change sets the commit of the submodule {path}: refused")
            if (
                path not in self.submodules or status != "D"
            ):  # without its file, a submodule is removed as a whole
                self.refuse_submodule(path)
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
            # create it under another name first: another process may need it too, and this one may be killed
            contents = self.store.get_blobs([e.sha for e in plain])
            with writing(self._ignore_files):
                folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.store.git_dir))
                for entry, content in zip(plain, contents, strict=True):
                    target = folder / entry.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
            try:
                folder.rename(self._ignore_files)
            except OSError:  # another process created it meanwhile
                shutil.rmtree(folder)
        return self._ignore_files


def about_submodules(submodules: Collection[str], filled: Collection[str]) -> str:
    """Say which submodules sandboxes have, and which not: those whose folder is empty."""
    there, missing = (
        first_of(sorted(place for place in submodules if (place in filled) == wanted), 5)
        for wanted in (True, False)
    )
    told = ["changes in submodules are refused"]
    if there:
        told.append(f"sandboxes have the files of {there}")
    if missing:
        told.append(f"they do not have those of {missing}, which are not checked out, or too large")
    return "; ".join(told)


def inside_git(path: str) -> bool:
    """Return whether a path is a repository's own folder or inside it, on any file system.

    Such paths are never part of a tree.
    """
    parts = [plain_name(part) for part in path.replace("\\", "/").split("/")]
    return any(part == ".git" or part.startswith("git~") for part in parts)


def plain_name(name: str) -> str:
    """Return the name that Windows and macOS would use.

    They ignore case, dots and spaces at the end, a stream after a colon, and joining characters.
    """
    return IGNORED_IN_NAMES.sub("", name).partition(":")[0].rstrip(". ").lower()


def refuse_git_files(path: str) -> None:
    """Raise PathEscapes for a path that git itself reads."""
    if inside_git(path) or plain_name(PurePosixPath(path).name) in {".gitmodules", ".gitattributes"}:
        raise PathEscapes(f"the change touches {path}, which git itself reads: refused")


def refuse_escaping_link(path: str, target: bytes, links: Collection[str] = ()) -> None:
    """Raise PathEscapes for a symbolic link that leads out of the tree.

    Args:
        path: Path of the link.
        links: The tree's symbolic links in lower case. A `..` behind one of them is refused, because it is
            not resolved.
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
    """Raise PathEscapes for changes in a folder that git takes for a bare repository.

    Such a repository's `config` can run programs.
    """
    folders = {
        head[: -len(PurePosixPath(head).name)]
        for head in tree
        if plain_name(head.rpartition("/")[2]) == "head"
    }
    names: dict[str, set[str]] = {folder: set() for folder in folders}
    for path in tree if folders else ():
        for folder in folders.intersection(_folders_of(path)):
            names[folder].add(plain_name(path[len(folder) :].partition("/")[0]))
    repositories = {
        folder for folder, own in names.items() if {"objects", "refs"} <= own or "commondir" in own
    }
    for path in paths if repositories else ():
        if not repositories.isdisjoint(_folders_of(path)):
            raise PathEscapes(f"the change touches {path}, which git treats as part of a repository: refused")


def _folders_of(path: str) -> list[str]:
    """Return the folders that a path is in, each with a slash at its end; the first one is empty."""
    return ["", *(path[: at + 1] for at, letter in enumerate(path) if letter == "/")]


def runs_later(path: str) -> bool:
    """Return whether a file runs automatically later: CI, editor, test and environment configuration."""
    parts = PurePosixPath(path).parts
    name = parts[-1].lower()
    folders = {part.lower() for part in parts[:-1]}  # the file system of the user may ignore case
    return bool(RUNS_LATER_FOLDERS & folders) or name in RUNS_LATER_NAMES or name.endswith(".pth")
