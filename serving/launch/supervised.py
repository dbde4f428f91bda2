"""Start a command under a keeper, so that no process of the command outlives the caller."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from m3agent.serving.launch import subreaper
from m3agent.util.start_process import start_process


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
    """Start a command under a keeper; see `subreaper.keep` for its arguments.

    Args:
        hold: File descriptors that stay open as long as any process of the command may be left.

    Returns:
        The keeper's process. It ends with the command's exit status when no process of the command is left.
            It ends the command on SIGTERM, or when this process is gone.
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
    return await start_process(
        sys.executable,
        *("-I", "-S", subreaper.__file__, json.dumps(keep)),
        on_cancel=signal.SIGTERM,  # a killed keeper could not end the command
        stdin=asyncio.subprocess.PIPE,  # closes when this process ends
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(env),
        cwd=cwd,
        pass_fds=tuple(hold),
        start_new_session=True,  # Ctrl-C reaches only this process, which then stops the keeper
    )
