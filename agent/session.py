"""A session's folder and its append-only log of events."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator
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


class Session:
    """One attempt at one issue: `events.jsonl`, `messages.jsonl`, `calls/`, `trees.git/` and `patch.diff` in a folder of
    its own (0700).

    Each sink gets every line that is written, after it was. One process at a time has a session open.
    """

    def __init__(self, folder: Path, sinks: list[Callable[[Line], None]]) -> None:
        self.folder = folder
        self.id = folder.name
        self._sinks = list(sinks)
        self._seq = 0
        self._log = AppendOnlyFile(folder / LOG)

    @classmethod
    def create(cls, state: Path, sinks: list[Callable[[Line], None]], name: str | None = None) -> Session:
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

    @classmethod
    def create_attempts(
        cls, state: Path, sinks: list[Callable[[Line], None]], attempts: int
    ) -> Iterator[Session]:
        """A session for each attempt at one issue; the ids of those after the first are its id and their number.

        Raises:
            EnvironmentFault: a folder cannot be made or written.
        """
        first = new_id()
        for number in range(1, attempts + 1):
            yield cls.create(state, sinks, first if number == 1 else f"{first}-{number}")

    @classmethod
    def open(cls, folder: Path, sinks: list[Callable[[Line], None]]) -> tuple[Session, list[Line]]:
        """A session to go on with, and the lines of its log so far; what is left of a torn last one is dropped.

        Raises:
            UsageError: there is no session, another process has it, or its log is damaged or of another version.
        """
        path = folder / LOG
        if not path.is_file():
            raise UsageError(f"there is no session in {folder}")
        session = cls(folder, sinks)  # which locks it: nobody is writing that last line
        try:
            drop_torn_line(path)
            lines = list(read_log(path).events)
        except BaseException:
            session.close()
            raise
        session._seq = lines[-1]["seq"] if lines else 0
        return session, lines

    def write(self, event: Event) -> None:
        """Append an event; synced to the disk for those that resume depends on.

        Raises:
            EnvironmentFault: the log cannot be written (a full disk): the session cannot go on without it.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: Line = {"v": VERSION, "seq": self._seq + 1, "ts": now, "session": self.id, "type": event.type}
        line |= dataclasses.asdict(event)
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
