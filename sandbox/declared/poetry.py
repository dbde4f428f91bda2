"""Read Poetry's own tables in pyproject.toml, with its notation of versions."""

from __future__ import annotations

import re
from typing import Any

from m3agent.sandbox.declared.types import PYPROJECT, ScanResult
from m3agent.util.json_value import mapping, strings

CARET = re.compile(r"\^\s*(\d+(?:\.\d+)*)([^\s,]*)")
TILDE = re.compile(r"~(?!=)\s*(\d+(?:\.\d+)*)([^\s,]*)")
BARE = re.compile(r"=?\s*(\d[^\s,]*)")


class NotSimple(ValueError):
    """A version constraint that has no equivalent in a requirement line."""


def specifier(constraint: str) -> str:
    """Convert a Poetry version constraint to a version specifier.

    Raises:
        NotSimple: It offers alternatives.
    """
    if "|" in constraint:
        raise NotSimple(constraint)
    text = re.sub(r"([<>=!~^])\s+", r"\1", constraint.strip())
    parts = [part for part in re.split(r"[,\s]+", text) if part]
    return ",".join(filter(None, map(_part, parts)))


def _part(part: str) -> str:
    if part == "*":
        return ""
    if match := CARET.fullmatch(part):
        return f">={match[1]}{match[2]},<{_above(match[1], _caret_digit(match[1]))}"
    if match := TILDE.fullmatch(part):
        return f">={match[1]}{match[2]},<{_above(match[1], min(1, match[1].count('.')))}"
    if match := BARE.fullmatch(part):
        return f"=={match[1]}"
    return part


def _caret_digit(version: str) -> int:
    """Return the index of the number that a caret fixes: the first that is not 0, otherwise the last."""
    numbers = version.split(".")
    return next((at for at, number in enumerate(numbers) if int(number)), len(numbers) - 1)


def _above(version: str, at: int) -> str:
    numbers = [int(number) for number in version.split(".")]
    return ".".join(map(str, [*numbers[:at], numbers[at] + 1]))


def read_poetry(poetry: dict[str, Any], found: ScanResult) -> None:
    """Add the requirements of `[tool.poetry]`: dependencies, and test and development groups and extras."""
    dependencies = mapping(poetry, "dependencies")
    extras = {
        name
        for extra, names in mapping(poetry, "extras").items()
        if found.wants(extra)
        for name in strings(names)
    }
    python = dependencies.get("python")
    if isinstance(python, str):
        try:
            found.accept_python(specifier(python))
        except NotSimple:
            found.notice(PYPROJECT, f"Python '{python}' offers alternatives: any version is used")
    tables = [dependencies, mapping(poetry, "dev-dependencies")]
    tables += [
        mapping(group, "dependencies")
        for name, group in mapping(poetry, "group").items()
        if found.wants(name)
    ]
    for dependency_table in tables:
        for name, wish in dependency_table.items():
            for one in wish if isinstance(wish, list) else [wish]:
                if name != "python":
                    _dependency(name, one, extras, found)


def _dependency(name: str, wish: object, extras: set[str], found: ScanResult) -> None:
    details = {"version": wish} if isinstance(wish, str) else wish
    if not isinstance(details, dict):
        found.notice(PYPROJECT, f"the dependency {name} cannot be parsed: left out")
        return
    if details.get("optional") and name not in extras:
        return
    chosen = f"[{','.join(strings(details.get('extras')))}]" if strings(details.get("extras")) else ""
    if details.keys() & {"git", "path", "url"}:
        found.require(f"{name}{chosen}", PYPROJECT)  # no index is asked: its source is known
        return
    if not isinstance(details.get("version", "*"), str):
        found.notice(PYPROJECT, f"the dependency {name} cannot be parsed: left out")
        return
    try:
        versions = specifier(details.get("version", "*"))
    except NotSimple:
        found.notice(PYPROJECT, f"{name} '{details['version']}' offers alternatives: any version is used")
        versions = ""
    markers = _markers(details)
    found.require(f"{name}{chosen}{versions}" + (f" ; {markers}" if markers else ""), PYPROJECT)


def _markers(details: dict[str, Any]) -> str:
    parts = []
    if isinstance(details.get("markers"), str):
        parts.append(f"({details['markers']})")
    if isinstance(details.get("platform"), str):
        parts.append(f'sys_platform == "{details["platform"]}"')
    python = details.get("python")
    if isinstance(python, str) and "|" not in python:
        for one in specifier(python).split(","):
            if match := re.fullmatch(r"([<>=!~]+)(\d[\d.*]*)", one):
                name = "python_version" if match[2].count(".") < 2 else "python_full_version"
                parts.append(f'{name} {match[1]} "{match[2]}"')
    return " and ".join(parts)
