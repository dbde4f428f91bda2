"""Provide modules that a sandbox needs to run tests and that an image may lack: our own pytest, or an older one.

If the sandbox's Python has the same bytecode version as ours, the compiled files are copied too: test runs
then start twice as fast.

m3agent's own pytest is too new for an old Python. The wheels of an older one are downloaded once, from the package index that pip
uses on this machine, and kept in the user's cache folder. Their versions and hashes are fixed here, so every machine runs the
same.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

from m3agent.sandbox.backends.pip_wheels import pip_wheels

OWN_SINCE = (3, 11)
"""m3agent's own pytest has everything that it needs since this Python."""
RELEASES: tuple[tuple[tuple[int, int], dict[str, str]], ...] = (
    (
        (3, 5),
        {
            "attrs==20.3.0": "31b2eced602aa8423c2aea9c76a724617ed67cf9513173fd3a4f03e3a929c7e6",
            "importlib-metadata==2.1.3": "52e65a0856f9ba7ea8f2c4ced253fb6c88d1a8c352cb1e916cff4eb17d5a693d",
            "iniconfig==1.1.1": "011e24c64b7f47f6ebd835bb12a743f2fbe9a26d4cecaa7f53bc4f35ee9da8b3",
            "packaging==20.9": "67714da7f7bc052e064859c05c595155bd1ee9f69f76557e21f051443c20947a",
            "pathlib2==2.3.5": "0ec8205a157c80d7acc301c0b18fbd5d44fe655968f5d947b6ecef5290fc35db",
            "pluggy==0.13.1": "966c145cd83c96502c3c3868f50408687b38434af77734af1e9ca461a4081d2d",
            "py==1.11.0": "607c53218732647dff4acdfcd50cb62615cedf612e72d1724fb1a0cc6405b378",
            "pyparsing==2.4.7": "ef9d7589ef3c200abe66653d3f1ab1033c3c419ae9b9bdb1240a85b024efc88b",
            "pytest==6.1.2": "4288fed0d9153d9646bfcdf0c0428197dba1ecb27a33bb6e031d002fa88653fe",
            "six==1.17.0": "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274",
            "toml==0.10.2": "806143ae5bfb6a3c6e736a764057db0e6a0e05e338b5630894a5f779cabb4f9b",
            "zipp==1.2.0": "e0d9e63797e483a30d27e09fffd308c59a700d365ec34e93cc100844168bf921",
        },
    ),
    (
        (3, 6),
        {
            "attrs==22.2.0": "29e95c7f6778868dbd49170f98f8818f78f3dc5e0e37c0b1f474e3561b240836",
            "importlib-metadata==4.8.3": "65a9576a5b2d58ca44d133c42a241905cc45e34d2c06fd5ba2bafa221e5d7b5e",
            "iniconfig==1.1.1": "011e24c64b7f47f6ebd835bb12a743f2fbe9a26d4cecaa7f53bc4f35ee9da8b3",
            "packaging==21.3": "ef103e05f519cdc783ae24ea4e2e0f508a9c99b2d4969652eed6a2e1ea5bd522",
            "pluggy==1.0.0": "74134bbf457f031a36d68416e1509f34bd5ccc019f0bcc952c7b909d06b37bd3",
            "py==1.11.0": "607c53218732647dff4acdfcd50cb62615cedf612e72d1724fb1a0cc6405b378",
            "pyparsing==3.0.7": "a6c06a88f252e6c322f65faf8f418b16213b51bdfaece0524c1c1bc30c63c484",
            "pytest==7.0.1": "9ce3ff477af913ecf6321fe337b93a2c0dcf2a0a1439c43f5452112c1e4280db",
            "tomli==1.2.3": "e3069e4be3ead9668e21cb9b074cd948f7b3113fd9c8bba083f48247aab8b11c",
            "typing-extensions==4.1.1": "21c85e0fe4b9a155d0799430b0ad741cdce7e359660ccbd8b530613e8df88ce2",
            "zipp==3.6.0": "9fe5ea21568a0a70e50f273397638d39b03353731e6cbbb3fd8502a33fec40bc",
        },
    ),
    (
        (3, 7),
        {
            "exceptiongroup==1.2.2": "3111b9d131c238bec2f8f516e123e14ba243563fb135d3fe885990585aa7795b",
            "importlib-metadata==6.7.0": "cb52082e659e97afc5dac71e79de97d8681de3aa07ff18578330904a9d18e5b5",
            "iniconfig==2.0.0": "b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374",
            "packaging==24.0": "2ddfb553fdf02fb784c234c7ba6ccc288296ceabec964ad2eae3777778130bc5",
            "pluggy==1.2.0": "c2fd55a7d7a3863cba1a013e4e2414658b1d07b6bc57b3919e0c63c9abb99849",
            "pytest==7.4.4": "b090cdf5ed60bf4c45261be03239c2c1c22df034fbffe691abe93cd80cea01d8",
            "tomli==2.0.1": "939de3e7a6161af0c887ef91b7d41a53e7c5a1ca976325f429cb46ea9bc30ecc",
            "typing-extensions==4.7.1": "440d5dd3af93b060174bf433bccd69b0babc3b15b1a8dca43789fd7f61514b36",
            "zipp==3.15.0": "48904fc76a60e542af151aded95726c1a5c34ed43ab4134b597665c86d7ad556",
        },
    ),
)
"""Releases of pytest and of what it needs, with the SHA-256 of their wheels, for Pythons from this version on."""
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


OLD_MODULES = tuple(sorted({module_of(name) for _, release in RELEASES for name in release}))
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
    release = [wheels for since, wheels in RELEASES if since <= _minor(python)]
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
