"""Model servers of ours that are running on this machine, as `m3agent serve` writes them down."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerRecord:
    """One server: where it answers, which engine it is, and its process."""

    url: str
    engine: str
    pid: int


def _folder(state: Path) -> Path:
    return state / "servers"


def write_record(state: Path, record: ServerRecord) -> Path:
    """Write a server down; the caller removes the file when the server ends."""
    _folder(state).mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _folder(state) / f"{record.pid}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(record)))
    temporary.replace(path)
    return path


def live_servers(state: Path) -> list[ServerRecord]:
    """Servers whose process is alive, newest first; records of dead ones are removed."""
    found = []
    files = sorted(_folder(state).glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in files:
        try:
            record = ServerRecord(**json.loads(path.read_text()))
            os.kill(record.pid, 0)
        except PermissionError:
            continue  # alive, but another user's
        except (OSError, ValueError, TypeError, OverflowError):
            path.unlink(missing_ok=True)
            continue
        found.append(record)
    return found
