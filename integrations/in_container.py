"""Install and start m3agent in a container that another program made, and read its result.

All adapters use this module, so every framework runs the same command:

    m3agent fix ISSUE --repo . --sandbox here --result-only --no-probe --yes
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from m3agent.agent.session.log_reader import LOG
from m3agent.agent.session.messages import read_messages
from m3agent.agent.session.record import read_session
from m3agent.agent.session.token_log import read_tokens
from m3agent.agent.trajectory.atif import to_atif
from m3agent.serving.client.messages import TurnTokens

PREFIX = "/opt/m3agent"
"""Folder of the installation in the container."""
BUNDLE = "/tmp/m3agent.pyz"  # noqa: S108  # in a container that was made for one task
"""Where adapters upload the file of `make bundle`."""
BUNDLE_VARIABLE = "M3AGENT_BUNDLE"
"""Environment variable with the path of that file on this machine."""
INSTALL = f"python3 {BUNDLE} --prefix {PREFIX} && rm -f {BUNDLE}"
PRESENT = f'PATH="$PATH:{PREFIX}/bin" command -v m3agent'
"""Shell command that succeeds if the container has m3agent."""
MISSING = (
    "The container has no m3agent. Install it in the image, or build a bundle with `make bundle` and name it with "
    f"{BUNDLE_VARIABLE}."
)


class Result(BaseModel):
    """The JSON object that `fix --result-only` prints. docs/fix.md describes its fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: str
    isolated: bool
    reason: str
    session: str
    paths: tuple[str, ...]
    fixed: tuple[str, ...]
    broken: tuple[str, ...]


def find_bundle(named: str | os.PathLike[str] | None) -> Path | None:
    """Return the bundle to upload: the named one, else that of the environment variable, else None.

    Raises:
        FileNotFoundError: There is no such file.
    """
    name = named or os.environ.get(BUNDLE_VARIABLE)
    if not name:
        return None
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"There is no bundle {path}: build it with `make bundle`.")
    return path


def fix_command(issue: str, *, training: bool = False, output: str | None = None) -> str:
    """Return the shell command that fixes an issue in the present folder.

    Args:
        issue: Path of the issue's text in the container.
        training: Make the conversation fit for training (docs/fix.md).
        output: Path for the result; None for standard output.
    """
    words = ["m3agent", "fix", issue, "--sandbox", "here", "--result-only", "--no-probe", "--yes"]
    line = shlex.join([*words, *(["--training"] if training else [])])
    return f'PATH="$PATH:{PREFIX}/bin"; {line}' + (f" > {shlex.quote(output)}" if output else "")


def fix_environment(endpoint: str, key: str | None, model: str, state: str | None = None) -> dict[str, str]:
    """Return the environment variables that tell m3agent its model server.

    Args:
        endpoint: Its URL as the container reaches it.
        key: Its key; None for none. The framework decides whether it is safe to send over http.
        model: The model's name there.
        state: Folder for the session in the container; None for m3agent's usual one.
    """
    found = {"M3AGENT_ENDPOINT": endpoint, "M3AGENT_MODEL": model, "NO_COLOR": "1"}
    if key:
        found |= {"M3AGENT_API_KEY": key, "M3AGENT_KEY_OVER_HTTP": urlsplit(endpoint).netloc}
    if state:
        found["M3AGENT_STATE"] = state
    return found


def read_result(text: str) -> Result | None:
    """Return the result that m3agent printed; None if it printed none."""
    lines = text.strip().splitlines()
    try:
        return Result.model_validate_json(lines[-1])
    except (IndexError, ValueError):
        return None


def read_trajectory(state: Path) -> tuple[dict[str, Any], Mapping[int, TurnTokens]] | None:
    """Return the newest session of a state folder as an ATIF trajectory, with the tokens of its turns.

    A session that was killed has a trajectory, too. The result is None if there is no session.
    """
    logs = sorted((state / "sessions").glob(f"*/{LOG}"), key=lambda log: log.stat().st_mtime)
    if not logs:
        return None
    folder = logs[-1].parent
    tokens = read_tokens(folder)
    return to_atif(read_session(folder), read_messages(folder), tokens), tokens
