"""Small files that only m3agent reads and writes, such as those of its caches.

A pack from the cache imports this module. Therefore it imports nothing that is slow to import.
"""

from __future__ import annotations

import os


def read_file(path: str) -> bytes | None:
    """Return the bytes of one of m3agent's own files; None if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        size = os.fstat(file).st_size
        data = os.read(file, size + 1)
        return data if len(data) == size else None
    except OSError:
        return None
    finally:
        os.close(file)


def write_file(path: str, data: bytes) -> None:
    """Replace one of m3agent's own files atomically, readable only by its owner.

    Raises:
        OSError: The file cannot be written; the old one remains.
    """
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}~"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
