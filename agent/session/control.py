"""Speak to a session that works in another process, through a named pipe in its folder.

Only the owner of the session can write to it. A line is a JSON object: `{"say": TEXT}` or `{"stop": true}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from m3agent.util.append_only import fault

PIPE = "control"


@contextlib.contextmanager
def controlled(folder: Path, say: Callable[[str], None], stop: Callable[[], None]) -> Iterator[None]:
    """Take what other processes send to a session within the context. Enter it in the event loop.

    Args:
        folder: The session's folder.
        say: Receives a message to the model.
        stop: Stops the session.

    Raises:
        EnvironmentFault: The pipe cannot be made.
    """
    path, rest = folder / PIPE, bytearray()
    try:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # also a writer, so that it never ends
    except OSError as error:
        raise fault(error, folder) from None

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            rest.extend(os.read(pipe, 1 << 16))
        *lines, last = bytes(rest).split(b"\n")
        rest[:] = last
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                asked = json.loads(line)
                if not isinstance(asked, dict):
                    continue
                if text := str(asked.get("say") or "").strip():
                    say(text)
                if asked.get("stop"):
                    stop()

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe, read)
    try:
        yield
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
        path.unlink(missing_ok=True)


def send(folder: Path, asked: Mapping[str, object]) -> bool:
    """Send something to a session. Return whether a process takes it."""
    try:
        pipe = os.open(folder / PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(pipe, "wb", buffering=0) as file:
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                return False
            fcntl.flock(file, fcntl.LOCK_EX)  # a long line is not written at once
            os.set_blocking(pipe, True)
            file.write(json.dumps(asked).encode() + b"\n")
    except OSError:  # no pipe, nobody reads it, or its reader ends just now
        return False
    return True
