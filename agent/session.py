"""A session's folder and its append-only log of events."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from m3agent.agent.errors import EnvironmentFault
from m3agent.agent.events import VERSION, CallFinished, CallStarted, Event, SessionFinished, SessionStarted

Line = dict[str, Any]
"""One event as it stands in the log: the event's fields after v, seq, ts, session and type."""

SYNCED = (SessionStarted, CallStarted, CallFinished, SessionFinished)
"""Events that are on the disk before anything else happens."""


class Session:
    """One attempt at one issue: `events.jsonl`, `calls/`, `trees.git/` and `patch.diff` in a folder of its own (0700).

    Each sink gets every line that is written, after it was.
    """

    def __init__(self, folder: Path, sinks: list[Callable[[Line], None]]) -> None:
        self.folder = folder
        self.id = folder.name
        self._sinks = sinks
        self._seq = 0
        try:
            self._log = (folder / "events.jsonl").open("ab", buffering=0)
        except OSError as error:
            raise fault(error, folder) from None

    @classmethod
    def create(cls, state: Path, sinks: list[Callable[[Line], None]]) -> Session:
        """A new session below the state folder; its id starts with the time, so that names sort.

        Raises:
            EnvironmentFault: the folder cannot be made or written.
        """
        name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        folder = state / "sessions" / name
        try:
            folder.mkdir(mode=0o700, parents=True)
            (folder / "calls").mkdir(mode=0o700)
        except OSError as error:
            raise fault(error, folder) from None
        return cls(folder, sinks)

    def write(self, event: Event) -> None:
        """Append an event; synced to the disk for those that resume depends on.

        Raises:
            EnvironmentFault: the log cannot be written (a full disk): the session cannot go on without it.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: Line = {"v": VERSION, "seq": self._seq + 1, "ts": now, "session": self.id, "type": event.type}
        line |= dataclasses.asdict(event)
        raw = memoryview(json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
        before = os.fstat(self._log.fileno()).st_size
        try:
            while raw:
                raw = raw[self._log.write(raw) or 0 :]
            if isinstance(event, SYNCED):
                os.fsync(self._log.fileno())
        except OSError as error:
            self._log.truncate(before)  # half a line would spoil the one that may yet follow it
            raise fault(error, self.folder) from None
        self._seq += 1
        for sink in self._sinks:
            sink(line)

    def write_file(self, name: str, content: bytes) -> Path:
        """Write a file of the session's folder, whole or not at all."""
        path = self.folder / name
        temporary = path.with_suffix(path.suffix + ".tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise fault(error, self.folder) from None
        return path

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def fault(error: OSError, folder: Path) -> EnvironmentFault:
    """A failed write in the session's folder, as the sentence for the user."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    what = "the disk is full" if full else (error.strerror or str(error)).lower()
    return EnvironmentFault(
        f"cannot write the session in {folder}: {what}; make room, or set M3AGENT_STATE to another folder"
    )
