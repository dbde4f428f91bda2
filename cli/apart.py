"""Start a command once more without the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from m3agent.cli.common import end, print_bytes
from m3agent.util.errors import INTERRUPTED
from m3agent.util.sanitize import columns_of, print_note

PAUSE = 0.2


def start_apart(
    argv: Sequence[str],
    console: Path,
    works: Callable[[int], bool],
    told: str,
    env: Mapping[str, str] = os.environ,
) -> int | None:
    """Start this command without `--detach`, in a session of its own, and print its output until it works.

    Args:
        argv: The command line.
        console: The file for its output.
        works: Returns whether it works, given the id of its process.
        told: Said after Ctrl-C, which leaves it running.

    Returns:
        Its exit code; None if it works.

    Raises OSError: The file cannot be written, or the process cannot start.
    """
    words = [word for place, word in enumerate(argv[1:]) if word != "--detach" or "--" in argv[1 : place + 1]]
    with console.open("wb") as file:
        child = subprocess.Popen(
            # -P: the current folder may be a checkout, whose modules must not take the place of others
            [sys.executable, "-P", "-m", "m3agent.agent", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=dict(env),
        )
    shown = 0
    try:
        while True:
            ended = child.poll()
            is_begun = works(child.pid)
            with console.open("rb") as file:
                file.seek(shown)
                data = file.read()
            shown += relay(data, last=ended is not None or is_begun)
            if ended is not None or is_begun:
                break
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        print_note(told)
        end(INTERRUPTED)
    if ended is None:
        child.returncode = 0  # it outlives this process, and Python would warn about that
    if ended and not shown:
        print_note(
            f"m3agent: it ended with exit code {ended}, and nothing is in {console}: the disk may be full"
        )
    return ended


def relay(data: bytes, *, last: bool) -> int:
    """Print what a server in the background has written; on a terminal, its lines wrap.

    Args:
        last: True if no more will come. Otherwise a terminal gets only whole lines.

    Returns:
        The number of bytes that were printed.
    """
    if not columns_of(sys.stderr):
        print_bytes(data, err=True)
        return len(data)
    end = len(data) if last else data.rfind(b"\n") + 1
    for line in data[:end].decode(errors="replace").splitlines():
        print_note(line)
    return end
