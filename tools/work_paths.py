"""Find the file of the work tree that a model means, and say what to tell it if no file fits."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator

from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.workspace import inside_git
from m3agent.tools.base import visible
from m3agent.tools.test_targets import best_names, folders_of

OTHER_ROOTS = ("/workspace", "/testbed", "/repo", "/app", "/project", "/mnt/repo")
"""Where other sandboxes have the work tree."""

SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "var")
"""Folders of a system, whose files are never those of a work tree."""
INSTALLED = frozenset({"site-packages", "dist-packages", "node_modules"})
MOST_LISTED = 200


def plain(path: str, root: str) -> str:
    """Return the path relative to the work tree in the folder `root`, without `./` and without that folder.

    Raises:
        PathEscapes: The path is in git's own folder.
    """
    path = path.removeprefix(f"{root}/").removeprefix("./")
    if inside_git(path):
        raise PathEscapes(f"{path}: git's own folder cannot be touched")
    return path


def meant_path(path: str, root: str, files: Collection[str]) -> str:
    """Return the path relative to the work tree that a path of another machine means.

    `/testbed/src/a.py` means `src/a.py` if the work tree has that file, or its folder for a new file. Of another absolute
    path, the longest end that names a file of the work tree counts; it must name a folder, too.

    Args:
        root: Absolute path of the work tree.

    Raises:
        PathEscapes: The path is in git's own folder, or outside the work tree.
    """
    wanted = plain(path, root)
    inside = posixpath.normpath(wanted)
    if wanted == root or (inside != ".." and not inside.startswith(("../", "/"))):
        return "" if wanted == root else wanted
    if meant := next(_meanings(inside, files), ""):
        return plain(meant, root)
    example = next(iter(near_files(inside, files)), "src/a.py")
    raise PathEscapes(
        f"{visible(path)} is outside the work tree, which is {root}: give a path relative to that folder, such as {example}"
    )


def _meanings(path: str, files: Collection[str]) -> Iterator[str]:
    folders = {""} | folders_of(files) - {"."}
    tails = [
        f"{path}/".removeprefix(f"{root}/").rstrip("/")
        for root in OTHER_ROOTS
        if f"{path}/".startswith(f"{root}/")
    ]
    yield from (tail or "." for tail in tails if {tail, posixpath.dirname(tail)} & folders or tail in files)
    parts = path.strip("/").split("/")
    if path.startswith("/") and parts[0] not in SYSTEM and INSTALLED.isdisjoint(parts):
        ends = ("/".join(parts[start:]) for start in range(1, len(parts) + bool(tails) - 1))
        yield from (end for end in ends if end in files)


def near_files(path: str, files: Collection[str]) -> list[str]:
    """Return files whose names are like a path; best first."""
    name = posixpath.basename(path)
    return best_names(name, path, {file: posixpath.basename(file) for file in files})


def near_hint(path: str, files: Collection[str]) -> str:
    """Return a sentence with files whose names are like a path that does not exist; empty if there are none."""
    near = near_files(posixpath.normpath(path), files)
    return f". Near files: {', '.join(map(visible, near))}" if near else ""


def listing(folder: str, files: Collection[str]) -> list[str]:
    """Return what is directly in a folder, folders with the number of their files; empty if there is no such folder."""
    folder = posixpath.normpath(folder or ".")
    start = "" if folder == "." else f"{folder}/"
    inner: dict[str, int] = {}
    names = []
    for file in files:
        name, _, rest = file.removeprefix(start).partition("/")
        if not file.startswith(start):
            continue
        if rest:
            inner[name] = inner.get(name, 0) + 1
        else:
            names.append(name)
    rows = [f"{name}/ ({count:,} file{'s' if count > 1 else ''})" for name, count in sorted(inner.items())]
    rows += sorted(names)
    left = len(rows) - MOST_LISTED
    return [*map(visible, rows[:MOST_LISTED]), *([f"[{left:,} more not listed]"] if left > 0 else [])]
