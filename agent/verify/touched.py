"""Decide which test suites run for a patch: those that it touches, and those that depend on them.

A patch touches the suites in whose folder a changed file lies, and pytest's suite if the file is Python. A suite at the
repository's root runs for every patch, except pytest's, which has no folder of its own. A file in no suite's folder that is
not Python may be for all of them: then all suites run.

No rule knows the dependencies of all languages and build systems. So a suite counts as a dependent of another if one of its
files *names* the other: by its folder, or as its manifests do. Files outside of the suites' folders pass dependencies on:
if a script names `tool`, what names the script depends on `tool` as well. A name that means something else costs time
only; a dependent that is not found could make a patch look verified. So these rules prefer the former.

The suites are those of the base tree, and references of the base tree and of the patched tree count. So a patch cannot make
fewer suites run by what it removes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.python import CONFIGURATION, PYTEST, is_test_file

MOST_BYTES = 64_000_000
"""Most bytes that are searched for names. If a repository has more, all suites run."""
MOST_FILES = 20_000
"""Most files that are searched for names."""
SILENT = (".md", ".lock", "-lock.json", "-lock.yaml", "go.sum", "npm-shrinkwrap.json")
"""Ends of the names of files that are not searched: prose, and lists of what a manifest names as well."""
MANIFESTS = re.compile(
    r"pyproject\.toml|setup\.(?:cfg|py)|package\.json|go\.mod|Cargo\.toml|pom\.xml|composer\.json|mix\.exs|"
    r"(?:build|settings)\.gradle(?:\.kts)?|[^/]+\.gemspec"
)
"""Names of files that name what they describe, and the packages that it needs."""
_BUILDS = frozenset({"CMakeLists.txt", "meson.build"})
"""Names of files that name what they describe, and no packages."""
_NAMED = (
    re.compile(
        rb"""(?:\bname["']?\s*[:=]\s*|^module\s+|<artifactId>|\bproject\(\s*|\bapp:\s*:)["']?(@?\w[\w@./-]*)""",
        re.MULTILINE,
    ),
    re.compile(rb"""([\w.-]+)\s*=\s*["']?[\w.]+:[A-Za-z_]"""),  # a program of a Python project
)


@dataclass(eq=False)
class _Part:
    """A suite, or a file outside of the suites' folders."""

    key: str
    """Name of the suite, or path of the file."""
    root: str = ""
    """Root of the suite."""
    names: set[bytes] = field(default_factory=set)
    """How other parts name it, wherever they are."""
    steps: set[bytes] = field(default_factory=set)
    """Steps of the file's path: other names, if they are not among the `own` of a part that uses them."""
    own: set[bytes] = field(default_factory=set)
    """Names that a suite uses for its own files. Another part is meant only if they stand behind `..`."""
    texts: list[bytes] = field(default_factory=list)
    """Contents of its files."""

    def add_names(self, path: PurePosixPath, content: bytes) -> None:
        """Add the names that a manifest gives to what it describes."""
        if path.name in _BUILDS or MANIFESTS.fullmatch(path.name):
            self.names.update(name for pattern in _NAMED for name in pattern.findall(content))

    def read(self, path: PurePosixPath, content: bytes) -> None:
        """Add the text of a file, and its name if the part is not the file itself."""
        if self.key != str(path):
            self.own.add(os.fsencode(path.name))
        if b"\0" not in content[:8000]:
            self.texts.append(content)

    def depends_on(self, others: Sequence[_Part]) -> bool:
        """Return whether it names one of these parts, or is a suite in the folder of one of them or around it."""
        names = {name for other in others for name in other.names}
        names |= {name.replace(b"-", b"_") for name in names}  # how Python and Rust import it
        behind = {name for other in others for name in other.steps & self.own} - names
        names |= {name for other in others for name in other.steps - self.own}
        return (
            any(_nested(self.root, other.root) for other in others)
            or self._has(names, rb"(?<!\w)")
            or self._has(behind, rb"\.\.[^\w\n]{1,8}")  # `../name`, `'..', 'name'`
        )

    def _has(self, names: Collection[bytes], before: bytes) -> bool:
        return any(
            name in text and re.search(before + re.escape(name) + rb"(?!\w)", text)
            for text in self.texts
            for name in names
        )


