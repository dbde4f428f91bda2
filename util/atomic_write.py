"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

SUFFIX = ".tmp"
"""End of the name of a temporary file, which begins with a dot."""


def write_whole(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` to a temporary file beside `path`, sync it to the disk, and move it to `path`.

    Args:
        mode: The permissions of the file, before the process's umask is applied.

    Raises:
        OSError: The write failed; `path` is unchanged.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}{SUFFIX}")
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(number, "wb") as file:  # noqa: PTH123  # a descriptor, not a path
            file.write(content)
            file.flush()
            os.fsync(number)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files in a folder that a killed process left. No other process may write there now."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f".*{SUFFIX}"):
            path.unlink()
