"""Provide modules that a sandbox needs to run tests and that an image may lack: our own pytest, or an older one.

If the sandbox's Python has the same bytecode version as ours, the compiled files are copied too: test runs
then start twice as fast.

m3agent's own pytest is too new for an old Python. The wheels of an older one are downloaded once, from the package index that pip
uses on this machine, and kept in the user's cache folder. Their versions and hashes are fixed (`pytest_releases.toml`), so every
machine runs the same.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

from m3agent.sandbox.backends.pip_wheels import pip_wheels

OWN_SINCE = (3, 11)
"""m3agent's own pytest has everything that it needs since this Python."""
RELEASES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("pytest_releases.toml").read_text("utf-8")
)
"""Releases of pytest and of what it needs, with the SHA-256 of their wheels, by the oldest Python of each."""
MODULES = {
    "attrs": "attr",
    "typing-extensions": "typing_extensions",
    "importlib-metadata": "importlib_metadata",
}
"""Modules of the packages whose module has another name than the package."""
LIMIT = 120
"""Seconds for the download."""
ABSENT = """\
raise ImportError(%r)
"""
"""Module that takes the place of a pytest that could not be had."""

Files = tuple[tuple[str, int, str, bytes], ...]


def module_of(requirement: str) -> str:
    """Return the module of a package in `RELEASES`."""
    name = requirement.partition("==")[0]
    return MODULES.get(name, name)


OLD_MODULES = tuple(sorted({module_of(name) for release in RELEASES.values() for name in release}))
"""All modules of these releases."""
DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Our own pytest and what it needs. Each has one module, of the same name. They are pure Python, so one copy works in every
image; only missing ones are copied.
"""
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
    for file in importlib.metadata.files(module) or []:
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


def needs_old_pytest(python: str) -> bool:
    """Return whether m3agent's own pytest is too new for a version of Python."""
    return _minor(python) < OWN_SINCE


def _minor(python: str) -> tuple[int, int]:
    major, minor = python.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def old_pytest_files(python: str, missing: frozenset[str], cache: Path | None = None) -> Files:
    """Return the files of a pytest for `Sandbox._put`: path, git's mode, empty id, content. Blocking; may download.

    If no pytest can be had, the files are a module `pytest` that says why when it is imported.
    """
    release = [wheels for since, wheels in RELEASES.items() if _minor(since) <= _minor(python)]
    if not release:
        return _absent(f"m3agent has no pytest for Python {python}")
    wanted = {name: digest for name, digest in release[-1].items() if module_of(name) in missing}
    version = next(name for name in release[-1] if name.startswith("pytest=="))
    folder = (cache or _cache_folder()) / version.replace("==", "-")
    try:
        wheels = _wheels(folder, release[-1])
        return tuple(file for name in wanted for file in _unpacked(wheels[name]))
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        return _absent(
            f"the image has no pytest, and one for Python {python} could not be downloaded: {reason}; install pytest in the image"
        )


def _absent(reason: str) -> Files:
    return (("pytest.py", 0o100644, "", (ABSENT % reason).encode()),)


def _cache_folder() -> Path:
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "m3agent"


def _wheels(folder: Path, release: dict[str, str]) -> dict[str, Path]:
    """Return the wheels of a release by requirement; download those that are not in the folder.

    Raises:
        OSError: They cannot be stored, or pip is not on this machine.
        subprocess.SubprocessError: pip cannot download them.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download(release, Path(scratch, "wheels"))
            try:
                Path(scratch, "wheels").rename(folder)
            except OSError:  # another process has stored them meanwhile
                if not folder.is_dir():
                    raise
    by_name = {wheel.name.split("-")[0].replace("_", "-").lower(): wheel for wheel in folder.glob("*.whl")}
    return {name: by_name[name.partition("==")[0]] for name in release}


def _download(release: dict[str, str], folder: Path) -> None:
    wheels = pip_wheels()
    if not wheels:
        raise FileNotFoundError("this machine's Python has no pip to download it with")
    folder.mkdir()
    wanted = folder / "requirements.txt"
    wanted.write_text(
        "".join(f"{name} --hash=sha256:{digest}\n" for name, digest in release.items()), "utf-8"
    )
    options = (
        *("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"),
        "--disable-pip-version-check",
    )
    argv = [sys.executable, f"{wheels[0]}/pip", "download", *options, "-r", str(wanted), "-d", str(folder)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise subprocess.SubprocessError((done.stderr.strip().splitlines() or ["pip failed"])[-1])


def _unpacked(wheel: Path) -> Iterator[tuple[str, int, str, bytes]]:
    """Yield the files of a wheel of pure Python."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, 0o100644, "", archive.read(name)
