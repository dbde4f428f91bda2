"""Run an engine once under its keeper: start it, read its log, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.job import Start
from m3agent.serving.launch.load_signs import LoadProgress
from m3agent.serving.launch.record import LAST_LOG, LOG
from m3agent.serving.launch.supervised import start_kept

GRACE_SECONDS = 30.0
"""Seconds from SIGTERM to SIGKILL; an idle vLLM stops within a few seconds."""
ORPHAN_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL for processes that the engine leaves behind when it ends or is killed."""
MOST_LOG_BYTES = 64 * 1024**2
"""Size limit of the running log; beyond it the log is copied to the last log and starts again empty."""

SECRETS = ("M3AGENT_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN")
"""Variables that engines do not need and that a checkpoint's own code should not see.

HF_TOKEN is not among them, because it downloads weights.
"""


class EngineProcess:
    """A started engine. Its log goes to a file, whether or not anyone reads it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.log = LogReader(name)
        self._process = process
        self._path = folder / LOG
        self._last = folder / LAST_LOG
        self._read = 0

    @classmethod
    async def begin(cls, name: str, start: Start, folder: Path, environ: Mapping[str, str]) -> EngineProcess:
        """Start the engine's command under a keeper. The log of an earlier run becomes the last log.

        Args:
            environ: Environment of the command, without `SECRETS`.

        Raises:
            OSError: The log cannot be written, or the keeper cannot be started.
        """
        path = folder / LOG
        if path.exists():
            path.replace(folder / LAST_LOG)
        path.touch(mode=0o600)
        env = {name: value for name, value in environ.items() if name not in SECRETS}
        process = await start_kept(
            start.argv,
            log=path,
            grace=GRACE_SECONDS,
            patience=ORPHAN_SECONDS,
            cleanup=start.cleanup or (),
            env={**env, "PYTHONUNBUFFERED": "1", **start.env},
            cwd=folder,
        )
        return cls(name, process, folder)

    @property
    def exit_code(self) -> int | None:
        """Exit status of the engine, 128 + N after signal N; None while it runs."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait until no process of the engine is left; return its exit status."""
        return await self._process.wait()

    def news(self) -> list[LoadProgress]:
        """Return the progress that the log reports since the last call."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._read:
                    self._read = 0
                file.seek(self._read)
                data = file.read(1 << 22)
        except OSError:
            return []
        self._read += len(data)
        found = self.log.feed(data)
        if size > MOST_LOG_BYTES and self._read >= size:
            self._begin_anew()
        return found

    async def stop(self) -> None:
        """Stop the engine and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
        self.news()

    def _begin_anew(self) -> None:
        """Copy the log to the last log and empty it.

        The engine keeps the file open for appending, so it cannot be renamed. A line written between the copy
        and the truncation is lost.
        """
        with contextlib.suppress(OSError):
            self._last.write_bytes(self._path.read_bytes())
            os.truncate(self._path, 0)
            self._read = 0
