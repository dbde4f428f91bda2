"""Getting the programs that we are measured against."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

INSTALL_TIMEOUT = 900  # seconds


class Absent(Exception):
    """A contestant that cannot take part, or something it needs; the text says why."""


def install(names: str, place: Path, command: Sequence[str | Path]) -> None:
    """Run an installer. Raises Absent."""
    print(f"installing {names} into {place}", file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise Absent(f"not installed within {INSTALL_TIMEOUT} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["the installer said nothing"]
        raise Absent(f"not installed: {said[-1][:120]}")


def python_with(place: Path, pinned: Sequence[str], also: Sequence[str] = ()) -> Path:
    """The python of a virtual environment with these in it, made or what is there: `pinned` are exact, `also` any version.

    Raises Absent.
    """
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    have = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=False
    ).stdout.split()
    names = {line.partition("==")[0] for line in have}
    if not (set(pinned) <= set(have) and set(also) <= names):
        options = ["--quiet", "--disable-pip-version-check"]
        install(" and ".join(pinned), place, [python, "-m", "pip", "install", *options, *pinned, *also])
    return python
