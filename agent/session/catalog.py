"""List the sessions in the state folder, summarise them, find one by its name or at work, and limit their disk space."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.repo.host_git import find as find_repository
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.session.events import QUESTION, EndpointProbed, SessionFinished, SessionForked, TurnStarted
from m3agent.agent.session.log_reader import LOG, Line, number, read_before, read_ends, read_last, text, whole
from m3agent.agent.session.messages import FILE as MESSAGES
from m3agent.agent.session.record import SessionRecord, is_embedded, read_session, record_of
from m3agent.agent.session.session import CALLS, PATCH
from m3agent.util.append_only import is_locked
from m3agent.util.errors import Status, UsageError, reason_of
from m3agent.util.json_value import items, mapping

NOT_FINISHED = "not finished"
"""Status of a session whose log has no end, and that no process has open: it was killed."""
RUNNING = "running"
"""Status of a session that a process has open, without an end in its log."""
DAMAGED = "damaged"
"""Status of a session whose log cannot be read."""
LAST = "last"


@dataclass(frozen=True)
class Summary:
    """Summary of one session. Unknown values are None; unknown texts are empty."""

    id: str
    folder: str
    started: str
    """When it started; for a fork, when it was forked."""
    status: str
    """A status of docs/events.md, or NOT_FINISHED, RUNNING or DAMAGED."""
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
    """None also for the embedded engine, whose numbers of tokens say nothing."""
    cached_tokens: int | None
    completion_tokens: int | None
    price: float | None
    seconds: float | None
    patch: str | None
    notes: tuple[str, ...]
    """What the user should know about the patch, such as the branch that has it."""
    uncommitted: tuple[str, ...]
    """Changed paths that had uncommitted changes at the end: `m3agent apply` does not write over these."""
    bytes: int
    """Disk space of the session's folder."""
    problem: str | None
    """Why the log cannot be read; None if it can."""
    forked_from: str = ""
    """Id of the session that it is a fork of."""
    forked_turn: int | None = None
    """The last turn of that session that it has."""


@dataclass(frozen=True)
class Sessions:
    """The sessions that a command may mean."""

    state: Path
    """The state folder."""
    places: frozenset[Path] | None = None
    """The git folder and the work tree of the present repository; None for the sessions of all repositories."""
    where: Path | None = None
    """What the command is about, for people: a repository or a folder."""
    any_by_name: bool = True
    """Whether an id may be that of another repository's session."""

    def folders(self) -> list[Path]:
        """Return the folders of the sessions, newest first. Raises UsageError if they cannot be listed."""
        return [folder for folder in session_folders(self.state) if self._lists(folder)]

    def list(self) -> list[Summary]:
        """Return summaries of the sessions, newest first. Damaged sessions are included."""
        return [summary_of(folder) for folder in self.folders()]

    def find(self, name: str, *, fixes: bool = False) -> Path:
        """Return the folder of the session that `name` means.

        Args:
            name: An id, the unique beginning of an id, or "last" for the newest session. If the newest session is one of
                several attempts, "last" is the chosen attempt.
            fixes: "last" is the newest session that is no question.

        Raises UsageError: `name` matches no session, several, or one of another repository.
        """
        folders = session_folders(self.state)
        if not folders:
            raise UsageError(
                f"there are no sessions in {self.state / 'sessions'}: `m3agent fix` creates them"
            )
        if name == LAST:
            return self._newest(folders, fixes=fixes)
        matching = _named(folders, name)
        if not matching:
            raise UsageError(f"there is no session '{name}': `m3agent sessions list` shows them")
        own = matching if self.any_by_name else [folder for folder in matching if self._is_of(_first(folder))]
        if not own:
            other = repository_of(matching[0]).get("root") or "a bare repository"
            raise UsageError(
                f"session {matching[0].name} is about {other}, and this is {self.where}: name its repository with --repo"
            )
        if len(own) > 1:
            raise UsageError(
                f"'{name}' is the beginning of {len(own)} sessions, {own[0].name} and {own[1].name} among "
                "them: give a longer part"
            )
        return own[0]

    def _newest(self, folders: Sequence[Path], *, fixes: bool) -> Path:
        for folder in folders:
            if self._lists(folder) and not (fixes and _asks(folder)):
                return chosen(folder)
        raise UsageError(
            f"there is no {'fix' if fixes else 'session'} about {self.where}: `m3agent fix` creates one, --repo FOLDER names another "
            "repository, and `m3agent sessions list --all` shows the sessions of all"
        )

    def _lists(self, folder: Path) -> bool:
        first = _first(folder)
        return self._is_of(first) and not _never_began(folder, first)

    def _is_of(self, first: Line) -> bool:
        """Return whether a session is about the repository, given its first event. One whose log cannot be read may be."""
        if self.places is None:
            return True
        about = mapping(first, "repository")
        names = [about[name] for name in ("git_dir", "root") if about.get(name)]
        return not names or any(_shared(Path(name)) in self.places for name in names)


