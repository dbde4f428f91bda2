"""Starts a command under a keeper, so that nothing of it outlives whoever started it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from m3agent.serving.launch import keeper


async def start_kept(
    argv: Sequence[str],
    *,
    log: Path,
    errors: Path | None = None,
    grace: float,
    patience: float,
    cleanup: Sequence[str] = (),
    like_ctrl_c: bool = False,
    env: Mapping[str, str],
    cwd: Path,
    hold: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start it; the process that is returned is the keeper: it ends with the command's exit code when nothing of the
    command is left, and ends the command when it is told to (SIGTERM) or we are gone. See `keeper.keep`.

    hold: descriptors that stay open as long as anything of the command may be left.
    """
    keep = {
        "argv": list(argv),
        "log": str(log),
        "errors": None if errors is None else str(errors),
        "grace": grace,
        "patience": patience,
        "cleanup": list(cleanup) or None,
        "like_ctrl_c": like_ctrl_c,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", keeper.__file__, json.dumps(keep)),
        stdin=asyncio.subprocess.PIPE,  # closes with us
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(env),
        cwd=cwd,
        pass_fds=tuple(hold),
        start_new_session=True,  # Ctrl-C is for us, who then ask it to end
    )
