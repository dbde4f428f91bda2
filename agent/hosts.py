"""Says once which hosts a repository goes to that are not this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from m3agent.serving.http import host_of, is_local


def announce(url: str, state: Path, say: Callable[[str], None], what: str) -> None:
    """Tell that `what` goes to the server at `url`, unless that is this machine or was said before.

    `state` is the folder for sessions and caches.
    """
    if is_local(url):
        return
    host = host_of(url)
    known = state / "known-hosts"
    hosts = known.read_text().splitlines() if known.exists() else []
    if host not in hosts:
        say(f"{what} to {host}, which is not this machine (said once; --yes silences it)")
        known.write_text("\n".join([*hosts, host]) + "\n")
