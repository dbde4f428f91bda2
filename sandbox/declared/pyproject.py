"""Read pyproject.toml: the project's dependencies, its extras and groups for tests, and its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.poetry import read_poetry
from m3agent.sandbox.declared.requirements import read_named_file
from m3agent.sandbox.declared.types import PYPROJECT, Files, ScanResult, texts_at
from m3agent.util.json_value import mapping, strings

HATCH_ENVIRONMENTS = {"default", "hatch-test"}
UNKNOWN_VERSION = "0+unknown"
OWN_VERSION = re.compile(r"\s*[=~><]=\s*\{\{.*\}\}")
"""A bound with a version that the build inserts, as in `own-core=={{ version }}`."""


def read_pyproject(files: Files, found: ScanResult) -> None:
    """Add the requirements of pyproject.toml."""
    whole = files.toml(PYPROJECT, found)
    project, tool = mapping(whole, "project"), mapping(whole, "tool")
    _name_project(project, mapping(tool, "poetry"), found)
    if isinstance(project.get("requires-python"), str):
        found.accept_python(project["requires-python"])
    found.require_all(texts_at(whole, "project.dependencies", "tool.uv.dev-dependencies"), PYPROJECT)
    _extras(mapping(project, "optional-dependencies"), found)
    for hook in mapping(tool, "hatch", "metadata", "hooks").values():
        found.require_all(_without_own_version(texts_at(hook, "dependencies")), PYPROJECT)
        extras = mapping(hook, "optional-dependencies").items()
        _extras({name: _without_own_version(strings(lines)) for name, lines in extras}, found)
    _dynamic(files, project, mapping(tool, "setuptools", "dynamic"), found)
    for line in texts_at(tool, "uv.constraint-dependencies"):
        found.constrain(line, PYPROJECT)
    for line in texts_at(tool, "uv.override-dependencies"):
        found.override(line, PYPROJECT)
    groups = mapping(whole, "dependency-groups")
    for name in groups:
        if found.wants(name, strings(groups[name])):
            _group(groups, name, found, set())
    for name, lines in mapping(tool, "pdm", "dev-dependencies").items():
        if found.wants(name):
            found.require_all((line for line in strings(lines) if not line.startswith("-e ")), PYPROJECT)
    for name, environment in mapping(tool, "hatch", "envs").items():
        if found.wants(name) or name in HATCH_ENVIRONMENTS:
            found.require_all(texts_at(environment, "dependencies", "extra-dependencies"), PYPROJECT)
    read_poetry(mapping(tool, "poetry"), found)


def _name_project(project: dict[str, Any], poetry: dict[str, Any], found: ScanResult) -> None:
    """Record the project's name, version and entry points, if it has a name."""
    name, version = (project.get(key) or poetry.get(key) for key in ("name", "version"))
    if not isinstance(name, str):
        return
    entry_points = {
        "console_scripts": {**mapping(poetry, "scripts"), **mapping(project, "scripts")},
        "gui_scripts": mapping(project, "gui-scripts"),
        **mapping(poetry, "plugins"),
        **mapping(project, "entry-points"),
    }
    plain = {
        str(group): {str(key): value for key, value in mapping(points).items() if isinstance(value, str)}
        for group, points in entry_points.items()
    }
    found.name_project(name, version if isinstance(version, str) else UNKNOWN_VERSION, plain)


def _extras(extras: dict[str, Any], found: ScanResult) -> None:
    """Add the extras for tests and development."""
    for name, value in extras.items():
        lines = strings(value)
        if found.wants(name, lines):
            found.require_all(lines, PYPROJECT)


def _without_own_version(lines: Iterable[str]) -> list[str]:
    return [OWN_VERSION.sub("", line) for line in lines]


def _group(groups: dict[str, Any], name: str, found: ScanResult, seen: set[str]) -> None:
    """Add a dependency group and the groups that it includes."""
    if name in seen:
        return
    seen.add(name)
    items = groups.get(name)
    for item in items if isinstance(items, list) else []:
        if isinstance(item, str):
            found.require(item, PYPROJECT)
        elif isinstance(include := mapping(item).get("include-group"), str):
            normal = canonicalize_name(include)
            matching = [other for other in groups if canonicalize_name(other) == normal]
            if not matching:
                found.notice(
                    PYPROJECT, f"the group {name} includes {include}, which does not exist: left out"
                )
            for other in matching:
                _group(groups, other, found, seen)


def _dynamic(files: Files, project: dict[str, Any], dynamic: dict[str, Any], found: ScanResult) -> None:
    """Add the dependencies that setuptools takes from requirements files."""
    listed = strings(project.get("dynamic"))
    tables = [mapping(dynamic, "dependencies")] if "dependencies" in listed else []
    if "optional-dependencies" in listed:
        tables += [t for n, t in mapping(dynamic, "optional-dependencies").items() if found.wants(n)]
    for one in tables:
        for path in texts_at(one, "file"):
            read_named_file(files, path, PYPROJECT, found)
