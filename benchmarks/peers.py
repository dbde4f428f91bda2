"""Install the programs that m3agent is measured against."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

INSTALL_TIMEOUT = 900  # seconds


class Absent(Exception):
    """A contestant, or something that it needs, is not available. The text says why."""


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
    """Return the Python of a virtual environment with these packages; create or complete it if necessary.

    `pinned` are packages with exact versions, `also` may have any version. Raises Absent.
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
