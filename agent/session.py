"""A session's folder and its append-only log of events."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from m3agent.agent.append_only import AppendOnlyFile, drop_torn_line, fault
from m3agent.agent.errors import UsageError
from m3agent.agent.events import (
    VERSION,
    CallFinished,
    CallStarted,
    Event,
    SessionFinished,
    SessionResumed,
    SessionStarted,
)
from m3agent.agent.session_log import LOG, Line, read_log
from m3agent.agent.whole_file import write_whole

SYNCED = (SessionStarted, SessionResumed, CallStarted, CallFinished, SessionFinished)
"""Events that are on the disk before anything else happens."""


CALLS = "calls"
"""In a session's folder: the whole output of each call."""
PATCH = "patch.diff"
"""In a session's folder: what came of it, as `git apply` takes it."""


def new_id() -> str:
    """A session's id; it starts with the time, so that names sort."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def make_folder(folder: Path) -> None:
    """Make a session's folder, for its owner only. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / CALLS).mkdir(mode=0o700)


def line_of(event: Event, seq: int, session: str) -> Line:
    """An event that happens now as its line in a session's log."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head: Line = {"v": VERSION, "seq": seq, "ts": now, "session": session, "type": event.type}
    return head | dataclasses.asdict(event)


class Session:
    """One attempt at one issue: `events.jsonl`, `messages.jsonl`, `calls/`, `trees.git/` and `patch.diff` in a folder of
    its own (0700).

    Each sink gets every line that is written, after it was. One process at a time has a session open.
    """

    def __init__(self, folder: Path, sinks: Sequence[Callable[[Line], None]], seq: int = 0) -> None:
        self.folder = folder
        self.id = folder.name
        self._sinks = list(sinks)
        self._seq = seq
        self._log = AppendOnlyFile(folder / LOG)

    @classmethod
    def create(cls, state: Path, sinks: Sequence[Callable[[Line], None]], name: str | None = None) -> Session:
        """A new session below the state folder, with a `new_id` if it is given no name.

        Raises:
            EnvironmentFault: the folder cannot be made or written.
        """
        name = name or new_id()
        folder = state / "sessions" / name
        try:
            make_folder(folder)
        except OSError as error:
            raise fault(error, folder) from None
        return cls(folder, sinks)

    def beside(self, number: int) -> Session:
        """A session for a further attempt at the same issue, with the same sinks; its id is this one's and the number.

        Raises:
            EnvironmentFault: its folder cannot be made or written.
        """
        return self.create(self.folder.parent.parent, self._sinks, f"{self.id}-{number}")

    @classmethod
    def open(cls, folder: Path, sinks: Sequence[Callable[[Line], None]]) -> tuple[Session, list[Line]]:
        """A session to go on with, and the lines of its log so far; what is left of a torn last one is dropped.

        Raises:
            UsageError: there is no session, another process has it, or its log is damaged or of another version.
        """
        path = folder / LOG
        if not path.is_file():
            raise UsageError(f"there is no session in {folder}")
        session = cls(folder, sinks)  # which locks it: nobody is writing that last line
        try:
            log = read_log(path)
            if log.notes:  # half a line at its end
                drop_torn_line(path)
        except BaseException:
            session.close()
            raise
        session._seq = log.events[-1]["seq"] if log.events else 0
        return session, list(log.events)

    def write(self, event: Event) -> None:
        """Append an event; synced to the disk for those that resume depends on.

        Raises:
            EnvironmentFault: the log cannot be written (a full disk): the session cannot go on without it.
        """
        line = line_of(event, self._seq + 1, self.id)
        raw = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode()
        self._log.append(raw, sync=isinstance(event, SYNCED))
        self._seq += 1
        for sink in self._sinks:
            sink(line)

    def listen(self, sink: Callable[[Line], None]) -> None:
        """One more who gets every line."""
        self._sinks.append(sink)

    def write_file(self, name: str, content: bytes) -> Path:
        """Write a file of the session's folder, whole or not at all."""
        path = self.folder / name
        try:
            write_whole(path, content)
        except OSError as error:
            raise fault(error, self.folder) from None
        return path

    def close(self) -> None:
        """Close the log."""
        self._log.close()
