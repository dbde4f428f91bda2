"""Find the wheel of pip that comes with this machine's Python. A virtual environment of uv has no pip of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def pip_wheels() -> list[Path]:
    """Return the wheel in a list; an empty list if this Python has no wheel."""
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(spec.origin).parent / "_bundled"] if spec is not None and spec.origin else []
    folders.append(Path("/usr/share/python-wheels"))
    found = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
    return found[:1]
