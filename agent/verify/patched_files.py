"""Read the files of a patch: as they are without it, and with it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.suites import TestFiles, files_of_tests
from m3agent.util.python_ast import parsed

Contents = Mapping[str, tuple[bytes | None, bytes | None]]
"""By path, the old and the new content of changed files; None where the file is missing."""


@dataclass(frozen=True)
class PatchedFiles:
    """The files of a patch, in two versions."""

    workspace: Workspace
    patch: Patch

    @cached_property
    def base(self) -> dict[str, TreeEntry]:
        """The files without the patch, by path."""
        return self.workspace.entries(self.patch.base)

    @cached_property
    def patched(self) -> dict[str, TreeEntry]:
        """The files with the patch, by path."""
        return self.workspace.entries(self.patch.tree)

    @cached_property
    def tests(self) -> TestFiles:
        """Which files belong to the tests, and which decide how they run."""
        return files_of_tests(self.workspace.store, self.patch.base)

    @cached_property
    def _blobs(self) -> dict[str, bytes]:
        """The contents of the changed files in both versions, by blob id. They are read in one call to git."""
        trees = (self.base, self.patched)
        shas = list({tree[path].sha for path in self.patch.paths for tree in trees if path in tree})
        return dict(zip(shas, self.workspace.store.get_blobs(shas), strict=True))

    def read(self, entry: TreeEntry | None) -> bytes | None:
        """Return the content of a file in one version; None if it is missing."""
        if entry is None:
            return None
        content = self._blobs.get(entry.sha)
        return self.workspace.store.get_blob(entry.sha) if content is None else content

    def old(self, path: str) -> bytes | None:
        """Return the content of a file without the patch; None if it is missing."""
        return self.read(self.base.get(path))

    def new(self, path: str) -> bytes | None:
        """Return the content of a file with the patch; None if it is missing."""
        return self.read(self.patched.get(path))

    def modules(self, path: str) -> tuple[ast.Module | None, ast.Module | None]:
        """Return the syntax trees of a Python file without and with the patch; None for what is missing or cannot be parsed."""
        return (parsed(self.old(path)), parsed(self.new(path))) if path.endswith(".py") else (None, None)

    def contents(self, undone: Collection[str] = ()) -> Contents:
        """Return the contents of the files that the patch changes, except those whose changes do not count."""
        left_out = {*undone}
        return {path: (self.old(path), self.new(path)) for path in self.patch.paths if path not in left_out}
