"""Fork a session: start a new session with a copy of an earlier one, up to the end of one of its turns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from m3agent.agent.repo.snapshot import TREES, scratch_folder
from m3agent.agent.session.events import Proposal, ProposalAnswered, SessionForked
from m3agent.agent.session.log_reader import LOG, Line, SessionLog, text, whole
from m3agent.agent.session.messages import FILE as MESSAGES
from m3agent.agent.session.messages import Message, as_line, read_lines
from m3agent.agent.session.session import Session, line_of, make_folder, new_id
from m3agent.sandbox.store.git import copy_store
from m3agent.util.append_only import fault
from m3agent.util.errors import UsageError
from m3agent.util.json_value import mapping


def fork(
    state: Path,
    log: SessionLog,
    turn: int | None,
    base: tuple[str, str] | None = None,
    moved: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Session, list[Line]]:
    """Start a new session with a copy of an earlier one, up to the end of one of its turns.

    Args:
        turn: Number of the turn; None for the last turn with an answer.
        base: A commit and its tree, which patches of the new session start from; None for those of the earlier session.
        moved: Trees with a proposed test, and what they are on the new base.

    Returns the new session, open, and the lines of its log.

    Raises:
        UsageError: The turn does not exist or has no answer, or a part of the earlier session is gone or damaged.
        EnvironmentFault: The new session cannot be written.
    """
    source, lines = log.path.parent, log.events
    answered = [_turn(line) for line in lines if text(line, "type") == "message"]
    if not answered:
        raise UsageError(
            f"the session {source.name} cannot be forked: the model never answered in it; start the fix again"
        )
    last = turn if turn is not None else max(answered)
    if last not in answered:
        raise UsageError(
            f"the session {source.name} has no answer in turn {last}: its answered turns are {answered[0]} to {answered[-1]}"
        )
    for part in (MESSAGES, TREES):
        if not (source / part).exists():
            raise UsageError(f"the session in {source} cannot be forked: {part} is missing")
    name, messages = new_id(), read_lines(source)
    copied = _lines_until(lines, last)
    if turn is not None:
        copied = _without_answer(copied, turn)
    kept: list[Line] = [_moved(line, moved) | {"session": name} for line in copied]
    if base is not None:
        commit, tree = base
        kept[0] |= {"tree": tree, "repository": {**mapping(kept[0], "repository"), "head": commit}}
    kept.append(line_of(SessionForked(source=source.name, turn=last), kept[-1]["seq"] + 1, name))
    try:
        with scratch_folder(state) as scratch:
            folder = scratch / name
            make_folder(folder)
            _write(folder / LOG, [json.dumps(line, separators=(",", ":")).encode() for line in kept])
            _write(folder / MESSAGES, _messages_until(messages, answered.index(last) + 1))
            copy_store(source / TREES, folder / TREES)
            target = state / "sessions" / name
            folder.rename(target)
    except (OSError, shutil.Error) as error:
        raise fault(error, state) from None
    return Session(target, [], seq=kept[-1]["seq"]), kept


def _write(path: Path, lines: Sequence[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _lines_until(lines: Sequence[Line], turn: int) -> Sequence[Line]:
    """Return the lines of the log up to the last line of a turn."""
    end = next((n for n, line in enumerate(lines) if _turn(line) > turn), len(lines))
    while _turn(lines[end - 1]) == 0 and text(lines[end - 1], "where") != "session":
        end -= 1  # lines about the session's end or its resumption
    return lines[:end]


def _without_answer(lines: Sequence[Line], turn: int) -> list[Line]:
    """Return the lines without the answer to the turn's proposal, which had none at the end of the turn."""
    kept = [line for line in lines if (line["type"], _turn(line)) != (ProposalAnswered.type, turn)]
    return [line | {"seq": number} for number, line in enumerate(kept, 1)]


def _moved(line: Line, moved: Mapping[str, str]) -> Line:
    """Return a line of the log with the new tree of its proposal, if it is one."""
    if line["type"] != Proposal.type:
        return line
    return line | {"tree": moved.get(text(line, "tree"), line.get("tree"))}


def _turn(line: Line) -> int:
    """Return the number of the turn that a line belongs to; 0 if it belongs to no turn."""
    return whole(line, "turn") or 0


def _messages_until(lines: Sequence[Message], answers: int) -> list[bytes]:
    """Return the lines of a conversation up to `answers` answers and the results of their calls."""
    positions = [n for n, line in enumerate(lines) if line["role"] == "assistant"]
    end = positions[answers] if answers < len(positions) else len(lines)
    return [as_line(line) for line in lines[:end]]
