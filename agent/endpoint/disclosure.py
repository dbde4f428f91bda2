"""Announce once each remote host that receives data of a repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from m3agent.serving.client.http import host_of, is_local


def announce(url: str, state: Path, say: Callable[[str], None], what: str) -> None:
    """Announce that data goes to the server at `url`, unless it is this machine or was announced before.

    Args:
        url: Address of the server.
        state: Folder for sessions and caches; its file `known-hosts` lists the announced hosts.
        say: Receives the sentence for the person.
        what: The data and its verb, such as "the repository and the issue go".
    """
    if is_local(url):
        return
    host = host_of(url)
    known = state / "known-hosts"
    hosts = known.read_text().splitlines() if known.exists() else []
    if host not in hosts:
        say(f"{what} to {host}, which is not this machine (shown once; --yes hides it)")
        known.write_text("\n".join([*hosts, host]) + "\n")
