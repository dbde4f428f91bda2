"""Run an agent as a separate process.

It and all its children end with its time limit or with this process, even if this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.serving.launch.supervised import start_kept
from m3agent.util.sanitize import last_line

OUTPUT, ERRORS = "agent.out", "agent.err"
"""Files in an attempt's folder for the agent's standard output and standard error."""
GRACE_SECONDS = 60.0
"""Time between the interruption and the kill, in seconds.

The agent uses it to write its diff and to stop its containers.
"""
ORPHAN_SECONDS = 5.0
"""The same time for processes that the agent leaves behind when it ends, in seconds."""
MOST_SAID = 4096  # bytes at the end of standard error that are searched for the last line


@dataclass(frozen=True)
class ChildEnd:
    """How a process ended."""

    exit_code: int
    """Exit status; 128 + N after signal N."""
    timed_out: bool
    """Whether it was stopped because of its time limit."""


async def run_child(
    argv: Sequence[str],
    *,
    folder: Path,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float,
    grace: float = GRACE_SECONDS,
    patience: float = ORPHAN_SECONDS,
    hold: Sequence[int] = (),
) -> ChildEnd:
    """Run a process until it ends.

    After its time limit, or on cancellation, it is interrupted and finally killed.

    No child process is left when this function returns.

    Raises:
        OSError: The machine cannot start processes.
    """
    process = await start_kept(
        argv,
        log=folder / OUTPUT,
        errors=folder / ERRORS,
        grace=grace,
        patience=patience,
        like_ctrl_c=True,
        env=env,
        cwd=cwd,
        hold=hold,
    )
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    return ChildEnd(process.returncode or 0, timed_out)


def last_words(folder: Path) -> str:
    """Return the last line that the agent wrote to standard error; empty if there is none."""
    try:
        with (folder / ERRORS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MOST_SAID))
            return last_line(file.read().decode(errors="replace"))
    except OSError:
        return ""
