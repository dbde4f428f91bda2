"""Run many child processes at once; they report over pipes."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

from m3agent.serving.embedded.probe.session import reap


class ProbeJob:
    """A running child process.

    Attributes:
        pid: Its process id.
        fd: Descriptor of its pipe.
        deadline: Time of `time.monotonic()` at which it is killed.
        heard: Callback for each message.
        ended: Callback for its end.
    """

    def __init__(
        self,
        pid: int,
        fd: int,
        deadline: float,
        heard: Callable[[dict[str, Any]], None],
        ended: Callable[[], None],
    ):
        self.pid = pid
        self.fd = fd
        self.deadline = deadline
        self.heard = heard
        self.ended = ended
        self._buffer = b""

    def pump(self) -> bool:
        """Read available data; return False at the end of the stream."""
        data = os.read(self.fd, 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self.heard(json.loads(line))
        return bool(data)


class Jobs:
    """The child processes of one judge."""

    def __init__(self) -> None:
        self._running: list[ProbeJob] = []

    def add(self, job: ProbeJob) -> None:
        """Add `job` to the watched ones."""
        self._running.append(job)

    def stop(self, job: ProbeJob) -> None:
        """Kill `job` without calling its `ended`."""
        self._running.remove(job)
        os.close(job.fd)
        reap(job.pid)

    def stop_all(self) -> None:
        """Kill every child."""
        for job in list(self._running):
            self.stop(job)

    def wait(self, deadline: float) -> None:
        """Process the next messages of the children, and stop those past their deadline."""
        now = time.monotonic()
        nearest = min([deadline, *(job.deadline for job in self._running)])
        ready = select.select([job.fd for job in self._running], [], [], max(0.0, nearest - now))[0]
        for job in list(self._running):
            if job not in self._running:
                continue
            alive = job.pump() if job.fd in ready else True
            if job in self._running and (not alive or time.monotonic() > job.deadline):
                self.stop(job)
                job.ended()
