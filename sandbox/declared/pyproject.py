"""Read pyproject.toml: the project's dependencies, its extras and groups for tests, and its metadata."""

from __future__ import annotations

from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.poetry import read_poetry
from m3agent.sandbox.declared.requirements import read_named_file
from m3agent.sandbox.declared.types import DeclaredProject, Files, ScanResult, strings, table

SOURCE = "pyproject.toml"
HATCH_ENVIRONMENTS = {"default", "hatch-test"}
UNKNOWN_VERSION = "0+unknown"


def read_pyproject(files: Files, found: ScanResult) -> None:
    """Add the requirements of pyproject.toml."""
    whole = files.toml(SOURCE, found)
    project, tool = table(whole, "project"), table(whole, "tool")
    found.project = found.project or project_of(project, table(tool, "poetry"))
    if isinstance(project.get("requires-python"), str):
        found.accept_python(project["requires-python"])
    for line in strings(project.get("dependencies")):
        found.require(line, SOURCE)
    _extras(table(project, "optional-dependencies"), found)
    _dynamic(files, project, table(tool, "setuptools", "dynamic"), found)
    groups = table(whole, "dependency-groups")
    for name in groups:
        if found.wants(name):
            _group(groups, name, found, set())
    for line in strings(table(tool, "uv").get("dev-dependencies")):
        found.require(line, SOURCE)
    for name, lines in table(tool, "pdm", "dev-dependencies").items():
        for line in strings(lines) if found.wants(name) else []:
            if not line.startswith("-e "):
                found.require(line, SOURCE)
    for name, environment in table(tool, "hatch", "envs").items():
        if found.wants(name) or name in HATCH_ENVIRONMENTS:
            for key in ("dependencies", "extra-dependencies"):
                for line in strings(table(environment).get(key)):
                    found.require(line, SOURCE)
    read_poetry(table(tool, "poetry"), found)


def project_of(project: dict[str, Any], poetry: dict[str, Any]) -> DeclaredProject | None:
    """Return the project's name, version and entry points; None if it has no name."""
    name = project.get("name") or poetry.get("name")
    if not isinstance(name, str):
        return None
    version = project.get("version") or poetry.get("version")
    entry_points = {
        "console_scripts": {**table(poetry, "scripts"), **table(project, "scripts")},
        "gui_scripts": table(project, "gui-scripts"),
        **table(poetry, "plugins"),
        **table(project, "entry-points"),
    }
    plain = {
        str(group): {str(key): value for key, value in table(points).items() if isinstance(value, str)}
        for group, points in entry_points.items()
    }
    return DeclaredProject(
        name,
        version if isinstance(version, str) else UNKNOWN_VERSION,
        {group: points for group, points in plain.items() if points},
    )


def _extras(extras: dict[str, Any], found: ScanResult) -> None:
    """Add the extras for tests and development, and those that they include (`project[other]`)."""
    own = canonicalize_name(found.project.name) if found.project else None
    todo = [name for name in extras if found.wants(name)]
    seen: set[str] = set()
    while todo:
        name = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for line in strings(extras.get(name)):
            found.require(line, SOURCE)
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue  # `require` has recorded a notice
            if canonicalize_name(requirement.name) == own:
                asked = {canonicalize_name(extra) for extra in requirement.extras}
                todo += [other for other in extras if canonicalize_name(other) in asked]


def _group(groups: dict[str, Any], name: str, found: ScanResult, seen: set[str]) -> None:
    """Add a dependency group and the groups that it includes."""
    if name in seen:
        return
    seen.add(name)
    items = groups.get(name)
    for item in items if isinstance(items, list) else []:
        if isinstance(item, str):
            found.require(item, SOURCE)
        elif isinstance(include := table(item).get("include-group"), str):
            normal = canonicalize_name(include)
            matching = [other for other in groups if canonicalize_name(other) == normal]
            if not matching:
                found.notice(SOURCE, f"the group {name} includes {include}, which does not exist: left out")
            for other in matching:
                _group(groups, other, found, seen)


def _dynamic(files: Files, project: dict[str, Any], dynamic: dict[str, Any], found: ScanResult) -> None:
    """Add the dependencies that setuptools takes from requirements files."""
    listed = strings(project.get("dynamic"))
    tables = [table(dynamic, "dependencies")] if "dependencies" in listed else []
    if "optional-dependencies" in listed:
        tables += [t for n, t in table(dynamic, "optional-dependencies").items() if found.wants(n)]
    for one in tables:
        named = table(one).get("file")
        for path in [named] if isinstance(named, str) else strings(named):
            read_named_file(files, path, SOURCE, found)
