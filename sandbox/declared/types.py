"""Shared types of this package's readers: the repository's files, and the results."""

from __future__ import annotations

import configparser
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.toml_text import parse_toml

TEST_GROUPS = frozenset({"test", "tests", "testing"})
WANTED_GROUPS = TEST_GROUPS | {"dev", "develop", "development"}
"""Names of extras and groups that are installed in addition to a project's own dependencies."""
MOST_TEXT = 4 << 20  # largest file that is read, in bytes: lock files of large projects have two million


@dataclass(frozen=True)
class DeclaredProject:
    """The project itself, as in its metadata; `entry_points` maps group to name to object."""

    name: str
    version: str
    entry_points: dict[str, dict[str, str]]


@dataclass
class ScanResult:
    """Results so far.

    Attributes:
        requirements: Requirement lines in pip's format, each with the file that it came from.
        constraints: Constraint lines in pip's format, each with the file that it came from.
        python: Specifier of the Python versions that the project accepts.
        python_pin: The one Python version that it requests.
        project: The project itself.
        notices: What was left out and why.
        named: Normalized names of the extras and groups that the repository's test runs install.
        groups: Names of the other extras and groups that are installed.
    """

    requirements: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    python_pin: str | None = None
    project: DeclaredProject | None = None
    notices: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    groups: frozenset[str] = WANTED_GROUPS

    def wants(self, name: str) -> bool:
        """Return whether an extra or group with this name is installed."""
        return canonicalize_name(name) in self.groups | self.named

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
        if self.project is not None and canonicalize_name(requirement.name) == canonicalize_name(
            self.project.name
        ):
            return  # the project itself: its files are on PYTHONPATH
        self.requirements.setdefault(str(requirement) + options, source)

    def constrain(self, line: str, source: str) -> None:
        """Add a version constraint; one that names no version of an index is left out with a notice."""
        requirement = self._plain(line, source, "constraint")
        if requirement is not None:
            self.constraints.setdefault(str(requirement), source)

    def _plain(self, line: str, source: str, kind: str) -> Requirement | None:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            self.notice(source, f"'{line[:80]}' is not a {kind}: left out")
            return None
        if requirement.url is not None:
            self.notice(source, f"{requirement.name} comes from an address, not from an index: left out")
            return None
        return requirement

    def accept_python(self, specifier: str | None) -> None:
        """Record which Python versions the project accepts; the first file that specifies them counts."""
        if self.python is None and specifier:
            self.python = specifier


class Files:
    """The repository's plain files by path; symbolic links are left out."""

    def __init__(self, paths: Collection[str], read: Callable[[str], bytes]) -> None:
        self.paths = frozenset(paths)
        self._read = read

    def text(self, path: str, found: ScanResult) -> str | None:
        """Return a file's text, or None if it is missing or not readable as text (with a notice)."""
        if path not in self.paths:
            return None
        content = self._read(path)
        if len(content) > MOST_TEXT:
            found.notice(path, f"larger than {MOST_TEXT >> 20} MiB: not read")
            return None
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            found.notice(path, "not UTF-8 text: not read")
            return None

    def toml(self, path: str, found: ScanResult) -> dict[str, Any]:
        """Return a TOML file's tables; empty if it is missing or invalid (with a notice)."""
        text = self.text(path, found)
        if text is None:
            return {}
        try:
            return parse_toml(text)
        except ValueError as error:
            found.notice(path, f"not valid TOML ({error}): not read")
            return {}

    def ini(self, path: str, found: ScanResult) -> configparser.ConfigParser:
        """Return an INI file's sections; empty if it is missing or invalid (with a notice)."""
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        text = self.text(path, found)
        try:
            parser.read_string(text or "")
        except configparser.Error as error:
            found.notice(path, f"not valid ({str(error).splitlines()[0]}): not read")
            return configparser.ConfigParser(interpolation=None)
        return parser


def table(value: object, *keys: str) -> dict[str, Any]:
    """Return the table below `keys`; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """Return the strings of a list; empty if the value is not a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
