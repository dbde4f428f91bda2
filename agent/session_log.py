"""Reading a session's log again, also one of an older version, one cut off by a kill, or one still being written.

The contract is docs/events.md: readers ignore types and fields they do not know. So nothing here relies on a field; the
functions at the end give a field's value if it is there and of its kind, else what stands for "unknown".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.agent.errors import UsageError
from m3agent.agent.events import VERSION

LOG = "events.jsonl"
Line = dict[str, Any]
"""One event as it stands in the log."""

_TAIL = 64 << 10  # bytes read at the end of a log to find its last line; session.finished is far shorter
_MOST = 2**63  # no count in a log is larger; what is would not even fit into a float


@dataclass(frozen=True)
class SessionLog:
    """What a log says. notes: what a reader should know of its state (a line cut off at the end)."""

    path: Path
    events: tuple[Line, ...]
    notes: tuple[str, ...]


def read_log(path: Path) -> SessionLog:
    """All events of a log, in order. A last line that was cut off is left out, with a note.

    Raises:
        UsageError: the file cannot be read, or a line is damaged or of a version unknown here; names file and line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: the log cannot be read ({(error.strerror or str(error)).lower()})"
        ) from None
    lines = raw.split(b"\n")
    torn = lines.pop()  # empty where the last line is whole
    events = [_parsed(line, path, number) for number, line in enumerate(lines, 1)]
    notes = []
    if torn:
        notes.append(
            f"the log's last line is cut off after {len(torn):,} bytes and left out: the session was killed while it "
            "wrote, or is still writing"
        )
    return SessionLog(path, tuple(events), tuple(notes))


def read_ends(path: Path) -> tuple[Line, Line] | None:
    """The first and the last event of a log, without reading what is between; None where they are not both whole.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        first = file.readline()
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read()
    lines = tail.split(b"\n")
    if len(lines) < 3 or lines[-1]:  # the last line has an end, and what stands before it is whole
        return None
    try:
        return _parsed(first.rstrip(b"\n"), path, 1), _parsed(lines[-2], path, 0)
    except UsageError:
        return None


def _parsed(raw: bytes, path: Path, number: int) -> Line:
    try:
        # decoded here: json would take bytes for UTF-16 where they look like it
        line = json.loads(raw.decode())
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise UsageError(f"{path}, line {number}: this is no event (a JSON object): the log is damaged there")
    if (version := line.get("v")) != VERSION or isinstance(version, bool):
        said = "of no version" if version is None else f"of version {str(version)[:40]}"
        raise UsageError(
            f"{path}, line {number}: the event is {said}, and this m3agent reads version {VERSION}: use the version that "
            "wrote the log, or a newer one"
        )
    return line


def text(line: Mapping[str, Any], *path: str) -> str:
    """A string field, or the string in nested objects that `path` leads to; empty where there is none."""
    value = _at(line, path)
    return value if isinstance(value, str) else ""


def number(line: Mapping[str, Any], *path: str) -> int | float | None:
    """A number of at least 0; None where it is unknown."""
    value = _at(line, path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value < _MOST and math.isfinite(value) else None


def whole(line: Mapping[str, Any], *path: str) -> int | None:
    """A whole number of at least 0; None where it is unknown."""
    value = _at(line, path)
    return value if type(value) is int and 0 <= value < _MOST else None  # a bool is an int, too


def strings(line: Mapping[str, Any], *path: str) -> list[str]:
    """The strings of a list; empty where there is none."""
    return [item for item in items(line, *path) if isinstance(item, str)]


def items(line: Mapping[str, Any], *path: str) -> list[Any]:
    """A list; empty where there is none."""
    value = _at(line, path)
    return value if isinstance(value, list) else []


def mapping(line: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """An object; empty where there is none."""
    value = _at(line, path)
    return value if isinstance(value, dict) else {}


def _at(line: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = line
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None  # as JSON has them; Mapping takes longer
    return value
