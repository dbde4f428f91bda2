"""Which version of an engine a command would start, found out without importing it, which takes a quarter of a minute."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from m3agent.serving.plan.command import Command

DISTRIBUTIONS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "dynamo": "ai-dynamo"}
"""Names of the packages that bring the engines."""

_ASK = "import importlib.metadata as m; print(m.version({name!r}))"
_SECONDS = 20


def installed_version(engine: str, argv: Sequence[str], path: str | None) -> str | None:
    """The version that the command's Python has; None where that cannot be told, as of a container or a wrapper.

    path: the PATH that the program is looked for in.
    """
    python = _python(argv, path)
    name = DISTRIBUTIONS.get(engine)
    if python is None or name is None:
        return None
    try:
        done = subprocess.run(
            [*python, "-c", _ASK.format(name=name)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _python(argv: Sequence[str], path: str | None) -> list[str] | None:
    """The interpreter of `python -m ...`, or that of a console script by its first line."""
    program = Command.of(argv).program
    full = shutil.which(program[0], path=path) if program else None
    if full is None:
        return None
    if "-m" in program:
        return [full]
    try:
        with Path(full).open("rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    return words if words and "python" in Path(words[-1]).name else None
