"""What to start and how: an engine's command with its needs, and the final command that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineJob:
    """An engine to start.

    Attributes:
        engine: Name of the engine.
        argv: Its command.
        env: Variables that are added to the caller's environment.
        files: Text of files to write beside the command with mode 0600, by name.
        host: Address on which the server listens.
        port: Port on which the server listens.
        gpus: Number of GPUs on all nodes together.
        nodes: Number of machines.
        image: Container image of the recipe.
        model: Name or folder of the checkpoint.
        host_cache: Bytes of the KV cache in the machine's memory.
        draft: Name or folder of the draft; empty without one.
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
    host_cache: int = 0
    draft: str = ""


@dataclass(frozen=True)
class Start:
    """A command that stays in the foreground until the engine ends.

    Attributes:
        argv: The command.
        env: Variables that are added to the caller's environment.
        cleanup: Command to run afterwards, however the first one ended; None if nothing can be left behind.
        url_file: File that receives the server's address if it is not known beforehand (Slurm chooses the
            node).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cleanup: tuple[str, ...] | None = None
    url_file: Path | None = None
