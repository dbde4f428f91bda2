"""A new session that begins as an earlier one did, up to the end of one of its turns, and may then go another way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from m3agent.agent.append_only import fault
from m3agent.agent.conversation import FILE as MESSAGES
from m3agent.agent.conversation import Message, as_line, read_lines
from m3agent.agent.errors import UsageError
from m3agent.agent.events import SessionForked
from m3agent.agent.session import Session, make_folder, new_id
from m3agent.agent.session_log import LOG, Line, read_log, text, whole
from m3agent.agent.workspaces import TREES, scratch_folder
from m3agent.sandbox.git import copy_store


def fork(state: Path, source: Path, turn: int | None) -> Path:
    """The folder of a new session with what the session in `source` had come to at the end of `turn`, by default its last
    answered one. The source is only read; it may be over, or be at work.

    Raises:
        UsageError: it has no such turn, or a part of it is gone or damaged.
        EnvironmentFault: the new session cannot be written.
    """
    lines = read_log(source / LOG).events
    answered = [_turn(line) for line in lines if text(line, "type") == "message"]
    last = turn if turn is not None else max(answered, default=0)
    if last not in answered:
        has = f"its answered turns are {answered[0]} to {answered[-1]}" if answered else "it has none"
        raise UsageError(f"the session {source.name} has no answer in turn {last}: {has}")
    for part in (MESSAGES, TREES):
        if not (source / part).exists():
            raise UsageError(f"the session in {source} cannot be forked: {part} is gone")
    name, said = new_id(), read_lines(source)
    try:
        with scratch_folder(state) as scratch:
            folder = scratch / name
            make_folder(folder)
            _write(folder / LOG, _log_until(lines, last, name))
            _write(folder / MESSAGES, _messages_until(said, answered.index(last) + 1))
            copy_store(source / TREES, folder / TREES)
            target = state / "sessions" / name
            folder.rename(target)
    except (OSError, shutil.Error) as error:
        raise fault(error, state) from None
    session, _ = Session.open(target, [])
    session.write(SessionForked(source=source.name, turn=last))
    session.close()
    return target


def _write(path: Path, lines: Sequence[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _log_until(lines: Sequence[Line], turn: int, name: str) -> list[bytes]:
    """The log up to the last line that is of a turn, as a session of this name has it."""
    end = next((n for n, line in enumerate(lines) if _turn(line) > turn), len(lines))
    while _turn(lines[end - 1]) == 0 and text(lines[end - 1], "where") != "session":
        end -= 1  # how the session ended, or went on
    return [json.dumps(line | {"session": name}, separators=(",", ":")).encode() for line in lines[:end]]


def _turn(line: Line) -> int:
    """The turn that a line is of; 0 for one that is of none."""
    return whole(line, "turn") or 0


def _messages_until(lines: Sequence[Message], answers: int) -> list[bytes]:
    """The lines of a conversation before the answer that follows so many."""
    positions = [n for n, line in enumerate(lines) if line["role"] == "assistant"]
    end = positions[answers] if answers < len(positions) else len(lines)
    return [as_line(line) for line in lines[:end]]
