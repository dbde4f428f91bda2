"""Files that are there whole or not at all, whatever ends this process."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a new file beside `path`, on the disk, and put it in its place. mode: less the process's mask.

    Raises OSError; then `path` is as it was.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.tmp")
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
