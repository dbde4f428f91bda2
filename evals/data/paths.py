"""Resolve locations that data files name, and refuse those outside the data's own folder."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.data.instance import DataError, outside


def within(folder: Path, name: str, what: str) -> Path:
    """Return the path of the file `name` in a folder, with links resolved.

    Args:
        folder: The data's folder.
        name: The location in the data file.
        what: Start of the error messages.

    Raises:
        DataError: The location leads out of the folder (an absolute path, `..`, a link), or is not an
            existing file.
    """
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise DataError(f"{what} {printable_line(name, 60)!r} cannot be followed") from None
    if not path.is_relative_to(root):
        raise outside(Path(name), what)
    try:
        there = path.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise DataError(f"{what} {path} does not exist")
    return path
