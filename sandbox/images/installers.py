"""The installers that a build gets from this machine, and what they say about their default index."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

from m3agent.sandbox.backends.pip_wheels import pip_wheels

DEFAULT_INDEX = re.compile(r'PackageIndex\(\s*"https://([\w.-]+)/?",\s*file_storage_domain="([\w.-]+)"')
"""In pip's own source: the host of the index that pip and uv use by default, and the host of its files."""


def installers() -> dict[str, bytes]:
    """Return the installers for a build, by file name: this machine's uv, if it has one, and a wheel of pip."""
    uv = shutil.which("uv")
    wheels = {wheel.name: wheel.read_bytes() for wheel in pip_wheels()}
    return wheels if uv is None else {**wheels, "uv": Path(uv).read_bytes()}


def default_index_hosts() -> tuple[str, ...]:
    """Return the hosts of the index that pip and uv use without any configuration; empty if pip does not say."""
    for wheel in pip_wheels():
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read("pip/_internal/models/index.py").decode()
        if found := DEFAULT_INDEX.search(source):
            return found.groups()
    return ()
