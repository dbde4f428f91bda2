"""Find what this machine has for an engine: its version, the packages beside it, and memory for a cache outside the GPUs.

The module does not import the engine, because the import takes a quarter of a minute.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from m3agent.serving.plan.command import LaunchCommand
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.plan.host_cache import GIGABYTE

_ASK = "import importlib.metadata as m; print(m.version({name!r}))"
_SECONDS = 20


def installed_version(engine: str, argv: Sequence[str], path: str | None) -> str | None:
    """Return the version of the engine that the command's Python has.

    Returns:
        The version, or None if it cannot be found, for example for a container or a wrapper.
    """
    python = _python(argv, path)
    return None if python is None or engine not in ENGINES else _version(python, ENGINES[engine].package)


def lacking_packages(packages: Sequence[str], argv: Sequence[str], path: str | None) -> list[str]:
    """Return those of the packages (PEP 508, like `name>=1`) that the command's Python does not have in a right version.

    None is lacking if that Python is not found.
    """
    python = _python(argv, path)
    return (
        [] if python is None else [package for package in packages if not _has(python, Requirement(package))]
    )


def _has(python: Sequence[str], wanted: Requirement) -> bool:
    version = _version(python, wanted.name)
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def _version(python: Sequence[str], name: str) -> str | None:
    """Return the version of a package that a Python has; None if it has none or does not answer."""
    try:
        done = subprocess.run(
            [*python, "-c", _ASK.format(name=name)],
            cwd="/",  # Python imports from the current folder, which may be a checkout
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


EXEC = "'''exec' "
"""Begins the second line of a console script whose Python is in a folder with spaces, or has a path of more than 127 bytes.

The first line is then `#!/bin/sh`. pip (distlib) and uv write it so.
"""


def _python(argv: Sequence[str], path: str | None) -> list[str] | None:
    """Return the interpreter of `python -m ...`, or the interpreter that a console script names."""
    program = LaunchCommand.of(argv).program
    full = shutil.which(program[0], path=path) if program else None
    if full is None:
        return None
    if "-m" in program:
        return [str(Path(full).absolute())]
    try:
        with Path(full).open("rb") as file:
            first, second = (file.readline(4096).decode(errors="replace") for _ in range(2))
        words = shlex.split(second)[1:2] if second.startswith(EXEC) else first.removeprefix("#!").split()
    except (OSError, ValueError):
        return None
    return words if first.startswith("#!") and words and "python" in Path(words[-1]).name else None


RESERVE = 32 * GIGABYTE
"""Bytes to leave for the engine's processes (assumed)."""
MEMINFO = Path("/proc/meminfo")
SHARED = Path("/dev/shm")  # noqa: S108  # only its size is read
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def lacking_memory(size: int, *, meminfo: Path = MEMINFO, shared: Path | None = SHARED) -> str | None:
    """Return why this machine has no room for a host cache; None if it has, or if that is unknown.

    Args:
        shared: Folder of the shared memory; None if the engine gets its own, as in a container.
    """
    if not size:
        return None
    try:
        available = _AVAILABLE.search(meminfo.read_text("utf-8"))
        room = size if shared is None else shutil.disk_usage(shared).free
    except OSError:
        return None
    wanted = f"a host cache of {size / GIGABYTE:,.0f} GB"
    if available is not None and int(available[1]) * 1024 < size + RESERVE:
        free = int(available[1]) * 1024 / GIGABYTE
        return (
            f"{wanted} needs {(size + RESERVE) / GIGABYTE:,.0f} GB of memory with the engine, and {free:,.0f} GB are "
            "available: lower --host-cache"
        )
    if room < size:
        return (
            f"{wanted} needs as much room in {shared}, and {room / GIGABYTE:,.0f} GB are free there: lower --host-cache, or "
            f"enlarge it (as root: mount -o remount,size=90% {shared})"
        )
    return None
