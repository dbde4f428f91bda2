"""A process whose start is cancelled: the caller does not wait, and no process remains."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from m3agent.util.start_process import start_process

pytestmark = pytest.mark.integration
PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)


def alive(word: str) -> list[str]:
    """Return the processes that have `word` among their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(file.parent.name)
    return found


@pytest.mark.parametrize("steps", range(8))
async def test_cancelled_at_any_step(steps: int, tmp_path: Path) -> None:
    word = f"{tmp_path.name}-{steps}"
    async with asyncio.timeout(60):
        # a child process holds the pipes, as in bubblewrap
        shell = ("sh", "-c", "sh -c 'sleep 300; true' $0 & wait", word)
        starting = asyncio.create_task(start_process(*shell, start_new_session=True, **PIPES))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        done = await asyncio.gather(starting, return_exceptions=True)
        process = done[0]
        if isinstance(process, asyncio.subprocess.Process):  # it had started before the cancellation
            os.killpg(process.pid, signal.SIGKILL)
        else:
            assert isinstance(process, asyncio.CancelledError)
        while alive(word):  # noqa: ASYNC110  # polls, because it is not a child of this process
            await asyncio.sleep(0.01)


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        await start_process("m3agent-no-such-program", **PIPES)
