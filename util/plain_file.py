"""Read files that strangers wrote: never from a device, a pipe or a socket, never without a limit.

Every file of a work tree that m3agent reads on the host is opened here. A pack from the cache imports this module.
Therefore it imports nothing that is slow to import.
"""

from __future__ import annotations

import errno
import os
import stat


def open_plain(path: str, flags: int = 0, *, folder: int | None = None) -> tuple[int, int]:
    """Open a regular file for reading.

    Args:
        flags: More flags for `os.open`, such as O_NOFOLLOW.
        folder: An open folder that a relative path starts from.

    Returns:
        The descriptor, and the file's size in bytes.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    # O_NONBLOCK: opening a pipe must not wait for a writer. O_NOCTTY: a terminal must not become ours.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, dir_fd=folder)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file, status.st_size


def read_first(path: str, most: int) -> bytes:
    """Return at most the first `most` bytes of a regular file. Symbolic links are followed.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    return _read(*open_plain(path), most)


def read_inside(root: str, path: str, most: int) -> bytes:
    """Return the content of a regular file of a work tree. Symbolic links are followed inside the work tree only.

    Raises:
        OSError: It cannot be read, is not a regular file, is larger, or leads out of the work tree. `strerror` says why.
    """
    real, top = os.path.realpath(path), os.path.realpath(root)
    if not real.startswith(f"{top.rstrip('/')}/"):
        raise OSError(errno.EACCES, "it is a link that leads out of the repository", path)
    file, size = open_plain(real, os.O_NOFOLLOW)
    data = _read(file, size, most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", path)
    return data


def _read(file: int, size: int, most: int) -> bytes:
    """Read at most `most` bytes and close the file. A file of this size is read at once."""
    try:
        data = os.read(file, min(size + 1, most))
        while len(data) < most and (more := os.read(file, min(most - len(data), 1 << 20))):
            data += more
        return data
    finally:
        os.close(file)
