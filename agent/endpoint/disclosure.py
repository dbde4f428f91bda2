"""Announce once each remote host that receives data of a repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from m3agent.serving.client.http import host_of, is_local


def announce(url: str, state: Path, say: Callable[[str], None], what: str, *, key: str | None) -> None:
    """Announce that data goes to the server at `url`, unless it is this machine or was announced before.

    Args:
        url: Address of the server.
        state: Folder for sessions and caches; its file `known-hosts` lists the announced hosts.
        say: Receives the sentence for the person.
        what: The data and its verb, such as "the repository and the issue go".
        key: The key that goes there as well, or None.
    """
    if is_local(url):
        return
    host = host_of(url)
    known = state / "known-hosts"
    hosts = known.read_text("utf-8").splitlines() if known.exists() else []
    if host not in hosts:
        with_key = "" if key is None else ", with its key"
        say(f"{what} to {host}{with_key}, which is not this machine (shown once; --yes hides it)")
        known.write_text("\n".join([*hosts, host]) + "\n", "utf-8")
