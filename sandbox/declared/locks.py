"""Read lock files as constraints: they fix the versions of installed packages, whatever requires those."""

from __future__ import annotations

import contextlib
from typing import Any

from m3agent.sandbox.declared.poetry import NotSimple, specifier
from m3agent.sandbox.declared.types import Files, ScanResult, strings, table

UV, PYLOCK = "uv.lock", "pylock.toml"
LOCKS = (UV, "poetry.lock", "pdm.lock", PYLOCK)
ELSEWHERE = {"git", "path", "url", "vcs", "directory", "archive"}
"""Keys of packages that come from an address or a folder."""


def read_locks(files: Files, found: ScanResult) -> None:
    """Add the versions of the first lock file that is there."""
    name = next((name for name in LOCKS if name in files.paths), UV)
    lock = files.toml(name, found)
    python = lock.get("requires-python") or table(lock, "metadata").get("python-versions")
    if isinstance(python, str):
        with contextlib.suppress(NotSimple):  # only Poetry offers alternatives
            found.accept_python(specifier(python))
    listed = lock.get("packages" if name == PYLOCK else "package")
    packages = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
    by_name: dict[str, dict[str, dict[str, Any]]] = {}  # then by version
    for package in packages:
        if _from_index(package, name):
            by_name.setdefault(package["name"], {}).setdefault(package["version"], package)
    for package_name, versions in by_name.items():
        for package in versions.values():
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
    return source.get("type") in (None, "legacy") and not ELSEWHERE & package.keys()


def _marker(package: dict[str, Any], lock: str) -> str:
    """Return the condition under which this one of several locked versions counts."""
    if lock == UV:
        return " or ".join(f"({marker})" for marker in strings(package.get("resolution-markers")))
    markers = package.get("markers")
    if isinstance(markers, dict):  # by group
        return " or ".join(f"({m})" for m in dict.fromkeys(markers.values()) if isinstance(m, str))
    return markers if isinstance(markers, str) else ""
