"""What to start and how: an engine's command with its needs, and the final command that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineJob:
    """An engine to start."""

    engine: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that are added to the caller's environment."""
    files: Mapping[str, str]
    """Text of files to write beside the command with mode 0600, by name."""
    host: str
    port: int
    gpus: int
    """Number of GPUs on all nodes together."""
    nodes: int = 1
    image: str | None = None
    """Container image of the recipe."""
    model: str = ""
    host_cache: int = 0
    """Bytes of the KV cache in the machine's memory."""
    draft: str = ""


@dataclass(frozen=True)
class Start:
    """A command that stays in the foreground until the engine ends."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that are added to the caller's environment."""
    cleanup: tuple[str, ...] | None = None
    """Command to run afterwards, however the first one ended; None if nothing can be left behind."""
    url_file: Path | None = None
    """File that receives the server's address if it is not known beforehand (Slurm chooses the node)."""
