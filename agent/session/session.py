"""Create and open a session: its folder and its append-only event log."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from m3agent.agent.session.events import (
    VERSION,
    CallFinished,
    CallStarted,
    Event,
    PersonMessage,
    Proposal,
    ProposalAnswered,
    SessionFinished,
    SessionResumed,
    SessionStarted,
)
from m3agent.agent.session.log_reader import LOG, Line, read_log
from m3agent.util.append_only import AppendOnlyFile, fault
from m3agent.util.atomic_write import remove_unfinished, write_whole
from m3agent.util.errors import UsageError

SYNCED = (
    *(SessionStarted, SessionResumed, PersonMessage, Proposal, ProposalAnswered),
    *(CallStarted, CallFinished, SessionFinished),
)
"""Events that are synced to the disk before the session continues."""


CALLS = "calls"
"""Folder in a session's folder, with the complete output of each call."""
PATCH = "patch.diff"
"""File in a session's folder, with the resulting patch in the format of `git apply`."""


def new_id() -> str:
    """Return a new session id. It starts with the time, so that ids sort by age."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def timestamp() -> str:
    """Return the current time for a line of a log: UTC in ISO 8601, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_folder(folder: Path) -> None:
    """Create a session's folder, accessible only by its owner. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / CALLS).mkdir(mode=0o700)


def line_of(event: Event, seq: int, session: str) -> Line:
    """Return an event as a line of a session's log, with the current time."""
    head: Line = {"v": VERSION, "seq": seq, "ts": timestamp(), "session": session, "type": event.type}
    return head | dataclasses.asdict(event)


class Session:
    """One attempt at one issue. Only one process at a time can have a session open.

    The session's folder (mode 0700) contains `events.jsonl`, `messages.jsonl`, `calls/`, `trees.git/` and `patch.diff`.

    Args:
        sinks: Receive every line of the log after it was written.
    """

    def __init__(self, folder: Path, sinks: Sequence[Callable[[Line], None]], seq: int = 0) -> None:
        self.folder = folder
        self.id = folder.name
        self._sinks = list(sinks)
        self._seq = seq
        self._log = AppendOnlyFile(folder / LOG)

    @classmethod
    def create(cls, state: Path, sinks: Sequence[Callable[[Line], None]], name: str | None = None) -> Session:
        """Create a session in the state folder. Its id is `name`, or a `new_id` if `name` is None.

        The folder of a detached session exists already.

        Raises EnvironmentFault: The folder cannot be created or written.
        """
        name = name or new_id()
        folder = state / "sessions" / name
        try:
            if not folder.is_dir() or (folder / LOG).exists():  # a log is that of another session
                make_folder(folder)
        except OSError as error:
            raise fault(error, folder) from None
        return cls(folder, sinks)

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.folder.parent.parent

    def beside(self, number: int) -> Session:
        """Create a session for another attempt at the same issue, with the same sinks.

        Its id is this session's id followed by `number`.

        Raises EnvironmentFault: The folder cannot be created or written.
        """
        return self.create(self.folder.parent.parent, self._sinks, f"{self.id}-{number}")

    @classmethod
    def open(cls, folder: Path) -> tuple[Session, list[Line]]:
        """Open an existing session to continue it.

        An incomplete last line is removed from its log, and unfinished files from its folder.

        Returns the session, and the lines of its log so far.

        Raises UsageError: There is no session, another process has it open, or its log is damaged or of another
        version.
        """
        path = folder / LOG
        if not path.is_file():
            raise UsageError(f"there is no session in {folder}")
        with contextlib.ExitStack() as on_failure:
            session = on_failure.enter_context(contextlib.closing(cls(folder, [])))
            lines = list(read_log(path).events)
            on_failure.pop_all()
        remove_unfinished(folder)
        session._seq = lines[-1]["seq"] if lines else 0
        return session, lines

    def write(self, event: Event) -> None:
        """Append an event to the log. Sync the events that a resume depends on (`SYNCED`) to the disk.

        Raises EnvironmentFault: The log cannot be written, for example because the disk is full.
        """
        line = line_of(event, self._seq + 1, self.id)
        raw = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode()
        self._log.append(raw, sync=isinstance(event, SYNCED))
        self._seq += 1
        for sink in self._sinks:
            sink(line)

    def listen(self, sink: Callable[[Line], None]) -> None:
        """Add a sink."""
        self._sinks.append(sink)

    def write_file(self, name: str, content: bytes) -> Path:
        """Write a file in the session's folder, completely or not at all. Raises EnvironmentFault."""
        path = self.folder / name
        try:
            write_whole(path, content)
        except OSError as error:
            raise fault(error, self.folder) from None
        return path

    def close(self) -> None:
        """Close the log."""
        self._log.close()
