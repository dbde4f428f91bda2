"""Tell the user once about each remote host that receives data of a repository, or ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from m3agent.serving.client.http import host_of, is_local
from m3agent.util.errors import PermissionRefused


def announce(url: str, state: Path, say: Callable[[str], None], what: str, *, key: str | None) -> None:
    """Announce that data goes to the server at `url`, unless it is this machine or was announced before.

    Args:
        what: The data and its verb, such as "the repository and the issue go".
    """
    if _is_new(url, state):
        say(f"{_sentence(url, what, key)} (shown once; --yes hides it)")
        _remember(url, state)


def ask_first(url: str, state: Path, agrees: Callable[[str], bool], what: str, *, key: str | None) -> None:
    """Ask whether data may go to the server at `url`, unless it is this machine or was agreed to or announced before.

    Args:
        agrees: Asks the person: gets what to say, and returns whether they agree.

    Raises PermissionRefused: The person does not agree.
    """
    if not _is_new(url, state):
        return
    if not agrees(_sentence(url, what, key)):
        raise PermissionRefused(
            f"nothing was sent to {host_of(url)}: name another server with --endpoint, or none with --engine embedded"
        )
    _remember(url, state)


def _is_new(url: str, state: Path) -> bool:
    return not is_local(url) and host_of(url) not in _known(state)


def _sentence(url: str, what: str, key: str | None) -> str:
    key_too = "" if key is None else "; so does its key"
    return f"{what} to {host_of(url)}, which is not this machine{key_too}"


def _known(state: Path) -> list[str]:
    path = state / "known-hosts"
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _remember(url: str, state: Path) -> None:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    (state / "known-hosts").write_text("\n".join([*_known(state), host_of(url)]) + "\n", "utf-8")
