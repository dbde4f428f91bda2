"""Read lock files as constraints: they fix the versions of installed packages, whatever requires those."""

from __future__ import annotations

from typing import Any

from m3agent.sandbox.declared.types import Files, ScanResult, strings, table

UV, POETRY = "uv.lock", "poetry.lock"


def read_locks(files: Files, found: ScanResult) -> None:
    """Add the versions of uv.lock, otherwise those of poetry.lock."""
    name = UV if UV in files.paths else POETRY
    listed = files.toml(name, found).get("package")
    packages = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
    by_name: dict[str, list[dict[str, Any]]] = {}
    for package in packages:
        if _from_index(package, name):
            by_name.setdefault(package["name"], []).append(package)
    for package_name, versions in by_name.items():
        for package in versions:
            marker = _marker(package, name) if len(versions) > 1 else ""
            if len(versions) > 1 and not marker:
                found.notice(name, f"{package_name} is locked at several versions: no version is fixed")
                break
            line = f"{package_name}=={package['version']}" + (f" ; {marker}" if marker else "")
            found.constrain(line, name)


def _from_index(package: dict[str, Any], lock: str) -> bool:
    """Return whether a locked package is one version from a package index."""
    version = package.get("version")
    if not isinstance(package.get("name"), str) or not isinstance(version, str) or "+" in version:
        return False  # only one special index has local versions (with +)
    source = table(package.get("source"))
    if lock == UV:
        return "registry" in source
    return source.get("type") in (None, "legacy")


def _marker(package: dict[str, Any], lock: str) -> str:
    """Return the condition under which this one of several locked versions counts."""
    if lock == UV:
        return " or ".join(f"({marker})" for marker in strings(package.get("resolution-markers")))
    markers = package.get("markers")
    if isinstance(markers, dict):  # by group
        return " or ".join(f"({m})" for m in dict.fromkeys(markers.values()) if isinstance(m, str))
    return markers if isinstance(markers, str) else ""
