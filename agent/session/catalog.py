"""List the sessions in the state folder, summarise them, and find one by its name."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.errors import UsageError, reason_of
from m3agent.agent.session.events import SessionForked
from m3agent.agent.session.log_reader import LOG, Line, items, number, read_ends, read_last, text, whole
from m3agent.agent.session.record import SessionRecord, read_session, record_of
from m3agent.agent.session.session import PATCH

NOT_FINISHED = "not finished"
"""Status of a session whose log has no end: it is still running or was killed. The log does not show which."""
DAMAGED = "damaged"
"""Status of a session whose log cannot be read."""
LAST = "last"


@dataclass(frozen=True)
class Summary:
    """Summary of one session. Unknown values are None; unknown texts are empty.

    Attributes:
        started: When it started; for a fork, when it was forked.
        forked_from, forked_turn: Id of the session that it is a fork of, and the last turn of that session that it has.
        status: A status of docs/events.md, or NOT_FINISHED, or DAMAGED.
        notes: What the user should know about the patch, such as the branch that has it.
        uncommitted: Changed paths that had uncommitted changes at the end: `m3agent apply` does not write over these.
        bytes: Disk space of the session's folder.
        problem: Why the log cannot be read; None if it can.
    """

    id: str
    folder: str
    started: str
    status: str
    reason: str
    exit: int | None
    issue: str
    source: str
    repository: str
    commit: str
    engine: str
    turns: int | None
    calls: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    price: float | None
    seconds: float | None
    patch: str | None
    notes: tuple[str, ...]
    uncommitted: tuple[str, ...]
    bytes: int
    problem: str | None
    forked_from: str = ""
    forked_turn: int | None = None


def list_sessions(state: Path) -> list[Summary]:
    """Return summaries of all sessions in the state folder, newest first. Damaged sessions are included."""
    return [summary_of(folder) for folder in session_folders(state)]


def find_session(state: Path, name: str) -> Path:
    """Return the folder of the session that `name` means.

    Args:
        state: The state folder.
        name: An id, the unique beginning of an id, or "last" for the newest session. If the newest session is one of
            several attempts, "last" is the chosen attempt.

    Raises:
        UsageError: `name` matches no session, or several.
    """
    folders = session_folders(state)
    if not folders:
        raise UsageError(f"there are no sessions in {state / 'sessions'}: `m3agent fix` creates them")
    if name == LAST:
        return _chosen(folders[0])
    exact = [folder for folder in folders if folder.name == name]
    found = exact or [folder for folder in folders if name and folder.name.startswith(name)]
    if not found:
        raise UsageError(f"there is no session '{name}': `m3agent sessions list` shows them")
    if len(found) > 1:
        raise UsageError(
            f"'{name}' is the beginning of {len(found)} sessions, {found[0].name} and {found[1].name} among "
            "them: give a longer part"
        )
    return found[0]


def _chosen(folder: Path) -> Path:
    """Return the folder of the attempt that was chosen; the folder itself if none was chosen."""
    with contextlib.suppress(OSError, UsageError):
        ranking = items(read_session(folder).choice, "ranking")
        best = next((item for item in ranking if isinstance(item, dict)), {})
        chosen = folder.with_name(Path(text(best, "session")).name or folder.name)
        return chosen if chosen.is_dir() else folder
    return folder


def summary_of(folder: Path) -> Summary:
    """Return the summary of one session. If its log has an end, only the first and the last line are read."""
    log = folder / LOG
    try:
        ends = read_ends(log)
        is_over = ends is not None and ends[1].get("type") == "session.finished"
        return _summary(folder, record_of(ends or ()) if is_over else read_session(folder), None)
    except (OSError, UsageError) as error:
        why = f"{log}: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        return _summary(folder, SessionRecord(), why)


def _summary(folder: Path, record: SessionRecord, problem: str | None) -> Summary:
    first, last = record.started, record.ended
    forked = {} if problem else _forked(folder, text(first, "ts"))
    calls = sum(bool(call.started) for turn in record.turns for call in turn.calls)
    status = DAMAGED if problem else text(last, "status") or NOT_FINISHED
    price, seconds = number(last, "price"), number(last, "seconds")
    patch = folder / PATCH
    return Summary(
        id=folder.name,
        folder=str(folder),
        started=text(forked, "ts") or text(first, "ts"),
        status=status,
        reason=text(last, "reason"),
        exit=whole(last, "exit"),
        issue=text(first, "issue", "title"),
        source=text(first, "issue", "source"),
        repository=text(first, "repository", "root"),
        commit=text(first, "repository", "head"),
        engine=text(first, "endpoint", "description"),
        turns=whole(last, "turns") if last else len(record.turns),
        calls=whole(last, "calls") if last else calls,
        prompt_tokens=whole(last, "prompt_tokens"),
        cached_tokens=whole(last, "cached_tokens"),
        completion_tokens=whole(last, "completion_tokens"),
        price=None if price is None else float(price),
        seconds=None if seconds is None else float(seconds),
        patch=str(patch) if patch.is_file() else None,
        notes=tuple(map(str, items(last, "notes"))),
        uncommitted=tuple(map(str, items(last, "uncommitted"))),
        bytes=disk_use(folder),
        problem=problem,
        forked_from=text(forked, "source"),
        forked_turn=whole(forked, "turn"),
    )


def _forked(folder: Path, started: str) -> Line:
    """Return how a session was forked from another one; empty if it was not.

    A fork begins with the lines of the other session, so they are older than its id.
    """
    second = slice(len("20260131120000"))
    if re.sub(r"\D", "", started)[second] == folder.name.replace("-", "")[second]:
        return {}
    with contextlib.suppress(OSError):
        return read_last(folder / LOG, SessionForked.type)
    return {}


def session_folders(state: Path) -> list[Path]:
    """Return the folders of all sessions, newest first. Raises UsageError if they cannot be listed."""
    try:
        with os.scandir(state / "sessions") as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{state / 'sessions'} cannot be read: {reason_of(error)}") from None
    return [state / "sessions" / name for name in sorted(names, reverse=True)]


def disk_use(folder: Path) -> int:
    """Return the bytes of disk blocks in a folder. Files that vanish or cannot be read do not count."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(entry.path)
                elif not stat.S_ISREG(found.st_mode):
                    continue
                total += found.st_blocks * 512
    return total
