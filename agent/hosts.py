"""Says once which hosts a repository goes to that are not this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def announce(host: str, state: Path, say: Callable[[str], None], what: str) -> None:
    """Tell that `what` goes to `host`, unless that was said before; `state` is the folder for sessions and caches."""
    known = state / "known-hosts"
    hosts = known.read_text().splitlines() if known.exists() else []
    if host not in hosts:
        say(f"{what} to {host}, which is not this machine (said once; --yes silences it)")
        known.write_text("\n".join([*hosts, host]) + "\n")
