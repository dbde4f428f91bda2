"""Append-only files of lines, with one writer at a time. `drop_torn_line` repairs a file after a crash."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from m3agent.agent.errors import EnvironmentFault, UsageError


class AppendOnlyFile:
    """A file that this process appends lines to, under an exclusive lock.

    Raises:
        UsageError: Another process has the file open for appending.
        EnvironmentFault: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise fault(error, self._folder) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                f"the session in {self._folder} is in use by another process: wait for it, or stop it first"
            ) from None

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Append a line.

        Args:
            line: The line, without its line end.
            sync: Return only after the line is on the disk. Otherwise it may still be in the kernel's cache.

        Raises:
            EnvironmentFault: The line cannot be written. The file does not contain any part of it.
        """
        raw = memoryview(line + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while raw:
                raw = raw[self._file.write(raw) or 0 :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)  # half a line would corrupt the next line
            raise fault(error, self._folder) from None

    def close(self) -> None:
        """Close the file and release the lock."""
        self._file.close()


def drop_torn_line(path: Path) -> None:
    """Cut off an incomplete last line, left by a process that ended while it wrote.

    Raises:
        EnvironmentFault: The file cannot be read or cut.
    """
    try:
        raw = path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            os.truncate(path, end)
    except OSError as error:
        raise fault(error, path.parent) from None


def fault(error: OSError, folder: Path) -> EnvironmentFault:
    """Return the error for the user after a failed write in the session's folder."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    what = "the disk is full" if full else (error.strerror or str(error)).lower()
    return EnvironmentFault(
        f"cannot write the session in {folder}: {what}; make room, or set M3AGENT_STATE to another folder"
    )
