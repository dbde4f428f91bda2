"""The installers that a build gets from this machine, and what they say about their default index."""

from __future__ import annotations

import importlib.util
import re
import shutil
import zipfile
from pathlib import Path

DEFAULT_INDEX = re.compile(r'PackageIndex\(\s*"https://([\w.-]+)/?",\s*file_storage_domain="([\w.-]+)"')
"""In pip's own source: the host of the index that pip and uv use by default, and the host of its files."""


def installers() -> dict[str, bytes]:
    """Return the installers for a build, by file name: this machine's uv, if it has one, and a wheel of pip."""
    uv = shutil.which("uv")
    wheels = {wheel.name: wheel.read_bytes() for wheel in _pip_wheels()}
    return wheels if uv is None else {**wheels, "uv": Path(uv).read_bytes()}


def default_index_hosts() -> tuple[str, ...]:
    """Return the hosts of the index that pip and uv use without any configuration; empty if pip does not say."""
    for wheel in _pip_wheels():
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read("pip/_internal/models/index.py").decode()
        if found := DEFAULT_INDEX.search(source):
            return found.groups()
    return ()


def _pip_wheels() -> list[Path]:
    """Return the wheel of pip that comes with this machine's Python, for images without pip."""
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(spec.origin).parent / "_bundled"] if spec is not None and spec.origin else []
    folders.append(Path("/usr/share/python-wheels"))
    found = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
    return found[:1]
