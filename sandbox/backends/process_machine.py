"""What backends without an engine share: a child process of m3agent runs the supervisor, and pipes are the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from m3agent.sandbox.backends.sandbox import Folders, SandboxLimits
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.protocol.channel import Channel
from m3agent.util.start_process import start_process


class ProcessMachine(ABC):
    """A machine that is a child process."""

    def __init__(self, limits: SandboxLimits, image_id: str) -> None:
        self.limits = limits
        self.image_id = image_id
        self.environment: dict[str, str] = {}
        self.folders = Folders()
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = bytearray()

    async def _start(self, *argv: str, env: Mapping[str, str], pass_fds: tuple[int, ...] = ()) -> Channel:
        """Start the process; the supervisor's first frame arrives on the returned channel. Raises OSError."""
        self._process = process = await start_process(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=4 << 20,
            cwd="/",
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        assert process.stdin and process.stdout and process.stderr
        self._drain = asyncio.create_task(self._keep_stderr(process.stderr))
        return Channel(process.stdout, process.stdin, multiplexed=False, why_dead=self._why_dead)

    async def _keep_stderr(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(4096):
            self._stderr = (self._stderr + data)[-4096:]

    async def _why_dead(self) -> SandboxError:
        return self._explain(bytes(self._stderr).decode(errors="replace").strip().splitlines())

    @abstractmethod
    def _explain(self, lines: list[str]) -> SandboxError:
        """Return the error for the end of the process, from the last lines of its standard error."""


def processes_of_user() -> int:
    """Return the number of processes and threads of this process's user."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if process.stat().st_uid == os.getuid():
                count += len(list(process.joinpath("task").iterdir()))
    return count
