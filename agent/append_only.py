"""Files that only grow, a line at a time, by one process at a time, and are whole whatever ends that process."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from m3agent.agent.errors import EnvironmentFault, UsageError


class AppendOnlyFile:
    """Lines appended to a file, which nobody else appends to meanwhile.

    Raises:
        UsageError: another process has it open.
        EnvironmentFault: it cannot be opened or written; a line that could not be written whole is not there at all.
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
                f"the session in {self._folder} is being worked on by another process: wait for it, or end it first"
            ) from None

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Write a line, without its end; with `sync` it is on the disk when this returns, else with the kernel."""
        raw = memoryview(line + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while raw:
                raw = raw[self._file.write(raw) or 0 :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)  # half a line would spoil the one that may yet follow it
            raise fault(error, self._folder) from None

    def close(self) -> None:
        """Close it, and let others have it."""
        self._file.close()


def drop_torn_line(path: Path) -> None:
    """Cut off what is left of a line that was being written when its process ended.

    Raises:
        EnvironmentFault: it cannot be read, or not be cut.
    """
    try:
        raw = path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            os.truncate(path, end)
    except OSError as error:
        raise fault(error, path.parent) from None


def fault(error: OSError, folder: Path) -> EnvironmentFault:
    """A failed write in the session's folder, as the sentence for the user."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    what = "the disk is full" if full else (error.strerror or str(error)).lower()
    return EnvironmentFault(
        f"cannot write the session in {folder}: {what}; make room, or set M3AGENT_STATE to another folder"
    )
