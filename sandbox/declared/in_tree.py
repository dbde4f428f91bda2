"""Find the packages that a repository contains: workspace members, and dependencies in its own folders.

Their code is imported from the work tree. An index is never asked for them: a package of that name there is a stranger's. The
same holds for dependencies whose source is named, such as a git repository.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.pyproject import read_pyproject
from m3agent.sandbox.declared.requirements import logical_lines, named_folder, requirements_files
from m3agent.sandbox.declared.setup_files import CFG, PY, read_setup_cfg, read_setup_py
from m3agent.sandbox.declared.tox import TOX
from m3agent.sandbox.declared.types import PYPROJECT, Files, InTree, ScanResult, texts_at, values_at
from m3agent.util.json_value import mapping
from m3agent.util.member_patterns import is_member

PIXI = "pixi.toml"
SOURCES = (
    *("tool.uv.sources", "tool.poetry.dependencies", "tool.poetry.dev-dependencies"),
    *(
        "tool.poetry.group.*.dependencies",
        "tool.pixi.pypi-dependencies",
        "tool.pixi.feature.*.pypi-dependencies",
    ),
    *("pypi-dependencies", "feature.*.pypi-dependencies"),
)
"""Tables that map the name of a dependency to its source, or to a list of sources. The last two are those of pixi.toml."""
LINES = (
    *("project.dependencies", "project.optional-dependencies.*", "dependency-groups.*"),
    *("tool.uv.dev-dependencies", "tool.pdm.dev-dependencies.*"),
    *("tool.hatch.envs.*.dependencies", "tool.hatch.envs.*.extra-dependencies"),
)
"""Lists of requirement lines, which may name a folder."""
MEMBERS = tuple(
    (f"tool.{tool}.workspace.members", f"tool.{tool}.workspace.exclude") for tool in ("uv", "hatch", "rye")
)
"""Lists with patterns of a workspace's members, and of the folders that are none."""
ELSEWHERE = {
    "workspace": "the workspace, which has no member of this name",
    "git": "a git repository",
    "url": "an address",
}
"""Keys of a source, and where the package comes from. A member of the workspace is found by its name."""


def read_in_tree(files: Files) -> InTree:
    """Return the packages that the repository contains, and those whose source is named."""
    reader = _Reader(files)
    reader.read()
    return InTree(reader.folders, {n: w for n, w in reader.elsewhere.items() if n not in reader.folders})


def read_project(files: Files, found: ScanResult) -> None:
    """Add what the files of one project declare."""
    for read in (read_pyproject, read_setup_cfg, read_setup_py):
        read(files, found)


class _Reader:
    """One search: it follows the folders that each project names."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.folders: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        self._todo = [""]

    def read(self) -> None:
        seen = set[str]()
        while self._todo:
            folder = self._todo.pop()
            if folder in seen:
                continue
            seen.add(folder)
            below = self.files.below(folder)
            self._name(below, folder)
            whole = below.toml(PYPROJECT)
            for name, source in [*_sources(whole), *_sources(below.toml(PIXI))]:
                self._source(name, source, folder)
            for line, start in _lines(below, whole, folder):
                self._line(line, start)
            self._members(whole, below, folder)

    def _name(self, below: Files, folder: str) -> None:
        own = ScanResult()
        read_project(below, own)
        name = own.project.name if own.project else posixpath.basename(folder)  # setup.py may compute it
        if name:
            self.folders.setdefault(canonicalize_name(name), folder)

    def _source(self, name: str, source: dict[str, Any], folder: str) -> None:
        path = source.get("path")
        if isinstance(path, str):
            self._line(f"{name} @ file:{path}", folder)
        elif found := next((words for key, words in ELSEWHERE.items() if source.get(key)), ""):
            self._add(name, None, found)

    def _line(self, line: str, folder: str) -> None:
        name, path = named_folder(line, folder)
        target = line.partition("file:")[2]
        address = "a git repository" if "git+" in line else "an address"
        self._add(
            name, path, f"'{target[:80]}', which is no project of the repository" if target else address
        )

    def _add(self, name: str, path: str | None, elsewhere: str) -> None:
        """Record a package in a folder of the repository, or one from elsewhere."""
        normal = canonicalize_name(name)
        if path is not None and {PYPROJECT, CFG, PY} & self.files.below(path).paths:
            self._todo.append(path)
            if name:
                self.folders.setdefault(normal, path)
        elif name:
            self.elsewhere.setdefault(normal, elsewhere)

    def _members(self, whole: dict[str, Any], below: Files, folder: str) -> None:
        for members, exclude in MEMBERS:
            patterns = [*texts_at(whole, members), *(f"!{text}" for text in texts_at(whole, exclude))]
            for path in sorted(below.paths) if patterns else ():
                inner, name = posixpath.split(path)
                if name == PYPROJECT and is_member(patterns, inner):
                    self._todo.append(posixpath.join(folder, inner))


def _sources(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of dependencies with their sources; the first of several counts."""
    for entries in values_at(whole, *SOURCES):
        for name, wish in mapping(entries).items():
            listed = wish if isinstance(wish, list) else [wish]
            if not any("index" in mapping(one) or isinstance(one, str) for one in listed):
                yield from ((name, mapping(one)) for one in listed)


def _lines(below: Files, whole: dict[str, Any], folder: str) -> Iterator[tuple[str, str]]:
    """Yield requirement lines, each with the folder that its paths start from."""
    for line in [*texts_at(whole, *LINES), *below.ini_lines(CFG, "options", "install_requires")]:
        yield line, folder
    if folder:
        return
    for line in below.ini_lines(TOX, "testenv", "deps"):
        yield line, ""
    for path in requirements_files(below):
        for line in logical_lines(below.text(path) or ""):
            yield line, posixpath.dirname(path)
            yield line, ""
