"""The locations of m3agent's files, by the XDG Base Directory specification."""

from __future__ import annotations

import os
from collections.abc import Mapping


def config_path(env: Mapping[str, str]) -> str | None:
    """Return the path of the user's settings file, which may not exist; None if there is no home folder."""
    base = _xdg(env, "XDG_CONFIG_HOME", ".config")
    return f"{base}/m3agent/config.toml" if base else None


def state_path(env: Mapping[str, str]) -> str:
    """Return the folder for sessions and caches. Create it with mode 700 if it does not exist.

    It is $M3AGENT_STATE, else $XDG_STATE_HOME/m3agent, else ~/.local/state/m3agent.

    Raises:
        EnvironmentFault: The folder cannot be created or written.
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
    """Return the path that `state_path` uses, without creating it; None if there is no home folder."""
    if chosen := env.get("M3AGENT_STATE"):
        return os.path.abspath(chosen)
    base = _xdg(env, "XDG_STATE_HOME", ".local/state")
    return f"{base}/m3agent" if base else None


def _make(path: str) -> None:
    """Create a folder like `mkdir -p -m 700`. Missing parents get the mode of the umask."""
    if os.path.isdir(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _fault(text: str) -> Exception:
    from m3agent.util.errors import EnvironmentFault

    return EnvironmentFault(text)


def _xdg(env: Mapping[str, str], variable: str, below_home: str) -> str | None:
    """Return a base folder of the XDG specification. By the specification, relative values are ignored."""
    chosen = env.get(variable, "")
    if chosen.startswith("/"):
        return chosen.rstrip("/") or "/"
    home = env.get("HOME") or _home_of_account()
    return f"{home.rstrip('/')}/{below_home}" if home.startswith("/") else None


def _home_of_account() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # the account has no passwd entry, as in containers that run under a numeric user id
        return ""
