"""Records of the servers that `m3agent serve` runs on this machine; `fix` finds servers through them.

Each server has a folder in `servers/` of the state folder. The folder contains `server.json`, which exists as
long as the server is meant to run, the server's log, and private files of its command. Logs outlive their
servers; the newest few are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

RECORD, KEY, LOG, LAST_LOG = "server.json", "key", "engine.log", "engine.1.log"
KEPT = 5
"""Number of folders of ended servers that are kept for their logs."""


class Phase(StrEnum):
    """What a server is doing."""

    LOADING = "loading"
    CHECKING = "checking"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPING = "stopping"


class ServerRecord(BaseModel):
    """One server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str
    engine: str
    pid: int = Field(gt=0, le=2**31)
    """Id of the process that supervises it."""
    born: int | None = None
    """Start time of that process in clock ticks since boot, which detects a reused pid; None if unknown."""
    phase: Phase = Phase.READY
    since: float = 0.0
    """Start of the phase, in seconds since 1970."""
    model: str | None = None
    checkpoint: str | None = None
    max_model_len: int | None = None
    """Context window in tokens."""
    version: str | None = None
    gpus: str | None = None
    """The GPUs, as `parse_gpus` reads them."""
    devices: tuple[str, ...] = ()
    kv_tokens: int | None = None
    """KV cache capacity that the engine reported, in tokens."""
    random_weights: bool = False
    """True if the user requested random weights, so answers make no sense."""
    wire_ok: bool | None = None
    """Whether the wire checks passed; None if they did not run."""
    model_ok: bool | None = None
    """Whether the model's answers made sense; None if it was not checked."""
    checks: tuple[dict[str, Any], ...] = ()
    restarts: int = 0
    argv: tuple[str, ...] = ()
    plan: dict[str, Any] | None = None
    """The plan, as `plan --json` prints it."""


def servers_folder(state: Path) -> Path:
    """Return the folder of the servers' folders; create it for this user only if it does not exist."""
    folder = state / "servers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def new_folder(state: Path) -> Path:
    """Create a new server's folder; remove the folders of ended servers except the newest few."""
    parent = servers_folder(state)
    ended = [folder for folder in _folders(parent) if not (folder / RECORD).exists()]
    for folder in ended[KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
    now, rest = divmod(time.time_ns(), 10**9)
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{rest:09}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder


def write_record(folder: Path, record: ServerRecord) -> None:
    """Write or replace a server's record atomically, so that no reader sees half of it."""
    temporary = folder / f"{RECORD}.tmp"
    temporary.write_text(record.model_dump_json(), "utf-8")
    temporary.replace(folder / RECORD)


def remove_record(folder: Path) -> None:
    """Remove the record and the key of an ended server; its log stays."""
    (folder / RECORD).unlink(missing_ok=True)
    (folder / KEY).unlink(missing_ok=True)


def live_servers(state: Path) -> list[tuple[Path, ServerRecord]]:
    """Return the folders and records of servers with a live supervisor, newest first.

    The function removes the records of dead servers and records that cannot be read.
    """
    live = []
    for folder in _folders(state / "servers"):
        try:
            record = ServerRecord.model_validate_json((folder / RECORD).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError):
            remove_record(folder)
            continue
        if alive(record.pid, record.born):
            live.append((folder, record))
        else:
            remove_record(folder)
    return live


def last_folder(state: Path) -> Path | None:
    """Return the folder of the newest server with a log, running or ended; None if there is none."""
    return next((folder for folder in _folders(state / "servers") if (folder / LOG).exists()), None)


def key_of(folder: Path) -> str | None:
    """Return the key that a server of this machine requires; None if it requires none."""
    with contextlib.suppress(OSError):
        return (folder / KEY).read_text("utf-8").strip() or None
    return None


def born(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot.

    Returns:
        The ticks, or None if the process does not exist or /proc cannot be read.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # Fields 3 and 22 of proc(5); the split above removed the first two.
        return None if fields[0] == b"Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int, since: int | None) -> bool:
    """Return whether a process runs.

    Args:
        since: Its start time from `born`, which detects a reused pid; None if unknown.
    """
    if since is not None and Path("/proc/self/stat").exists():
        return born(pid) == since
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


def _folders(parent: Path) -> Iterator[Path]:
    """Yield the folders, newest first; their names begin with the time."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((path for path in parent.iterdir() if path.is_dir()), reverse=True)