def _named(folders: Sequence[Path], name: str) -> Sequence[Path]:
    """Return the session with this id, otherwise those whose id begins so."""
    if not name:
        return []
    exact = [folder for folder in folders if folder.name == name]
    return exact or [folder for folder in folders if folder.name.startswith(name)]


def sessions_of(state: Path, repo: Path, *, every: bool = False) -> Sessions:
    """Return the sessions that a command means in a folder: those of its repository.

    Linked work trees and folders of one repository have the same sessions. Outside a repository, the sessions of the folder
    itself are meant, and an id may be any session's: nothing can be confused with it.

    Raises:
        UsageError: There is no such folder.
        EnvironmentFault: The repository is damaged or belongs to another user.
    """
    if every:
        return Sessions(state)
    if not repo.is_dir():
        raise UsageError(f"There is no folder {repo}: give the repository's folder.")
    where = repo.resolve()
    repository = find_repository(str(where))
    if repository is None:
        return Sessions(state, frozenset({where}), where)
    places = {_shared(Path(repository.git_dir)), *(Path(top) for top in (repository.root,) if top)}
    return Sessions(state, frozenset(places), Path(repository.root or repository.git_dir), any_by_name=False)


def repository_of(folder: Path) -> Line:
    """Return what a session's log says about its repository; nothing if it cannot be read. Only its first line is read."""
    return mapping(_first(folder), "repository")


def _first(folder: Path) -> Line:
    """Return the first event of a session; empty if it cannot be read."""
    try:
        with (folder / LOG).open("rb") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return {}
    return first if isinstance(first, dict) else {}


def _never_began(folder: Path, first: Line) -> bool:
    """Return whether a session has ended, or works, without its first event. There is nothing to show or to resume.

    A detached fix has a folder before it has a log.
    """
    if first:
        return text(first, "type") == SessionFinished.type
    try:
        return not (folder / LOG).stat().st_size
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # of others, the list says why the log cannot be read


def _asks(folder: Path) -> bool:
    """Return whether a session only answers a question. An issue in a file named `question` has the same source."""
    last: Line = {}
    with contextlib.suppress(OSError):
        last = (read_ends(folder / LOG) or ({}, {}))[1]
    asks = text(_first(folder), "issue", "source") == QUESTION and not items(last, "paths")
    return asks or text(last, "status") == Status.ANSWERED


def _shared(git_dir: Path) -> Path:
    """Return the git folder that linked work trees share: theirs is below its `worktrees`."""
    resolved = git_dir.resolve()
    return resolved.parent.parent if resolved.parent.name == "worktrees" else resolved


