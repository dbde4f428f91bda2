"""Read from which folders of the repository its packages are imported, besides the root and `src`."""

from __future__ import annotations

import posixpath
import re

from m3agent.sandbox.declared.pyproject import SOURCE
from m3agent.sandbox.declared.setup_files import CFG, setup_arguments
from m3agent.sandbox.declared.types import Files, ScanResult, texts_at

PLAIN = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
FOLDERS = (
    *("setuptools.package-dir.", "setuptools.packages.find.where"),
    *("maturin.python-source", "pdm.build.package-dir", "uv.build-backend.module-root"),
    *("poetry.packages.*.from", "hatch.build.sources", "hatch.build.targets.wheel.sources"),
)
"""Places in pyproject.toml's tables of tools that name the folders. The empty key of `package-dir` is for all packages."""
PACKAGES = ("hatch.build.targets.wheel.packages", "scikit-build.wheel.packages")
"""Places that name packages in such folders."""


def read_import_folders(files: Files) -> tuple[str, ...]:
    """Return the sorted folders that the build's configuration names as the place of packages, and that exist."""
    tool = files.toml(SOURCE).get("tool")
    config = files.ini(CFG)
    named = [*texts_at(tool, *FOLDERS), config.get("options.packages.find", "where", fallback="")]
    named += [posixpath.dirname(path.rstrip("/")) for path in texts_at(tool, *PACKAGES)]
    for line in config.get("options", "package_dir", fallback="").splitlines():
        package, _, folder = line.partition("=")
        named += [] if package.strip() else [folder.strip()]
    named += texts_at(setup_arguments(files, ScanResult())[1], "package_dir.")
    folders = {posixpath.normpath(folder) for folder in named if folder}
    return tuple(sorted(folder for folder in folders - {".", "src"} if _is_folder(files, folder)))


def _is_folder(files: Files, folder: str) -> bool:
    return bool(PLAIN.fullmatch(folder)) and any(path.startswith(f"{folder}/") for path in files.paths)
