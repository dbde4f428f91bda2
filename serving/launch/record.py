"""Servers of ours that are running on this machine, as `m3agent serve` writes them down: how `fix` finds them.

Each has a folder of its own in `servers/` of the state folder: `server.json`, there as long as the server is meant to
run; its log; private files of its command. Logs outlive their servers, the newest few of them.
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
"""Folders of ended servers that are kept for their logs."""


class Phase(StrEnum):
    """What a server is doing."""

    LOADING = "loading"
    CHECKING = "checking"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPING = "stopping"


class ServerRecord(BaseModel):
    """One server. `pid` is the process that keeps it and `born` when that began, so that a number used again is not
    taken for it; times are in seconds since 1970.

    `model` is its name in requests, `checkpoint` the folder or the name of what it serves.
    `random_weights`: they were asked for, so nothing sensible can be expected. `model_ok`: whether the model answered
    sensibly, None if it was not asked. `kv_tokens`: what the engine's cache holds; `plan`: what was planned, as `plan
    --json` has it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str
    engine: str
    pid: int = Field(gt=0, le=2**31)
    born: int | None = None
    phase: Phase = Phase.READY
    since: float = 0.0
    model: str | None = None
    checkpoint: str | None = None
    max_model_len: int | None = None
    version: str | None = None
    gpus: str | None = None
    devices: tuple[str, ...] = ()
    kv_tokens: int | None = None
    random_weights: bool = False
    wire_ok: bool | None = None
    model_ok: bool | None = None
    checks: tuple[dict[str, Any], ...] = ()
    restarts: int = 0
    argv: tuple[str, ...] = ()
    plan: dict[str, Any] | None = None


def servers_folder(state: Path) -> Path:
    """Where the servers' folders are; made if need be, for this user only."""
    folder = state / "servers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def new_folder(state: Path) -> Path:
    """A new server's folder; those of servers that ended are removed, all but the newest few."""
    parent = servers_folder(state)
    ended = [folder for folder in _folders(parent) if not (folder / RECORD).exists()]
    for folder in ended[KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
    now, rest = divmod(time.time_ns(), 10**9)
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{rest:09}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder


def write_record(folder: Path, record: ServerRecord) -> None:
    """Write a server down, or anew; in one step, so that nobody reads half of it."""
    temporary = folder / f"{RECORD}.tmp"
    temporary.write_text(record.model_dump_json())
    temporary.replace(folder / RECORD)


def remove_record(folder: Path) -> None:
    """The server ended: its log stays."""
    (folder / RECORD).unlink(missing_ok=True)
    (folder / KEY).unlink(missing_ok=True)


def live_servers(state: Path) -> list[tuple[Path, ServerRecord]]:
    """Servers whose keeper is alive with their folders, newest first; records of dead ones are removed."""
    found = []
    for folder in _folders(state / "servers"):
        try:
            record = ServerRecord.model_validate_json((folder / RECORD).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValidationError):
            remove_record(folder)
            continue
        if alive(record.pid, record.born):
            found.append((folder, record))
        else:
            remove_record(folder)
    return found


def last_folder(state: Path) -> Path | None:
    """The folder of the newest server that has a log, running or ended."""
    return next((folder for folder in _folders(state / "servers") if (folder / LOG).exists()), None)


def key_of(folder: Path) -> str | None:
    """The key that a server of ours asks for; None: none."""
    with contextlib.suppress(OSError):
        return (folder / KEY).read_text().strip() or None
    return None


def born(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where it is none, or /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # the 3rd and the 22nd of proc(5), which the name and what stands before it are left out of
        return None if fields[0] == b"Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def alive(pid: int, since: int | None) -> bool:
    """Whether a process runs, and is the one that began then; since: None where that is not known."""
    if since is not None and Path("/proc/self/stat").exists():
        return born(pid) == since
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


def _folders(parent: Path) -> Iterator[Path]:
    """Newest first; their names begin with the time."""
    with contextlib.suppress(FileNotFoundError):
        yield from sorted((path for path in parent.iterdir() if path.is_dir()), reverse=True)
