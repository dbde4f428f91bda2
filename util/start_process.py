"""Start a process so that cancelling the start leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any


async def start_process(
    *argv: str, on_cancel: signal.Signals = signal.SIGKILL, **options: Any
) -> asyncio.subprocess.Process:
    """Start a process like `asyncio.create_subprocess_exec`; if the start is cancelled, end the process.

    With `start_new_session`, its whole process group is ended. asyncio's own function kills the process and
    then waits until its pipes are closed, which is forever if a child of the process holds them. So here the
    start runs to its end in a task of its own.

    Args:
        argv: Program and arguments.
        on_cancel: Signal that ends the process; a process that must end others first takes SIGTERM.
        options: Options of `asyncio.create_subprocess_exec`.

    Raises:
        OSError: The process cannot be started.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            process = await starting
            if process.returncode is None:
                # `process.kill` would consume the exit status that asyncio's watcher waits for
                kill = os.killpg if options.get("start_new_session") else os.kill
                with contextlib.suppress(ProcessLookupError):
                    kill(process.pid, on_cancel)
            await wait_killed(process)
        raise


async def wait_killed(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a process that was killed, and wait for its end.

    While a pipe is open, `Process.wait` does not return, even if the process has ended: another process may hold
    the pipe, and older versions of Python do not see the end behind output that nobody reads.
    """
    for number in range(3):
        pipe = process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
        if pipe is not None:
            pipe.close()
    await process.wait()
