"""What is to be started, and how: an engine's command with what it needs, and the command that this comes down to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """An engine to be started: `argv` and what it needs.

    `files` are written beside it, mode 0600; `env` comes on top of the caller's. `gpus` counts those of all nodes;
    `image` is the recipe's container image, `model` the checkpoint's name or folder.
    """

    engine: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    host: str
    port: int
    gpus: int
    nodes: int = 1
    image: str | None = None
    model: str = ""


@dataclass(frozen=True)
class Start:
    """A command that stays in the foreground until the engine ends.

    `env` comes on top of the caller's. `cleanup` runs after it however it ended; None: nothing can be left. `url_file`
    gets the server's address where it is not known beforehand (Slurm chooses the node).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cleanup: tuple[str, ...] | None = None
    url_file: Path | None = None
