"""One agent as a process of its own, with all that it starts: it ends with its time, with us, and with a lost runner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.printable import last_line
from m3agent.serving.launch.kept import start_kept

OUTPUT, ERRORS = "agent.out", "agent.err"
"""In an attempt's folder: what the agent wrote to standard output and to standard error."""
GRACE_SECONDS = 60.0
"""From the interruption to the kill: an agent hands over its diff and ends its containers meanwhile."""
ORPHAN_SECONDS = 5.0
"""The same for what it leaves behind when it ends."""
MOST_SAID = 4096  # bytes of standard error that its last line is looked for in


@dataclass(frozen=True)
class ChildEnd:
    """exit_code: 128 + N after signal N. timed_out: it was told to end."""

    exit_code: int
    timed_out: bool


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
    """Run it to its end, for so many seconds at most; then, or when we are cancelled, it is interrupted and at last killed.

    grace, patience: seconds from the one to the other, for itself and for what it leaves behind. What it says goes to files in the folder. When this returns nothing of it is left. Raises OSError where the machine
    cannot start processes.
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
    """The last line that the agent wrote to standard error; empty where there is none."""
    try:
        with (folder / ERRORS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MOST_SAID))
            return last_line(file.read().decode(errors="replace"))
    except OSError:
        return ""