def chosen(folder: Path) -> Path:
    """Return the folder of the attempt that was chosen; the folder itself if none was chosen."""
    with contextlib.suppress(OSError, UsageError):
        ranking = items(read_session(folder).choice, "ranking")
        best = next((item for item in ranking if isinstance(item, dict)), {})
        chosen = folder.with_name(Path(text(best, "session")).name or folder.name)
        return chosen if chosen.is_dir() else folder
    return folder


def first_attempt(folder: Path) -> Path:
    """Return the folder of the first attempt at the same issue: messages to all attempts go there."""
    number = whole(_first(folder), "attempt", "number")
    first = folder.with_name(folder.name.removesuffix(f"-{number}"))
    return first if first.is_dir() else folder


def summary_of(folder: Path) -> Summary:
    """Return the summary of one session. If its log has an end, the lines of its turns are not read."""
    log = folder / LOG
    try:
        ends = read_ends(log)
        if ends is None or ends[1].get("type") != SessionFinished.type:
            return _summary(folder, read_session(folder), None)
        probed = read_before(log, EndpointProbed.type, TurnStarted.type)
        return _summary(folder, record_of((ends[0], *probed, ends[1])), None)
    except (OSError, UsageError) as error:
        why = f"{log}: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        return _summary(folder, SessionRecord(), why)


def _summary(folder: Path, record: SessionRecord, problem: str | None) -> Summary:
    first, last = record.started, record.ended
    used = {} if is_embedded(first, record.prepared) else last
    forked = {} if problem else _forked(folder, text(first, "ts"))
    calls = sum(bool(call.started) for turn in record.turns for call in turn.calls)
    status = DAMAGED if problem else text(last, "status")
    if not status:
        status = RUNNING if is_locked(folder / LOG) else NOT_FINISHED
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
        prompt_tokens=whole(used, "prompt_tokens"),
        cached_tokens=whole(used, "cached_tokens"),
        completion_tokens=whole(used, "completion_tokens"),
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


MOST_BYTES = 4 << 30
"""The most bytes for all sessions together. Above it, the oldest sessions lose the files that only resuming
and inspection need.
"""
BULKY = (TREES, MESSAGES, CALLS)
LOOKED_AT = 200
"""How many of the newest sessions are checked for a running process. Older ones have ended, or have hung for
days.
"""
PAUSE = 24 * 3600
"""Seconds between two measurements of the disk space."""


def at_work_on(state: Path, root: str, own: Collection[str]) -> list[str]:
    """Return the ids of the sessions that work on a repository right now."""
    found = []
    for folder in _newest(state)[:LOOKED_AT]:
        if folder.name not in own and is_locked(folder / LOG) and repository_of(folder).get("root") == root:
            found.append(folder.name)
    return found


def trim(state: Path, most: int = MOST_BYTES, pause: float = PAUSE) -> list[str]:
    """Bring the sessions together below `most` bytes by deleting bulky files, oldest session first.

    A session's log, patch and result stay. The newest session and those that a process has open are left
    alone.

    Args:
        pause: Do nothing if the last call was less than this many seconds ago.

    Returns the ids of the sessions that lost files, oldest first.
    """
    marker, now = state / "sessions" / ".trimmed", time.time()
    try:
        if 0 <= now - marker.stat().st_mtime < pause:  # the date may have been set back since
            return []
    except OSError:
        pass
    try:
        marker.touch()
        os.utime(marker, (now, now))  # the clock of a file server may be another one
    except OSError:
        return []
    sizes = {folder: disk_use(folder) for folder in _newest(state)}
    total, lost = sum(sizes.values()), []
    for folder in reversed(list(sizes)[1:]):
        if total <= most:
            break
        bulk = [folder / name for name in BULKY if (folder / name).exists()]
        if not bulk or is_locked(folder / LOG):
            continue
        for path in bulk:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        total -= sizes[folder] - disk_use(folder)
        lost.append(folder.name)
    return lost


def _newest(state: Path) -> list[Path]:
    return [folder for folder in session_folders(state) if (folder / LOG).is_file()]
