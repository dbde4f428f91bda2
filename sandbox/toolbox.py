"""What a sandbox needs to run tests and an image may lack: our own pytest, as a tar archive."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import tarfile
from pathlib import Path

# Module -> distribution. Pure Python, so that one copy serves every image; those it lacks are laid down.
DISTRIBUTIONS = {
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "pygments": "pygments",
}
WANTED_MODULES = tuple(DISTRIBUTIONS)


@functools.cache
def modules_archive(modules: tuple[str, ...]) -> bytes:
    """An uncompressed tar of these modules' source files, as installed beside us."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for module in modules:
            for file in importlib.metadata.files(DISTRIBUTIONS[module]) or []:
                if file.suffix != ".py" and ".dist-info" not in str(file.parent):
                    continue
                if ".." in file.parts:
                    continue  # console scripts
                source = Path(str(file.locate()))
                info = tarfile.TarInfo(str(file))
                info.size = source.stat().st_size
                info.mode = 0o644
                with source.open("rb") as content:
                    archive.addfile(info, content)
    return buffer.getvalue()
