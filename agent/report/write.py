"""Write the file of the option -o atomically. Only a regular file is overwritten."""

from __future__ import annotations

import stat
from pathlib import Path

from m3agent.util.atomic_write import write_whole
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of


def written(path: Path, page: bytes, beside: str = "") -> str:
    """Return what people are told about a page: its name, its size, what is beside it, and the address for a browser."""
    address = (path.parent.resolve() / path.name).as_uri()
    return f"wrote {path} ({len(page) / 1000:,.0f} kB){beside}: {address}"


def write_page(path: Path, page: bytes, *, mode: int = 0o600) -> None:
    """Write the page to a new file beside `path`, then rename it to `path`; only the owner can read it.

    Args:
        mode: Other permissions, for a file that several people use, before the process's umask is applied.

    Raises:
        UsageError: `path` is not a regular file, or its folder does not exist.
        EnvironmentFault: The file cannot be written.
    """
    check_target(path)
    try:
        write_whole(path, page, mode=mode)
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written: {reason_of(error)}") from None


def check_target(path: Path, option: str = "-o") -> None:
    """Check that a page can be written to `path`, which an option names, before any work is done for it.

    Raises UsageError: `path` is not a regular file, or its folder does not exist.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}") from None
        return
    except OSError as error:
        raise UsageError(f"{option} {path}: {reason_of(error)}") from None
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a symbolic link"))
        kind = next((name for test, name in kinds if test(mode)), "not a regular file")
        raise UsageError(
            f"{option} {path}: this is {kind}, and only a regular file is overwritten: name another file"
        )
