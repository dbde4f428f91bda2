"""Shared types of this package's readers: the repository's files, and the results."""

from __future__ import annotations

import ast
import bisect
import configparser
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.toml_text import parse_toml
from m3agent.util.json_value import strings
from m3agent.util.python_ast import parse

PYPROJECT = "pyproject.toml"
TEST_GROUPS = frozenset({"test", "tests", "testing"})
WANTED_GROUPS = TEST_GROUPS | {"dev", "develop", "development"}
"""Names of extras and groups that are installed in addition to a project's own dependencies."""
CONTINUED = re.compile(r"\\\r?\n\s*")
MOST_TEXT = 4 << 20  # largest file that is read, in bytes: lock files of large projects have two million


@dataclass(frozen=True)
class DeclaredProject:
    """The project itself, as in its metadata; `entry_points` maps group to name to object."""

    name: str
    version: str
    entry_points: dict[str, dict[str, str]]


@dataclass(frozen=True)
class InTree:
    """The packages that an index is never asked for, by normalized name."""

    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders of those that the repository contains; empty for its root."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Where the others come from, such as `a git repository`."""


@dataclass
class ScanResult:
    """Results so far."""

    requirements: dict[str, str] = field(default_factory=dict)
    """Requirement lines in pip's format, each with the file that it came from."""
    constraints: dict[str, str] = field(default_factory=dict)
    """Constraint lines in pip's format, each with the file that it came from."""
    python: str | None = None
    """Specifier of the Python versions that the project accepts."""
    project: DeclaredProject | None = None
    notices: list[str] = field(default_factory=list)
    """What was left out and why."""
    named: set[str] = field(default_factory=set)
    """Normalized names of the extras and groups that the repository's test runs install."""
    groups: frozenset[str] = WANTED_GROUPS
    """Names of the other extras and groups that are installed."""
    in_tree: InTree = field(default_factory=InTree)
    """The packages that an index is never asked for."""
    pins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Version of each package that is pinned everywhere, by normalized name, and the file that pins it."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """Normalized names of the repository's packages that are required, each with the extras."""
    members: list[DeclaredProject] = field(default_factory=list)
    """The repository's packages besides the project itself."""
    overrides: list[str] = field(default_factory=list)
    """Requirement lines that replace what any package requires."""

    def wants(self, name: str, lines: Iterable[str] = ()) -> bool:
        """Return whether an extra or group with this name and these requirements is installed; pytest is for tests."""
        has_pytest = self.groups >= WANTED_GROUPS and any(name_of(line) == "pytest" for line in lines)
        return has_pytest or canonicalize_name(name) in self.groups | self.named

    def name_project(self, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
        """Record the project itself, with the groups of its entry points; the first file that names it counts."""
        points = {group: points for group, points in groups.items() if points}
        self.project = self.project or DeclaredProject(name, version, points)

    def notice(self, source: str, text: str) -> None:
        """Record that something is left out."""
        line = f"{source}: {text}"
        if line not in self.notices:
            self.notices.append(line)

    def require(self, line: str, source: str, options: str = "") -> None:
        """Add a requirement; anything but a plain name from an index is left out with a notice."""
        requirement = self._plain(line, source, "requirement")
        if requirement is None:
            return
        name = canonicalize_name(requirement.name)
        if name in self.in_tree.folders:  # the project itself is one of them
            self.asked.setdefault(name, set()).update(map(canonicalize_name, requirement.extras))
            return
        where = "an address" if requirement.url else ""
        if where := self.in_tree.elsewhere.get(name, where):
            self.notice(source, f"{requirement.name} comes from {where}, not from an index: left out")
            return
        if not self._is_pinned_elsewhere(requirement, name, source):
            self.requirements.setdefault(str(requirement) + options, source)

    def require_all(self, lines: Iterable[str], source: str) -> None:
        """Add the requirements of several lines."""
        for line in lines:
            self.require(line, source)

    def _is_pinned_elsewhere(self, requirement: Requirement, name: str, source: str) -> bool:
        """Return whether an earlier file pins another version; a tool writes such files for each version of Python."""
        bounds = [str(bound) for bound in requirement.specifier]
        if requirement.marker is not None or len(bounds) != 1 or not bounds[0].startswith("=="):
            return False
        first, where = self.pins.setdefault(name, (bounds[0], source))
        if first != bounds[0] and where != source:
            self.notice(source, f"{name}{bounds[0]} differs from {where}: left out")
            return True
        return False

    def override(self, line: str, source: str) -> None:
        """Replace what any package requires; one that names no version of an index is left out with a notice."""
        requirement = self._plain(line, source, "requirement")
        if requirement is not None and requirement.url is None:
            self.overrides.append(str(requirement))

    def constrain(self, line: str, source: str) -> None:
        """Add a version constraint; one that names no version of an index is left out with a notice."""
        requirement = self._plain(line, source, "constraint")
        if requirement is not None and requirement.url is not None:
            self.notice(source, f"{requirement.name} comes from an address, not from an index: left out")
        elif requirement is not None:
            self.constraints.setdefault(str(requirement), source)

    def _plain(self, line: str, source: str, kind: str) -> Requirement | None:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            self.notice(source, f"'{line[:80]}' is not a {kind}: left out")
            return None
        return requirement

    def take(self, inner: ScanResult, folder: str) -> None:
        """Add what the files of one of the repository's packages declare."""
        for line, source in inner.requirements.items():
            self.requirements.setdefault(line, f"{folder}/{source}")
        self.notices = list(dict.fromkeys([*self.notices, *(f"{folder}/{text}" for text in inner.notices)]))
        if inner.project is not None and inner.project not in self.members:
            self.members.append(inner.project)
        self.accept_python(inner.python)

    def accept_python(self, specifier: str | None) -> None:
        """Record which Python versions the project accepts; the first file that specifies them counts."""
        if self.python is None and specifier:
            self.python = specifier


class Files:
    """The repository's plain files by path; symbolic links are left out."""

    def __init__(
        self,
        paths: Collection[str],
        read: Callable[[str], bytes],
        read_many: Callable[[Sequence[str]], Iterable[bytes]] | None = None,
    ) -> None:
        self.paths = frozenset(paths)
        self._read = read
        self._read_many = read_many or (lambda paths: map(read, paths))

    def below(self, folder: str) -> Files:
        """Return the files in a folder, by their paths relative to it; all files if it is empty."""
        if not folder:
            return self
        first, last = (bisect.bisect_left(self._ordered, f"{folder}{end}") for end in "/0")  # 0 follows /
        inner = [path[len(folder) + 1 :] for path in self._ordered[first:last]]
        return Files(inner, lambda path: self._read(f"{folder}/{path}"))

    @cached_property
    def _ordered(self) -> list[str]:
        return sorted(self.paths)

    def text(self, path: str, found: ScanResult | None = None) -> str | None:
        """Return a file's text, or None if it is missing or not readable as text; `found` gets a notice then."""
        if path not in self.paths:
            return None
        content = self._read(path)
        try:
            if len(content) <= MOST_TEXT:
                return content.decode("utf-8-sig")
            why = f"larger than {MOST_TEXT >> 20} MiB"
        except UnicodeDecodeError:
            why = "not UTF-8 text"
        _not_read(found, path, why)
        return None

    def texts(self, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield files with their texts, read together; bytes that are no text are replaced."""
        for path, content in zip(paths, self._read_many(paths), strict=True):
            yield path, content.decode("utf-8-sig", "replace")

    def toml(self, path: str, found: ScanResult | None = None) -> dict[str, Any]:
        """Return a TOML file's tables; empty if it is missing or invalid. Otherwise like `text`."""
        try:
            return parse_toml(self.text(path, found) or "")
        except ValueError as error:
            _not_read(found, path, f"not valid TOML ({error})")
            return {}

    def ini(self, path: str, found: ScanResult | None = None) -> configparser.ConfigParser:
        """Return an INI file's sections; empty if it is missing or invalid. Otherwise like `text`."""
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string(self.text(path, found) or "")
        except configparser.Error as error:
            _not_read(found, path, f"not valid ({str(error).splitlines()[0]})")
            return configparser.ConfigParser(interpolation=None)
        return parser

    def ini_lines(self, path: str, section: str, *keys: str) -> list[str]:
        """Return the lines of settings of an INI file, with continued lines joined; empty without them."""
        config = self.ini(path)
        texts = (config.get(section, key, fallback="") for key in keys)
        return [line for text in texts for line in CONTINUED.sub(" ", text).splitlines()]

    def python(self, path: str, found: ScanResult | None = None) -> ast.Module:
        """Return a Python file's syntax tree; empty if it is missing or invalid. Otherwise like `text`."""
        try:
            return parse(self.text(path, found) or "")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if found is not None:
                found.notice(path, "not valid Python: ignored")
            return ast.Module([], [])


def _not_read(found: ScanResult | None, path: str, why: str) -> None:
    if found is not None:
        found.notice(path, f"{why}: not read")


def name_of(line: str) -> str:
    """Return the normalized name in a requirement line, which may have hashes; empty if it is no requirement."""
    try:
        return canonicalize_name(Requirement(line.partition(" --hash")[0]).name)
    except InvalidRequirement:
        return ""


def words_of(text: str) -> list[str]:
    """Return the words of a shell's command; if its quotes do not fit, the words between spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def plain_words(words: Iterable[str], with_value: Collection[str]) -> list[str]:
    """Return a command's words without its options, and without the values of those that take the next word."""
    pairs = itertools.pairwise(["", *words])
    return [word for before, word in pairs if not word.startswith("-") and before not in with_value]


def texts_at(tables: object, *places: str) -> Iterator[str]:
    """Yield the strings, and those in lists, at dotted places in tables; `*` stands for all keys or items."""
    for value in values_at(tables, *places):
        yield from strings(value if isinstance(value, list) else [value])


def values_at(tables: object, *places: str) -> Iterator[object]:
    """Yield the values at dotted places in tables; `*` stands for all keys or items."""
    for place in places:
        values = [tables]
        for key in place.split("."):
            values = [inner for value in values for inner in _inside(value, key)]
        yield from values


def _inside(value: object, key: str) -> list[object]:
    if key == "*" and isinstance(value, (dict, list)):
        return list(value.values() if isinstance(value, dict) else value)
    return [value[key]] if isinstance(value, dict) and key in value else []
