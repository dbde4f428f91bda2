"""Check whether this machine has the memory for a KV cache outside the GPUs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from m3agent.serving.plan.host_cache import GIGABYTE

RESERVE = 32 * GIGABYTE
"""Bytes to leave for the engine's processes (assumed)."""
MEMINFO = Path("/proc/meminfo")
SHARED = Path("/dev/shm")  # noqa: S108  # only its size is read
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def lacking_memory(size: int, *, meminfo: Path = MEMINFO, shared: Path | None = SHARED) -> str | None:
    """Return why this machine has no room for a host cache; None if it has, or if that is unknown.

    Args:
        shared: Folder of the shared memory; None if the engine gets its own, as in a container.
    """
    if not size:
        return None
    try:
        found = _AVAILABLE.search(meminfo.read_text("utf-8"))
        room = size if shared is None else shutil.disk_usage(shared).free
    except OSError:
        return None
    wanted = f"a host cache of {size / GIGABYTE:,.0f} GB"
    if found is not None and int(found[1]) * 1024 < size + RESERVE:
        free = int(found[1]) * 1024 / GIGABYTE
        return (
            f"{wanted} needs {(size + RESERVE) / GIGABYTE:,.0f} GB of memory with the engine, and {free:,.0f} GB are "
            "available: lower --host-cache"
        )
    if room < size:
        return (
            f"{wanted} needs as much room in {shared}, and {room / GIGABYTE:,.0f} GB are free there: lower --host-cache, or "
            f"enlarge it (as root: mount -o remount,size=90% {shared})"
        )
    return None
