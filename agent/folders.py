"""Where this program keeps its files, by the XDG specification."""

from __future__ import annotations

import os
from collections.abc import Mapping


def config_path(env: Mapping[str, str]) -> str | None:
    """Where the user's settings file belongs, whether it exists or not; None when there is no home folder."""
    base = _xdg(env, "XDG_CONFIG_HOME", ".config")
    return f"{base}/m3agent/config.toml" if base else None


def state_path(env: Mapping[str, str]) -> str:
    """The folder for sessions and caches, created for its owner only if it is not there yet.

    $M3AGENT_STATE, else $XDG_STATE_HOME/m3agent, else ~/.local/state/m3agent.
    Raises `EnvironmentFault` when it cannot be made or written.
    """
    path = state_folder(env)
    if path is None:
        raise _fault("There is no home folder to keep sessions in: set M3AGENT_STATE to a folder.")
    try:
        _make(path)
    except OSError as error:
        raise _fault(
            f"The folder {path} for sessions cannot be made ({error.strerror}): set M3AGENT_STATE to another folder."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise _fault(
            f"The folder {path} for sessions cannot be written: set M3AGENT_STATE to another folder."
        )
    return path


def state_folder(env: Mapping[str, str]) -> str | None:
    """Where `state_path` is, whether it exists or not; None when there is no home folder."""
    if chosen := env.get("M3AGENT_STATE"):
        return os.path.abspath(chosen)
    base = _xdg(env, "XDG_STATE_HOME", ".local/state")
    return f"{base}/m3agent" if base else None


def _make(path: str) -> None:
    """Like mkdir -p -m 700: parents as the umask has it."""
    if os.path.isdir(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _fault(text: str) -> Exception:
    from m3agent.agent.errors import EnvironmentFault

    return EnvironmentFault(text)


def _xdg(env: Mapping[str, str], variable: str, below_home: str) -> str | None:
    """A base folder of the XDG specification, which says that relative values are to be ignored."""
    chosen = env.get(variable, "")
    if chosen.startswith("/"):
        return chosen.rstrip("/") or "/"
    home = env.get("HOME") or _home_of_account()
    return f"{home.rstrip('/')}/{below_home}" if home.startswith("/") else None


def _home_of_account() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # an account without an entry, as in containers run by number
        return ""
