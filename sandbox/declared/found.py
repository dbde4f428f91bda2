"""What the readers of this package share: the repository's files, and what they found in them."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

WANTED_GROUPS = frozenset({"test", "tests", "testing", "dev", "develop", "development"})
"""Names of extras and groups that are installed besides a project's own dependencies."""
MOST_TEXT = 4 << 20  # bytes of a file that is read: lock files of large projects have two million


@dataclass(frozen=True)
class Project:
    """The project itself, as its metadata would have it. entry_points: group -> name -> object."""

    name: str
    version: str
    entry_points: dict[str, dict[str, str]]


@dataclass
class Found:
    """What has been found so far.

    requirements, constraints: lines as pip takes them, mapped to the file they are from. python: what the project
    accepts (a specifier), python_pin: the one version it asks for. notices: what was left out and why.
    """

    requirements: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    python_pin: str | None = None
    project: Project | None = None
    notices: list[str] = field(default_factory=list)

    def notice(self, source: str, text: str) -> None:
        """Note what is left out."""
        line = f"{source}: {text}"
        if line not in self.notices:
            self.notices.append(line)

    def require(self, line: str, source: str, options: str = "") -> None:
        """Add a requirement; what is no plain name from an index is left out with a notice."""
        requirement = self._plain(line, source, "requirement")
        if requirement is None:
            return
        if self.project is not None and canonicalize_name(requirement.name) == canonicalize_name(
            self.project.name
        ):
            return  # the project itself: its files are on the path
        self.requirements.setdefault(str(requirement) + options, source)

    def constrain(self, line: str, source: str) -> None:
        """Add a version to hold to; one that names no version of an index is left out with a notice."""
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
        """Note which Pythons the project accepts; the first file that says so counts."""
        if self.python is None and specifier:
            self.python = specifier


class Files:
    """The repository's plain files, by path; links are not followed and do not count."""

    def __init__(self, paths: Collection[str], read: Callable[[str], bytes]) -> None:
        self.paths = frozenset(paths)
        self._read = read

    def text(self, path: str, found: Found) -> str | None:
        """A file's text; None if there is no such file, or it is no text (noted)."""
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

    def toml(self, path: str, found: Found) -> dict[str, Any]:
        """A TOML file's tables; empty if there is none, or it is broken (noted)."""
        text = self.text(path, found)
        if text is None:
            return {}
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            found.notice(path, f"not valid TOML ({str(error).rstrip('.')}): not read")
            return {}

    def ini(self, path: str, found: Found) -> configparser.ConfigParser:
        """An INI file's sections; none if there is no such file, or it is broken (noted)."""
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        text = self.text(path, found)
        try:
            parser.read_string(text or "")
        except configparser.Error as error:
            found.notice(path, f"not valid ({str(error).splitlines()[0]}): not read")
            return configparser.ConfigParser(interpolation=None)
        return parser


def table(value: object, *keys: str) -> dict[str, Any]:
    """The table below `keys`; empty where something else, or nothing, stands there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """The strings of a list; nothing where it is something else."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def wanted(name: str) -> bool:
    """Whether an extra or a group of this name is installed."""
    return canonicalize_name(name) in WANTED_GROUPS
