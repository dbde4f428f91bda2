"""Read a session's log. It may be from an older version, cut off by a kill, or still being written.

The contract is docs/events.md: readers ignore unknown types and fields. Nothing here relies on a field. The functions
at the end of this module return the value of a field. If it is missing or has the wrong type, they return None or an
empty value.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from m3agent.agent.session.events import VERSION
from m3agent.util.errors import UsageError, reason_of
from m3agent.util.json_value import value_at

LOG = "events.jsonl"
Line = dict[str, Any]
"""One event of a log, as a JSON object."""

_TAIL = 64 << 10  # bytes read at the end of a log to find its last line; session.finished is far shorter
_MOST = 2**63  # larger numbers are not counts, and may not even fit into a float


@dataclass(frozen=True)
class SessionLog:
    """The contents of a log."""

    path: Path
    events: tuple[Line, ...]
    notes: tuple[str, ...]
    """Notes for people on the state of the log, such as an incomplete last line."""


def read_log(path: Path) -> SessionLog:
    """Read all events of a log. An incomplete last line is left out, with a note.

    Raises UsageError: The file cannot be read, or a line is damaged or of an unknown version. The message names file
    and line.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the log cannot be read ({reason_of(error)})") from None
    lines = raw.split(b"\n")
    torn = lines.pop()  # empty if the last line is complete
    events = [_parsed(line, path, number) for number, line in enumerate(lines, 1)]
    notes = []
    if torn:
        notes.append(
            f"the log's last line is cut off after {len(torn):,} bytes and is ignored: the session was killed "
            "while writing, or is still writing"
        )
    return SessionLog(path, tuple(events), tuple(notes))


def read_new(path: Path, start: int) -> tuple[list[Line], int]:
    """Return the events of a log after a position in bytes, and the position after them. A line that is being written waits.

    Raises UsageError: A line is damaged or of an unknown version.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            whole_lines = file.read().rpartition(b"\n")[0]
    except OSError:
        return [], start
    if not whole_lines:
        return [], start
    lines = [_parsed(raw, path, 0) for raw in whole_lines.split(b"\n")]
    return lines, start + len(whole_lines) + 1


def read_ends(path: Path) -> tuple[Line, Line] | None:
    """Return the first and the last event of a log without reading the lines between.

    Returns:
        The two events; None if one of them is incomplete, damaged or of another version, or if there are not two lines.

    Raises OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        first = file.readline()
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read()
    lines = tail.split(b"\n")
    if len(lines) < 3 or lines[-1]:  # without two line ends, the last line may be incomplete
        return None
    ends = _all_parsed((first, lines[-2]), path)
    return (ends[0], ends[1]) if ends else None


def read_last(path: Path, kind: str) -> Line:
    """Return the last event of a type without parsing the others; empty if the log has no such event.

    Raises OSError: The file cannot be read.
    """
    raw = path.read_bytes()
    at = raw.rfind(f'"type":"{kind}"'.encode())
    if at < 0:
        return {}
    end = raw.find(b"\n", at)
    found = _all_parsed([raw[raw.rfind(b"\n", 0, at) + 1 : end if end >= 0 else None]], path)
    return next((line for line in found if line.get("type") == kind), {})


def read_before(path: Path, kind: str, end: str) -> list[Line]:
    """Return the events of one type before the first event of another type. The lines between are not parsed.

    Raises OSError: The file cannot be read.
    """
    wanted, last = (f'"type":"{name}"'.encode() for name in (kind, end))
    with path.open("rb") as file:
        lines = [raw for raw in takewhile(lambda raw: last not in raw, file) if wanted in raw]
    return _all_parsed(lines, path)


def _all_parsed(lines: Iterable[bytes], path: Path) -> list[Line]:
    """Return the events of these lines; none if one of them is damaged or of another version."""
    try:
        return [_parsed(raw, path, 0) for raw in lines]
    except UsageError:
        return []


def _parsed(raw: bytes, path: Path, number: int) -> Line:
    try:
        # decoded here, because json could mistake bytes for UTF-16
        line = json.loads(raw.decode())
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise UsageError(
            f"{path}, line {number}: this is not an event (a JSON object): the log is damaged there"
        )
    if (version := line.get("v")) != VERSION or isinstance(version, bool):
        said = "without a version" if version is None else f"of version {str(version)[:40]}"
        raise UsageError(
            f"{path}, line {number}: the event is {said}, and this m3agent reads version {VERSION}: use the version that "
            "wrote the log, or a newer one"
        )
    return line


def text(line: Mapping[str, Any], *path: str) -> str:
    """Return the string at `path` (a field, or fields of nested objects); empty if it is missing or not a string."""
    value = value_at(line, *path)
    return value if isinstance(value, str) else ""


def number(line: Mapping[str, Any], *path: str) -> int | float | None:
    """Return the number at `path`; None if it is missing, negative, too large or not a number."""
    value = value_at(line, *path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value < _MOST and math.isfinite(value) else None


def whole(line: Mapping[str, Any], *path: str) -> int | None:
    """Return the whole number at `path`; None if it is missing, negative, too large or not a whole number."""
    value = value_at(line, *path)
    return value if type(value) is int and 0 <= value < _MOST else None  # a bool is an int, too
