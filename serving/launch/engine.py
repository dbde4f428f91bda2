"""One run of an engine under its keeper: start it, read its log, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.job import Start
from m3agent.serving.launch.kept import start_kept
from m3agent.serving.launch.load_signs import Progress
from m3agent.serving.launch.record import LAST_LOG, LOG

GRACE_SECONDS = 30.0
"""From SIGTERM to SIGKILL: vLLM ends within a few seconds when it is idle."""
ORPHAN_SECONDS = 5.0
"""The same for what the engine leaves behind when it ends or is killed."""
MOST_LOG_BYTES = 64 * 1024**2
"""Of the running log; beyond it the log becomes the last one and begins anew."""

SECRETS = ("M3AGENT_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN")
"""Variables that no engine needs and a checkpoint's own code should not see; HF_TOKEN fetches weights."""


class Engine:
    """An engine that was started. Its log goes on in a file, whoever reads it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.log = LogReader(name)
        self._process = process
        self._path = folder / LOG
        self._last = folder / LAST_LOG
        self._read = 0

    @classmethod
    async def begin(cls, name: str, start: Start, folder: Path, environ: Mapping[str, str]) -> Engine:
        """Start the command of the engine of that name in its folder; what it wrote in an earlier run becomes the last log."""
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
        """The engine's, 128 + N after signal N; None: it runs."""
        return self._process.returncode

    async def ended(self) -> int:
        """Its exit code, once nothing of it is left."""
        return await self._process.wait()

    def news(self) -> list[Progress]:
        """What its log says since the last time."""
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
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
        self.news()

    def _begin_anew(self) -> None:
        """The engine has the file open for appending, so it is copied and emptied; a line between the two is lost."""
        with contextlib.suppress(OSError):
            self._last.write_bytes(self._path.read_bytes())
            os.truncate(self._path, 0)
            self._read = 0
