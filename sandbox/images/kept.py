"""What m3agent keeps about its images: their names, and a folder with logs, locks and times of last use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.image import REPOSITORY
from m3agent.sandbox.errors import EnvironmentBuildFailed

WAIT = 0.2  # seconds between two attempts to get a lock that another process holds

Say = Callable[[str], None]


def touch(state: Path, image: str, api: Any = None) -> None:
    """Record that an image is in use now; the least recently used environment image is removed first.

    Args:
        api: The engine. It notes when an image got its name. So an environment image gets its name again, which tells
            m3agents with other state folders.
    """
    if api is not None and image.startswith(f"{REPOSITORY}:"):
        from docker.errors import APIError

        with contextlib.suppress(APIError):
            api.tag(image, *image.split(":"))
    with contextlib.suppress(OSError):  # if the state folder is not writable, only the order is lost
        used = folder(state) / f"{image.partition(':')[2]}.used"
        used.touch()
        now = time.time()  # not the clock of a file server: others compare it with the engine's
        os.utime(used, (now, now))


def folder(state: Path) -> Path:
    """Return the folder for logs, locks and times of use; create it if needed."""
    path = state / "environments"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def one_at_a_time(state: Path, tag: str, say: Say, stop: threading.Event) -> Iterator[None]:
    """Hold the lock of an image: only one of several processes that need it builds it.

    Raises:
        EnvironmentBuildFailed: `stop` was set while waiting.
    """
    told = False
    with (folder(state) / f"{tag.partition(':')[2]}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if stop.wait(WAIT):
                    raise EnvironmentBuildFailed(
                        "interrupted while another process built the environment"
                    ) from None
                if not told:
                    say("another m3agent is building this environment: waiting for it")
                    told = True
        yield
