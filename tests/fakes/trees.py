"""A store of trees that keeps them in memory: what `m3agent.sandbox.store.git.TreeStore` promises, without git."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from m3agent.sandbox.protocol.supervisor import blob_id
from m3agent.sandbox.store.git import JUNK, GitFailed, TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Workspace

REGULAR = 0o100644


class MemoryTrees(TreeStore):
    """Trees and blobs in dictionaries.

    It knows plain names and folders in a root's `.gitignore`, and patches of text files that end with a line end.
    `folder` is where a `Workspace` keeps its ignore files.
    """

    def __init__(self, folder: Path) -> None:
        self.git_dir = folder
        self.left_out = set()
        self._blobs: dict[str, bytes] = {}
        self._trees: dict[str, list[TreeEntry]] = {}

    def git(self, *args: str, **_: object) -> bytes:
        raise AssertionError(f"the trees in memory were asked for git {args[0]}")

    def put_blob(self, content: bytes) -> str:
        sha = blob_id(content)
        self._blobs[sha] = content
        return sha

    def put_blobs(self, contents: Sequence[bytes]) -> list[str]:
        return [self.put_blob(content) for content in contents]

    def get_blob(self, sha: str) -> bytes:
        try:
            return self._blobs[sha]
        except KeyError:
            raise GitFailed(f"object {sha} is missing from the repository") from None

    def each_blob_up_to(self, shas: Sequence[str], most: int) -> Iterator[bytes | None]:
        for blob in map(self.get_blob, shas):
            yield blob if len(blob) <= most else None

    def write_tree(self, entries: Iterable[TreeEntry]) -> str:
        by_path = {entry.path: entry for entry in entries}
        files = sorted(by_path.values(), key=lambda entry: os.fsencode(entry.path))
        tree = hashlib.sha1(repr(files).encode()).hexdigest()
        self._trees[tree] = files
        return tree

    def list_tree(self, tree: str) -> tuple[TreeEntry, ...]:
        try:
            return tuple(self._trees[tree])
        except KeyError:
            raise GitFailed(f"not a tree object: {tree}") from None

    def diff(self, old: str, new: str) -> bytes:
        return b"".join(self._diff_of(path, old, new) for _, path in self.changed_paths(old, new))

    def changed_paths(self, old: str, new: str) -> list[tuple[str, str]]:
        before, after = self._by_path(old), self._by_path(new)
        paths = sorted(before.keys() | after.keys(), key=os.fsencode)
        return [
            ("A" if path not in before else "M" if path in after else "D", path)
            for path in paths
            if before.get(path) != after.get(path)
        ]

    def ignored(self, paths: Sequence[str], ignore_files: Path) -> set[str]:
        own = ignore_files / ".gitignore"
        rules = [*JUNK, *(own.read_text().split() if own.exists() else ())]
        return {path for path in paths if any(_matches(path, rule) for rule in rules)}

    def _by_path(self, tree: str) -> dict[str, TreeEntry]:
        return {entry.path: entry for entry in self.list_tree(tree)}

    def _diff_of(self, path: str, old: str, new: str) -> bytes:
        before, after = self._by_path(old).get(path), self._by_path(new).get(path)
        lines = [f"diff --git a/{path} b/{path}\n"]
        if before is None or after is None:
            kind, entry = ("new", after) if before is None else ("deleted", before)
            assert entry is not None
            lines.append(f"{kind} file mode {entry.mode:06o}\n")
        elif before.mode != after.mode:
            lines += [f"old mode {before.mode:06o}\n", f"new mode {after.mode:06o}\n"]
        lines += difflib.unified_diff(
            self._lines(before), self._lines(after), _name("a", before), _name("b", after)
        )
        ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        return "".join(ended).encode(errors="surrogateescape")

    def _lines(self, entry: TreeEntry | None) -> list[str]:
        content = b"" if entry is None else self.get_blob(entry.sha)
        return io.StringIO(content.decode(errors="surrogateescape"), newline="\n").readlines()


def _name(side: str, entry: TreeEntry | None) -> str:
    """What a patch calls a file before or after the change."""
    return "/dev/null" if entry is None else f"{side}/{entry.path}"


def _matches(path: str, rule: str) -> bool:
    """Whether a rule, a name or a folder's name with a slash behind it, leaves a path out."""
    *folders, name = path.split("/")
    if rule.endswith("/"):
        return any(fnmatch.fnmatchcase(folder, rule[:-1]) for folder in folders)
    return any(fnmatch.fnmatchcase(part, rule) for part in (*folders, name))


def memory_workspace(folder: Path, files: Mapping[str, str | bytes]) -> Workspace:
    """A workspace that starts from these files, with its trees in memory."""
    store = MemoryTrees(folder)
    contents = {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
    return Workspace(
        store,
        store.write_tree(
            TreeEntry(path, REGULAR, store.put_blob(content)) for path, content in contents.items()
        ),
    )


def files_of(workspace: Workspace, tree: str) -> dict[str, str]:
    """The text of each file of a state, by path."""
    return {
        path: workspace.store.get_blob(entry.sha).decode() for path, entry in workspace.entries(tree).items()
    }
