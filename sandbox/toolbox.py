"""What a sandbox needs to run tests and an image may lack: our own pytest, as a tar archive.

Its compiled files go along where the sandbox's Python is of our kind: a test run then starts twice as fast.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import io
import sys
import tarfile
from collections.abc import Iterator
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
BYTECODE = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
"""Names our kind of bytecode; `PROBE` prints the sandbox's, then the wanted modules it lacks."""
PROBE = """\
import importlib.util as u, sys
print(f"{sys.implementation.cache_tag}-{u.MAGIC_NUMBER.hex()}", *[m for m in sys.argv[1:] if u.find_spec(m) is None])
"""


@functools.cache
def modules_archive(modules: tuple[str, ...], *, compiled: bool) -> bytes:
    """An uncompressed tar of these modules' files, as installed beside us."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for module in modules:
            for name, source in _files(module, compiled):
                info = tarfile.TarInfo(name)
                status = source.stat()
                # bytecode is valid for a source of this size and time
                info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o644
                with source.open("rb") as content:
                    archive.addfile(info, content)
    return buffer.getvalue()


def _files(module: str, compiled: bool) -> Iterator[tuple[str, Path]]:
    """(name in the archive, path here) of a module's sources and metadata, and of its bytecode if wanted."""
    for file in importlib.metadata.files(DISTRIBUTIONS[module]) or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # console scripts; bytecode is looked for below
        if file.suffix != ".py" and ".dist-info" not in str(file.parent):
            continue
        source = Path(str(file.locate()))
        yield str(file), source
        cache = Path(importlib.util.cache_from_source(str(source)))
        if compiled and file.suffix == ".py" and cache.exists():
            yield str(Path(file).parent / "__pycache__" / cache.name), cache
