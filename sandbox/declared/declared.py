"""Combine all declarations of a repository into the contents of its environment."""

from __future__ import annotations

import contextlib
import importlib.metadata
import posixpath
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.backends.pytest_bundle import DISTRIBUTIONS
from m3agent.sandbox.declared.accepted_pythons import minor_of, pythons_in, read_ci_pythons
from m3agent.sandbox.declared.commands import read_bounds, read_installs, read_named, read_nox
from m3agent.sandbox.declared.in_tree import read_in_tree, read_project
from m3agent.sandbox.declared.poetry import NotSimple, specifier
from m3agent.sandbox.declared.requirements import read_requirements, requirements_files
from m3agent.sandbox.declared.testing import (
    PLAIN_FOLDER,
    read_django,
    read_import_folders,
    read_imported,
    read_test_options,
)
from m3agent.sandbox.declared.tox import read_tox
from m3agent.sandbox.declared.types import (
    TEST_GROUPS,
    DeclaredProject,
    Files,
    InTree,
    ScanResult,
    name_of,
    values_at,
)
from m3agent.util.json_value import mapping, strings

UV, PYLOCK = "uv.lock", "pylock.toml"
LOCKS = (UV, "poetry.lock", "pdm.lock", PYLOCK)
ELSEWHERE = {"git", "path", "url", "vcs", "directory", "archive"}
"""Keys of packages that come from an address or a folder."""


@dataclass(frozen=True)
class Declared:
    """Contents of a repository's environment."""

    requirements: tuple[str, ...]
    """Requirement lines in pip's format."""
    optional: tuple[str, ...]
    """Those of them that only groups for development and the repository's test runs name.

    The environment is built without those that cannot be installed.
    """
    constraints: tuple[str, ...]
    """Constraint lines in pip's format."""
    python: str | None
    """Specifier of the Python versions that it accepts."""
    python_pin: str | None
    """Python version that it requests (`3.11` or `3.11.4`)."""
    project: DeclaredProject | None
    notices: tuple[str, ...]
    """What was left out, as sentences for the user."""
    django_settings: str | None = None
    """Module with the settings of Django for the tests."""
    test_options: tuple[str, ...] = ()
    """Words that pytest's command line needs beside the repository's settings."""
    import_folders: tuple[str, ...] = ()
    """Folders with its packages, besides the root and `src`."""
    python_ci: tuple[str, ...] = ()
    """Minor versions of Python that its workflows name, best first."""
    members: tuple[DeclaredProject, ...] = ()
    """Its packages besides the project itself."""
    not_of_index: tuple[str, ...] = ()
    """Normalized names of packages that no index is asked for, even if another package requires them."""
    overrides: tuple[str, ...] = ()
    """Requirement lines that replace what any package requires, as uv's setting does."""

    @property
    def empty(self) -> bool:
        """Whether a bare sandbox already has everything."""
        return all(_comes_along(line) for line in self.requirements)


def read_declared(files: Files) -> Declared:
    """Read all files that declare dependencies; unusable declarations give notices, never errors."""
    in_tree = read_in_tree(files)
    found = _scan(files, ScanResult(named=read_named(files), in_tree=in_tree))
    read_nox(files, found)
    _add_members(files, found, in_tree.folders, own_extras=True)
    read_installs(files, found)
    read_imported(files, found)
    sure = _scan(files, ScanResult(groups=TEST_GROUPS, in_tree=in_tree))
    _add_members(files, sure, (), own_extras=False)
    django_settings = read_django(files, found)
    if found.requirements:
        read_locks(files, found)
        read_bounds(files, found)
    return Declared(
        tuple(sorted(found.requirements)),
        tuple(sorted(found.requirements.keys() - sure.requirements.keys())),
        tuple(sorted(found.constraints)),
        found.python,
        _pin(files, found),
        found.project,
        tuple(found.notices),
        django_settings,
        read_test_options(files),
        _python_folders(files, in_tree),
        read_ci_pythons(files),
        tuple(found.members),
        tuple(sorted({*(name for name, folder in in_tree.folders.items() if folder), *in_tree.elsewhere})),
        tuple(dict.fromkeys(found.overrides)),
    )


def folders_before_installed(files: Files) -> tuple[str, ...]:
    """Return the folders that Python looks into before installed packages; without those that would hide its own modules."""
    hiding = {f"{name}{end}" for name in sys.stdlib_module_names for end in (".py", "/__init__.py")}
    folders = _python_folders(files, read_in_tree(files))
    return tuple(folder for folder in folders if hiding.isdisjoint(files.below(folder).paths))


def _python_folders(files: Files, in_tree: InTree) -> tuple[str, ...]:
    """Return the folders from which the repository's own code is imported, besides the root and `src`."""
    folders = dict.fromkeys(read_import_folders(files))
    for folder in sorted({folder for folder in in_tree.folders.values() if folder}):
        below = files.below(folder)
        named = list(read_import_folders(below))
        if any(path.startswith("src/") and path.endswith(".py") for path in below.paths):
            named.insert(0, "src")
        folders |= dict.fromkeys(posixpath.join(folder, path) for path in named or [""])
    plain = (folder.rstrip("/") for folder in folders)
    return tuple(folder for folder in plain if PLAIN_FOLDER.fullmatch(folder))