def suites_to_run(files: PatchedFiles, suites: Sequence[Suite]) -> tuple[Suite, ...]:
    """Return the suites whose tests a patch can influence, in the given order."""
    touched = _touched(files.patch.paths, suites)
    if len(touched) in (0, len(suites)):
        return tuple(suites)
    parts = _parts(files, suites)
    if parts is None:
        return tuple(suites)
    begun = touched | {*files.patch.paths}
    new = [part for part in parts if part.key in begun]
    while new:
        touched |= {part.key for part in new}
        parts = [part for part in parts if part.key not in touched]
        new = [part for part in parts if part.depends_on(new)]
    return tuple(suite for suite in suites if suite.name in touched)


def _touched(paths: Iterable[str], suites: Sequence[Suite]) -> set[str]:
    """Return the names of the suites that changed files touch."""
    found = set[str]()
    for path in paths:
        folder = _folder(path, suites)
        python = path.endswith(".py") and any(suite.runner == PYTEST for suite in suites)
        for suite in suites:
            around = suite.root in ("", folder)
            if (python if suite.runner == PYTEST else around) or not (folder or python):
                found.add(suite.name)
    return found


def _parts(of_patch: PatchedFiles, suites: Sequence[Suite]) -> list[_Part] | None:
    """Return the suites with a folder, pytest's suite, and the files in no suite's folder; None if there is too much text."""
    files = _searched(of_patch)
    if files is None:
        return None
    of_suites = [_suite(suite) for suite in suites if suite.root]
    of_python = [_Part(suite.name, own={b"src"}) for suite in suites if suite.runner == PYTEST]
    of_files = dict[str, _Part]()
    for path, content in files:
        folder, pure = _folder(path, suites), PurePosixPath(path)
        around = [part for part in of_suites if _within(path, part.root)]
        users = around or [of_files.setdefault(path, _file(pure))]
        for part in users:
            part.add_names(pure, content)
        if pure.suffix == ".py" or (not folder and pure.name in CONFIGURATION):
            users += of_python
            if folder and is_test_file(path):  # a Python test in the folder of another suite is about that
                for part in of_python:
                    part.texts.append(os.fsencode(PurePosixPath(folder).name))
        for part in users:
            part.read(pure, content)
    return [*of_suites, *of_python, *of_files.values()]


def _searched(of_patch: PatchedFiles) -> list[tuple[str, bytes]] | None:
    """Return the files that are searched for names, changed ones in both versions; None if there is too much text."""
    patched = of_patch.patched
    changed = ((path, patched[path]) for path in of_patch.patch.paths if path in patched)
    files = [each for each in (*of_patch.base.items(), *changed) if not each[0].endswith(SILENT)]
    if len(files) > MOST_FILES:
        return None
    texts, size = list[tuple[str, bytes]](), 0
    contents = of_patch.workspace.store.each_blob([entry.sha for _, entry in files])
    for (path, _), content in zip(files, contents, strict=True):
        size += len(content)
        if size > MOST_BYTES:
            return None
        texts.append((path, content))
    return texts


def _suite(suite: Suite) -> _Part:
    """Return a suite with a folder, without the texts of its files."""
    *above, name = os.fsencode(suite.root).split(b"/")
    names = {name, b"../*", *(step + b"/*" for step in above[-1:])}
    return _Part(suite.name, suite.root, names, own={*above, name, b"src"})


def _file(path: PurePosixPath) -> _Part:
    """Return a file outside of the suites' folders, without its text."""
    part = _Part(str(path))
    if path.suffix == ".py" and is_test_file(part.key):
        return part  # nothing uses a test
    part.steps = {os.fsencode(step) for step in path.parts}
    if path.name == "Makefile":
        part.names.add(b"make -C")
    if path.suffix == ".py" and len(path.parts) == 1 and path.name != "setup.py":
        part.names.add(os.fsencode(path.stem))  # `python -m name`, where no folder is named
    return part


def _folder(path: str, suites: Iterable[Suite]) -> str:
    """Return the root of the innermost suite whose folder contains a file; empty if the file is outside of all suites."""
    return max((suite.root for suite in suites if _within(path, suite.root)), key=len, default="")


def _within(path: str, root: str) -> bool:
    return bool(root) and path.startswith(f"{root}/")


def _nested(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one lies in the other."""
    return bool(one and other) and (f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"))
