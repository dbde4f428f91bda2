"""What a sandbox needs to run tests and an image may lack: our own pytest.

Its compiled files go along where the sandbox's Python is of our kind: a test run then starts twice as fast.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
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
def module_files(modules: tuple[str, ...], *, compiled: bool) -> tuple[tuple[str, int, str, bytes], ...]:
    """These modules' files as installed beside us, as `Sandbox` lays them down: path, git's mode, no id, content."""
    return tuple(
        (name, 0o100644, "", content) for module in modules for name, content in _files(module, compiled)
    )


def _files(module: str, compiled: bool) -> Iterator[tuple[str, bytes]]:
    """(name, content) of a module's sources and metadata, and of its bytecode if wanted."""
    for file in importlib.metadata.files(DISTRIBUTIONS[module]) or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # console scripts; bytecode is looked for below
        if file.suffix != ".py" and ".dist-info" not in str(file.parent):
            continue
        source = Path(str(file.locate()))
        content = source.read_bytes()
        yield str(file), content
        cache = Path(importlib.util.cache_from_source(str(source)))
        if compiled and file.suffix == ".py" and cache.exists():
            name = str(Path(file).parent / "__pycache__" / cache.name)
            yield name, _unchecked(cache.read_bytes(), content)


def _unchecked(bytecode: bytes, source: bytes) -> bytes:
    """Bytecode that holds whatever the time of its source: of the kind that PEP 552 calls unchecked."""
    return bytecode[:4] + (1).to_bytes(4, "little") + importlib.util.source_hash(source) + bytecode[16:]