def acceptable_pythons(declared: Declared) -> tuple[str, ...]:
    """Return the minor versions of Python on which the tests should run, best first; empty if the repository names none.

    A version that it pins comes before the range that it accepts, and this before what its workflows name.
    """
    return _minor(declared.python_pin) or pythons_in(declared.python or "") or declared.python_ci


def read_required_pythons(files: Files) -> tuple[str, ...]:
    """Return the minor versions of Python on which results count, best first; empty if the repository names none.

    If it accepts a range, results on another version than the pinned one count as well.
    """
    found = ScanResult()
    read_project(files, found)
    if found.python is None:
        read_locks(files, found)
    return pythons_in(found.python or "") or _minor(_pin(files, found)) or read_ci_pythons(files)


def _pin(files: Files, found: ScanResult) -> str | None:
    """Return the version of Python that the repository requests."""
    first = ((files.text(".python-version", found) or "").split() or [""])[0]
    pin = re.fullmatch(r"(?:cpython-)?(3\.\d+(?:\.\d+)?)", first)
    if first and pin is None:
        found.notice(".python-version", f"'{first[:40]}' is not a version of CPython 3: ignored")
    return pin[1] if pin else None


def _minor(pin: str | None) -> tuple[str, ...]:
    return () if pin is None else (minor_of(pin),)


def with_named(declared: Declared, requirements: Sequence[str]) -> Declared:
    """Return the contents of an environment with the requirements that a Dockerfile names; all of them are optional."""
    known = {*map(name_of, declared.requirements), *declared.not_of_index}
    if declared.project is not None:
        known.add(canonicalize_name(declared.project.name))
    more = {word for word in requirements if name_of(word) not in known}
    return replace(
        declared,
        requirements=tuple(sorted({*declared.requirements, *more})),
        optional=tuple(sorted({*declared.optional, *more})),
    )


def _scan(files: Files, found: ScanResult) -> ScanResult:
    """Add what the files declare, besides what only nox names."""
    read_project(files, found)
    for path in requirements_files(files, found.groups):
        read_requirements(files, path, found)
    read_tox(files, found)
    return found


def _add_members(files: Files, found: ScanResult, names: Iterable[str], *, own_extras: bool) -> None:
    """Add what the repository's own packages declare: those with these names, and those that are required.

    The project itself is read already. With `own_extras`, its extras are added that anything asks for, such as a group
    (`own[extra]`).
    """
    done = set[tuple[str, frozenset[str]]]()
    todo = [*names, *found.asked]
    while todo:
        name = todo.pop()
        folder, extras = found.in_tree.folders[name], frozenset(found.asked.get(name, ()))
        if (folder, extras) in done or not (folder or (own_extras and extras)):
            continue
        done.add((folder, extras))
        named = found.named | extras
        if folder:
            inner = ScanResult(named=named, groups=found.groups, in_tree=found.in_tree, asked=found.asked)
            read_project(files.below(folder), inner)
            found.take(inner, folder)
        else:
            read_project(files, replace(found, named=named))
        todo += found.asked


def _comes_along(line: str) -> bool:
    """Return whether every sandbox has this requirement already: it is part of our own pytest."""
    requirement = Requirement(line.partition(" --hash")[0])
    ours = {canonicalize_name(name) for name in DISTRIBUTIONS}
    if canonicalize_name(requirement.name) not in ours or requirement.extras:
        return False
    return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)


def read_locks(files: Files, found: ScanResult) -> None:
    """Add the versions of the first lock file that is there as constraints, whatever requires the packages."""
    name = next((name for name in LOCKS if name in files.paths), UV)
    lock = files.toml(name, found)
    python = lock.get("requires-python") or mapping(lock, "metadata").get("python-versions")
    if isinstance(python, str):
        with contextlib.suppress(NotSimple):  # only Poetry offers alternatives
            found.accept_python(specifier(python))
    packages = map(mapping, values_at(lock, "packages.*" if name == PYLOCK else "package.*"))
    by_name: dict[str, dict[str, dict[str, Any]]] = {}  # then by version
    for package in packages:
        if _from_index(package, name):
            by_name.setdefault(package["name"], {}).setdefault(package["version"], package)
    for package_name, versions in by_name.items():
        ends = {version: f" ; {_marker(package, name)}" for version, package in versions.items()}
        if len(versions) == 1:
            ends = dict.fromkeys(versions, "")
        elif " ; " in ends.values() or lock.get("conflicts"):  # no marker tells uv's exclusive groups apart
            found.notice(name, f"{package_name} is locked at several versions: no version is fixed")
            continue
        for version, end in ends.items():
            found.constrain(f"{package_name}=={version}{end}", name)


def _from_index(package: dict[str, Any], lock: str) -> bool:
    """Return whether a locked package is one version from a package index."""
    version = package.get("version")
    if not isinstance(package.get("name"), str) or not isinstance(version, str) or "+" in version:
        return False  # only one special index has local versions (with +)
    source = mapping(package.get("source"))
    if lock == UV:
        return "registry" in source
    return source.get("type") in (None, "legacy") and not ELSEWHERE & package.keys()


def _marker(package: dict[str, Any], lock: str) -> str:
    """Return the condition under which this one of several locked versions counts."""
    if lock == UV:
        return " or ".join(f"({marker})" for marker in strings(package.get("resolution-markers")))
    markers = package.get("markers")
    if isinstance(markers, dict):  # by group
        return " or ".join(f"({m})" for m in dict.fromkeys(markers.values()) if isinstance(m, str))
    return markers if isinstance(markers, str) else ""
