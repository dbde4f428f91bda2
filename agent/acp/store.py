"""Sessions as a client knows them: what was asked, and which fixes came of it. They outlive the process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from m3agent.agent.append_only import AppendOnlyFile, drop_torn_line, fault
from m3agent.agent.errors import UsageError
from m3agent.agent.session import new_id

FOLDER, FILE = "acp", "session.jsonl"
"""In the state folder: a folder for each of a client's sessions, and the record in it."""
_ID = re.compile(r"[0-9a-f-]{8,64}")


class Mode(StrEnum):
    """What happens with a patch: the person is asked, it is applied, or it is only shown."""

    ASK = "ask"
    AUTO = "auto"
    READ_ONLY = "read-only"


@dataclass
class Record:
    """A client's session. fixes: ids of the sessions that came of its prompts, in their order; entries: what happened."""

    id: str
    cwd: str
    updated: str
    title: str = ""
    mode: Mode = Mode.ASK
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last_fix(self) -> str | None:
        """The session of the last prompt."""
        return next((e["session"] for e in reversed(self.entries) if e["kind"] == "fix"), None)

    def take(self, entry: dict[str, Any]) -> None:
        """Count an entry in."""
        self.updated = entry["ts"]
        self.entries.append(entry)
        match entry["kind"]:
            case "mode":
                self.mode = Mode(entry["mode"])
            case "prompt":
                self.title = self.title or entry["title"]


class OpenSession:
    """A session that this process has open; nobody else can have it meanwhile."""

    def __init__(self, record: Record, file: AppendOnlyFile) -> None:
        self.record = record
        self._file = file

    def write(self, kind: str, **values: Any) -> None:
        """Keep that something happened. Raises EnvironmentFault where it cannot be written."""
        entry = {"ts": _now(), "kind": kind, **values}
        self._file.append(json.dumps(entry).encode(), sync=True)
        self.record.take(entry)

    def close(self) -> None:
        """Let others have it."""
        self._file.close()


def new_session(state: Path, cwd: str) -> OpenSession:
    """A new session for a folder. Raises EnvironmentFault where it cannot be kept."""
    name = new_id()
    folder = state / FOLDER / name
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise fault(error, folder) from None
    made = OpenSession(Record(name, cwd, _now()), AppendOnlyFile(folder / FILE))
    made.write("begun", cwd=cwd)
    return made


def open_session(state: Path, name: str) -> OpenSession:
    """A session that there is. Raises UsageError where there is none of that name, or another process has it."""
    path = state / FOLDER / name / FILE
    if not _ID.fullmatch(name) or not path.is_file():
        raise UsageError(f"there is no session {name[:80]!r}")
    file = AppendOnlyFile(path)
    try:
        drop_torn_line(path)
        return OpenSession(read(path), file)
    except BaseException:
        file.close()
        raise


def all_sessions(state: Path) -> Iterator[Record]:
    """All that there are, the last ones first; those whose record cannot be read are passed over."""
    for path in sorted((state / FOLDER).glob(f"*/{FILE}"), reverse=True):
        try:
            yield read(path)
        except UsageError:
            continue


def read(path: Path) -> Record:
    """A session's record. Raises UsageError for a damaged one."""
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
