"""Store the sessions of ACP clients on the disk: their prompts and the fixes that these started."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from m3agent.agent.session.session import new_id, timestamp
from m3agent.util.append_only import AppendOnlyFile, fault
from m3agent.util.errors import UsageError

FOLDER = "acp"
"""Folder in the state folder, with one folder for each session of a client."""
FILE = "session.jsonl"
"""The record in the folder of a session."""
_ID = re.compile(r"[0-9a-f-]{8,64}")


class Mode(StrEnum):
    """What happens with a patch: ask the person, apply it, or only show it."""

    ASK = "ask"
    AUTO = "auto"
    READ_ONLY = "read-only"


@dataclass
class Record:
    """The record of a client's session."""

    id: str
    """Id of the session."""
    cwd: str
    """The folder that the session works in."""
    updated: str
    """Time of the last entry, UTC in ISO 8601."""
    title: str = ""
    """Title of the first prompt; empty before it."""
    mode: Mode = Mode.ASK
    """What happens with patches."""
    chosen: dict[str, str] = field(default_factory=dict)
    """The settings that the person chose in the editor, by their names."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """What happened, oldest first."""

    @property
    def last_fix(self) -> str | None:
        """Id of the session of the last fix; None before the first."""
        return next((e["session"] for e in reversed(self.entries) if e["kind"] == "fix"), None)

    def take(self, entry: dict[str, Any]) -> None:
        """Add an entry, and update the fields that depend on it."""
        self.updated = entry["ts"]
        self.entries.append(entry)
        match entry["kind"]:
            case "mode":
                self.mode = Mode(entry["mode"])
            case "chosen":
                self.chosen[entry["option"]] = entry["value"]
            case "prompt":
                self.title = self.title or entry["title"]


class OpenSession:
    """A client's session that this process has open. No other process can open it at the same time."""

    def __init__(self, record: Record, file: AppendOnlyFile) -> None:
        self.record = record
        self._file = file

    def write(self, kind: str, **values: Any) -> None:
        """Write an entry and sync it. Raises EnvironmentFault if the entry cannot be written."""
        entry = {"ts": timestamp(), "kind": kind, **values}
        self._file.append(json.dumps(entry).encode(), sync=True)
        self.record.take(entry)

    def close(self) -> None:
        """Close the session; other processes can open it then."""
        self._file.close()


def new_session(state: Path, cwd: str) -> OpenSession:
    """Create a session for the folder `cwd`. Raises EnvironmentFault if the session cannot be written."""
    name = new_id()
    folder = state / FOLDER / name
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise fault(error, folder) from None
    made = OpenSession(Record(name, cwd, timestamp()), AppendOnlyFile(folder / FILE))
    made.write("begun", cwd=cwd)
    return made


def open_session(state: Path, name: str) -> OpenSession:
    """Open an existing session.

    Raises:
        UsageError: There is no session of that name, its record is damaged, or another process has it open.
    """
    path = state / FOLDER / name / FILE
    if not _ID.fullmatch(name) or not path.is_file():
        raise UsageError(f"there is no session {name[:80]!r}")
    with contextlib.ExitStack() as on_failure:
        file = on_failure.enter_context(contextlib.closing(AppendOnlyFile(path)))
        session = OpenSession(read(path), file)
        on_failure.pop_all()
    return session


def all_sessions(state: Path) -> Iterator[Record]:
    """Yield the records of all sessions, newest first, without those that cannot be read."""
    for path in sorted((state / FOLDER).glob(f"*/{FILE}"), reverse=True):
        try:
            yield read(path)
        except UsageError:
            continue


def read(path: Path) -> Record:
    """Read a session's record. Raises UsageError if the record cannot be read or is damaged."""
    try:
        lines = [
            json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
        ]
        record = Record(path.parent.name, str(lines[0]["cwd"]), str(lines[0]["ts"]))
        for line in lines:
            record.take(line)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"the session in {path.parent} cannot be read: {error}") from None
    return record
