"""Starts a process such that the start can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any


async def start_process(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process as `asyncio.create_subprocess_exec` does. Where the start is cancelled, the process is killed, with its
    group if it has one of its own (`start_new_session`).

    asyncio's own function kills the process and then waits until its pipes are closed: for ever, where a child of the
    process holds them. So the start goes on to its end in a task of its own.

    Raises:
        OSError: it cannot be started.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            process = await starting
            if process.returncode is None:
                # `process.kill` would take the exit status that asyncio's watcher waits for
                kill = os.killpg if options.get("start_new_session") else os.kill
                with contextlib.suppress(ProcessLookupError):
                    kill(process.pid, signal.SIGKILL)
            for number in range(3):  # a pipe that nobody reads keeps older versions from seeing the end
                pipe = process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]
                if pipe is not None:
                    pipe.close()
            await process.wait()
        raise
