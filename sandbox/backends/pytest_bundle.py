"""Provide modules that a sandbox needs to run tests and that an image may lack: our own pytest.

If the sandbox's Python has the same bytecode version as ours, the compiled files are copied too: test runs
then start twice as fast.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from m3agent.sandbox.backends.old_pytest import OLD_MODULES, Files, needs_old_pytest, old_pytest_files

# Module -> distribution. They are pure Python, so one copy works in every image; only missing ones are
# copied.
DISTRIBUTIONS = {
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "pygments": "pygments",
}
WANTED_MODULES = tuple(dict.fromkeys((*DISTRIBUTIONS, *OLD_MODULES)))
BYTECODE = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}"
"""Identifies the bytecode version of our Python; `PROBE` prints the sandbox's."""
PROBE = """\
import importlib.util as u, os, sys
own = os.path.dirname(sys.executable)
commands, modules = (words.split() for words in sys.argv[1:])
print("%s-%s" % (sys.implementation.cache_tag, u.MAGIC_NUMBER.hex()), ".".join(map(str, sys.version_info[:3])))
print(*[c for c in commands if os.path.exists(os.path.join(own, c))])
print(*[m for m in modules if u.find_spec(m) is None])
"""
"""Program for the sandbox's python3. Its arguments are two lists of names: commands and modules.

It prints three lines: bytecode and version; the commands beside python3; the missing modules.
"""


def missing_files(python: str, missing: Collection[str], *, compiled: bool) -> Files:
    """Return the files of a pytest that an image needs: our own, or one for an old Python. Blocking; may download.

    Args:
        python: Version of the image's Python.
        missing: Modules of `WANTED_MODULES` that it lacks.
        compiled: Whether it has the bytecode version of our Python.
    """
    if not needs_old_pytest(python):
        return module_files(tuple(name for name in DISTRIBUTIONS if name in missing), compiled=compiled)
    return old_pytest_files(python, frozenset(missing)) if "pytest" in missing else ()


@functools.cache
def module_files(modules: tuple[str, ...], *, compiled: bool) -> Files:
    """Return the files of installed modules for `Sandbox._put`: path, git's mode, empty id, content."""
    return tuple(
        (name, 0o100644, "", content) for module in modules for name, content in _files(module, compiled)
    )


def _files(module: str, compiled: bool) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a module's sources and metadata, and of its bytecode if requested."""
    for file in importlib.metadata.files(DISTRIBUTIONS[module]) or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # console scripts; bytecode is handled below
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
    """Convert bytecode to an unchecked hash-based pyc (PEP 552), valid whatever the source's time."""
    return bytecode[:4] + (1).to_bytes(4, "little") + importlib.util.source_hash(source) + bytecode[16:]
