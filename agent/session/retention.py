"""Manage the folder of all sessions: find other sessions at work, and limit the disk space."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.session.catalog import disk_use, repository_of, session_folders
from m3agent.agent.session.log_reader import LOG
from m3agent.agent.session.messages import FILE as MESSAGES
from m3agent.agent.session.session import CALLS
from m3agent.util.append_only import is_locked

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
    """Return the ids of the sessions that work on a repository right now.

    Args:
        state: The state folder.
        root: The repository's root.
        own: The ids of the caller's own sessions, which are left out.
    """
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
        state: The state folder.
        most: The limit in bytes.
        pause: Do nothing if the last call was less than this many seconds ago.

    Returns:
        The ids of the sessions that lost files, oldest first.
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
