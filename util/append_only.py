"""Append-only files of lines, with one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from m3agent.util.errors import EnvironmentFault, UsageError, reason_of


class AppendOnlyFile:
    """A file that this process appends lines to, under an exclusive lock.

    An incomplete last line is removed when the file is opened: a process ended while it wrote that line.

    Raises:
        UsageError: Another process has the file open for appending.
        EnvironmentFault: The file cannot be opened or repaired.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        with contextlib.ExitStack() as on_failure:
            try:
                self._file = on_failure.enter_context(path.open("a+b", buffering=0))
                lock(self._file)
                self._drop_torn_line()
            except BlockingIOError:
                raise UsageError(
                    f"the session in {self._folder} is in use by another process: wait for it, or stop it first"
                ) from None
            except OSError as error:
                raise fault(error, self._folder) from None
            on_failure.pop_all()

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Append a line.

        Args:
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

    def _drop_torn_line(self) -> None:
        self._file.seek(0)
        raw = self._file.read()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            self._file.truncate(end)


def lock(file: IO[bytes]) -> None:
    """Lock a file for one writer.

    A process that only asks whether there is a writer (`is_locked`) holds a shared lock for that moment. It is waited for.

    Raises:
        BlockingIOError: There is another writer.
    """
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(
                file, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # fails beside a writer, and not beside one that asks
            fcntl.flock(file, fcntl.LOCK_UN)
        else:
            return


def is_locked(path: Path) -> bool:
    """Return whether a file has a writer. The kernel releases its lock when the process ends for any reason."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def fault(error: OSError, folder: Path) -> EnvironmentFault:
    """Return the error for the user after a failed write in the session's folder."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    what = "the disk is full" if full else reason_of(error)
    return EnvironmentFault(
        f"cannot write the session in {folder}: {what}; make room, or set M3AGENT_STATE to another folder"
    )
