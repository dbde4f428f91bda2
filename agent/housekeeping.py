"""The folder of sessions as a whole: who else is at work on a repository, and how much of the disk it all takes."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from m3agent.agent.conversation import FILE as MESSAGES
from m3agent.agent.session import CALLS
from m3agent.agent.session_log import LOG
from m3agent.agent.sessions import disk_use, session_folders
from m3agent.agent.workspaces import TREES

MOST_BYTES = 4 << 30
"""What sessions may take together. Beyond it the oldest lose what only resuming and looking closer need."""
BULKY = (TREES, MESSAGES, CALLS)
LOOKED_AT = 200
"""Newest sessions that are asked whether they run: older ones have ended, or hung for days."""
PAUSE = 24 * 3600
"""Seconds between two looks at what all of it takes."""


def at_work_on(state: Path, root: str, own: Collection[str]) -> list[str]:
    """Ids of the sessions, other than those of one's `own`, that work on the repository at `root` right now."""
    found = []
    for folder in _newest(state)[:LOOKED_AT]:
        if folder.name not in own and _is_open(folder / LOG) and _root(folder / LOG) == root:
            found.append(folder.name)
    return found


def trim(state: Path, most: int = MOST_BYTES, pause: float = PAUSE) -> list[str]:
    """Bring the sessions together below `most` bytes; returns the ids of those that lost their bulk, oldest first.

    A session's log, patch and result stay. One that is open in any process is left alone, and so is the newest. Does
    nothing where it looked less than `pause` seconds ago.
    """
    marker = state / "sessions" / ".trimmed"
    try:
        if time.time() - marker.stat().st_mtime < pause:
            return []
    except OSError:
        pass
    try:
        marker.touch()
    except OSError:
        return []
    sizes = {folder: disk_use(folder) for folder in _newest(state)}
    total, lost = sum(sizes.values()), []
    for folder in reversed(list(sizes)[1:]):
        if total <= most:
            break
        bulk = [folder / name for name in BULKY if (folder / name).exists()]
        if not bulk or _is_open(folder / LOG):
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


def _is_open(log: Path) -> bool:
    """Whether a process holds the session: the kernel lets go of the lock with the process, whatever ended it."""
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _root(log: Path) -> str | None:
    try:
        with log.open("rb") as file:
            return str(json.loads(file.readline())["repository"]["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
