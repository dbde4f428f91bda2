"""Read from which folders of the repository its packages are imported, besides the root and `src`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from m3agent.sandbox.declared.pyproject import SOURCE
from m3agent.sandbox.declared.setup_files import CFG, setup_arguments
from m3agent.sandbox.declared.types import Files, ScanResult, strings, table

PLAIN = re.compile(r"[\w.-]+(?:/[\w.-]+)*")


def read_import_folders(files: Files) -> tuple[str, ...]:
    """Return the sorted folders that the build's configuration names as the place of packages, and that exist."""
    found = ScanResult()  # `read_declared` reads the same files and gives the notices
    tool = table(files.toml(SOURCE, found), "tool")
    config = files.ini(CFG, found)
    named = [*_in_tool(tool), config.get("options.packages.find", "where", fallback="")]
    for line in config.get("options", "package_dir", fallback="").splitlines():
        package, _, folder = line.partition("=")
        named += [] if package.strip() else [folder.strip()]
    named += _root(table(setup_arguments(files, found)[1].get("package_dir")))
    folders = {posixpath.normpath(folder) for folder in named if folder}
    return tuple(sorted(folder for folder in folders - {".", "src"} if _is_folder(files, folder)))


def _in_tool(tool: dict[str, Any]) -> Iterator[str]:
    setuptools, hatch = table(tool, "setuptools"), table(tool, "hatch", "build")
    yield from _root(table(setuptools, "package-dir"))
    yield from strings(table(setuptools, "packages", "find").get("where"))
    yield from strings(
        [
            table(tool, "maturin").get("python-source"),
            table(tool, "pdm", "build").get("package-dir"),
            table(tool, "uv", "build-backend").get("module-root"),
        ]
    )
    packages = table(tool, "poetry").get("packages")
    yield from strings([table(one).get("from") for one in (packages if isinstance(packages, list) else [])])
    for target in (hatch, table(hatch, "targets", "wheel")):
        yield from strings(target.get("sources"))
    whole = [
        table(hatch, "targets", "wheel").get("packages"),
        table(tool, "scikit-build", "wheel").get("packages"),
    ]
    yield from (posixpath.dirname(path.rstrip("/")) for paths in whole for path in strings(paths))


def _root(folders: dict[str, Any]) -> list[str]:
    """Return the folder of all packages in setuptools' `package_dir`."""
    return strings([folders.get("")])


def _is_folder(files: Files, folder: str) -> bool:
    return bool(PLAIN.fullmatch(folder)) and any(path.startswith(f"{folder}/") for path in files.paths)
