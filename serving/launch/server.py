"""Supervise a server: start the engine, wait until it answers, check it, restart it after crashes, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from m3agent.serving.check.check import Check
from m3agent.serving.check.draft_check import draft_check
from m3agent.serving.check.model_check import model_check
from m3agent.serving.check.wire_check import wire_check
from m3agent.serving.client.endpoint import Endpoint, probe
from m3agent.serving.client.http import certificates_for
from m3agent.serving.errors import ModelServerError
from m3agent.serving.launch.dense_check import dense_check
from m3agent.serving.launch.engine_faults import explain
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.job import EngineJob, Start
from m3agent.serving.launch.load_signs import LoadProgress
from m3agent.serving.launch.record import (
    LAST_LOG,
    LOG,
    RECORD,
    Phase,
    ServerRecord,
    remove_record,
    write_record,
)
from m3agent.serving.launch.supervised import start_kept
from m3agent.util.errors import ServerFault

LOOK_SECONDS = 0.3
"""Interval in seconds between two reads of the log while the engine loads."""
WATCH_SECONDS = 5.0
"""Interval in seconds between two health checks while the engine serves."""
HUNG_SECONDS = 180.0
"""Seconds without an answer from /health, which no prompt delays, after which the engine counts as hung."""
MOST_CRASHES, CRASH_WINDOW = 5, 900.0
"""More than this number of crashes within this number of seconds ends the restarts."""
LONGEST_BACKOFF = 60.0
CHECK_SECONDS = 300.0
"""Time limit in seconds for all checks together; the first requests compile kernels."""


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
        progress = self.log.feed(data)
        if size > MOST_LOG_BYTES and self._read >= size:
            self._begin_anew()
        return progress

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


class Watcher(Protocol):
    """Callbacks for what happens to a server."""

    def progress(self, progress: LoadProgress) -> None:
        """Receive progress from the engine's log."""

    def say(self, text: str) -> None:
        """Receive a sentence for the user."""

    def checking(self, what: str) -> None:
        """Receive the name of the next check."""

    def checked(self, check: Check) -> None:
        """Receive the result of a check."""

    def phase(self, record: ServerRecord) -> None:
        """Receive the record when the server's phase or record changes."""


@dataclass(frozen=True)
class Launch:
    """What to start, and how it has to answer."""

    job: EngineJob
    start: Start
    folder: Path
    key: str | None
    """Key that the server requires; None if it requires none."""
    context: int | None
    """Context window in tokens that the user wanted; None if the user named none."""
    tokenizer: Path | None
    """The checkpoint's tokenizer.json; None if it is not on this machine."""
    load_seconds: float | None
    """Time limit in seconds for loading; None means no limit."""
    barred: Callable[[str], str | None]
    """Function that returns why a version of the engine must not serve M3 here, or None if it may."""
    answers: bool = True
    """False for a further node of an engine on several nodes, which answers no requests itself."""


@dataclass
class Server:
    """Supervises one server; call `run`."""

    _launch: Launch
    _record: ServerRecord
    _environ: Mapping[str, str]
    _watcher: Watcher
    _served: bool = False

    async def run(self) -> None:
        """Serve until the task is cancelled, then stop the engine and all processes that it started.

        The server restarts a crashed engine with backoff.

        Raises:
            ServerFault: The engine does not start, or crashes too often.
        """
        crashes: list[float] = []
        try:
            while True:
                self._become(Phase.RESTARTING if crashes else Phase.LOADING)
                why = await self._once()
                now = time.monotonic()
                crashes = [*(crash for crash in crashes if now - crash < CRASH_WINDOW), now]
                if len(crashes) > MOST_CRASHES:
                    raise ServerFault(
                        f"the engine crashed {len(crashes)} times within {CRASH_WINDOW / 60:.0f} minutes, last "
                        f"with this error: {why}"
                    )
                wait = min(LONGEST_BACKOFF, 2.0 ** (len(crashes) - 1))
                self._become(Phase.RESTARTING, restarts=self._record.restarts + 1)
                self._watcher.say(f"{why}; it restarts in {wait:.0f} s")
                await asyncio.sleep(wait)
        finally:
            remove_record(self._launch.folder)

    async def _once(self) -> str:
        """Start the engine and watch it until it ends; return a sentence that says why it ended."""
        launch = self._launch
        try:
            engine = await EngineProcess.begin(launch.job.engine, launch.start, launch.folder, self._environ)
        except OSError as error:
            raise ServerFault(
                f"the engine's log cannot be created in {launch.folder}: {error.strerror}"
            ) from None
        try:
            if not launch.answers:
                self._become(Phase.READY)
                return f"this node's engine ended with exit code {await engine.ended()}"
            why = await self._ready(engine)
            if why is not None and not self._served:
                raise ServerFault(why)
            if why is None:
                await self._check(engine)
                self._served = True
                self._become(Phase.READY)
                why = await self._watch(engine)
            return why
        finally:
            if engine.exit_code is None:
                self._become(Phase.STOPPING)
                await engine.stop()

    async def _ready(self, engine: EngineProcess) -> str | None:
        """Wait until the engine answers; return None, or why it never will."""
        begun, asked, looked = time.monotonic(), -math.inf, False
        while True:
            self._tell(engine)
            if engine.exit_code is not None:
                return self._why(engine)
            if engine.log.facts.version and not looked:
                looked = True
                if barred := self._launch.barred(engine.log.facts.version):
                    return barred
            now = time.monotonic()
            if self._launch.load_seconds is not None and now - begun > self._launch.load_seconds:
                return (
                    f"the engine did not answer within {self._launch.load_seconds / 60:.0f} minutes; its log is "
                    f"{self._launch.folder / LOG}"
                )
            if now - asked >= 1:
                asked = now
                if self._find_url() and await self._healthy():
                    self._tell(engine)
                    return None
            await asyncio.sleep(LOOK_SECONDS)

    def _tell(self, engine: EngineProcess) -> None:
        for progress in engine.news():
            self._watcher.progress(progress)

    async def _watch(self, engine: EngineProcess) -> str:
        """Wait until the engine ends or hangs; return a sentence that says why."""
        heard = time.monotonic()
        ended = asyncio.ensure_future(engine.ended())
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=WATCH_SECONDS)
                engine.news()
                if ended.done():
                    break
                if await self._healthy():
                    heard = time.monotonic()
                elif time.monotonic() - heard > HUNG_SECONDS:
                    return f"the engine did not answer for {HUNG_SECONDS:.0f} s and was ended"
            return self._why(engine)
        finally:
            ended.cancel()

    def _why(self, engine: EngineProcess) -> str:
        engine.news()
        launch = self._launch
        return explain(launch.job, engine.log, engine.exit_code, launch.folder / LOG).sentence

    async def _check(self, engine: EngineProcess) -> None:
        """Ask the engine for its settings and run the checks; store the results in the record."""
        self._become(Phase.CHECKING, kv_tokens=engine.log.facts.kv_tokens, version=engine.log.facts.version)
        launch = self._launch
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                endpoint = await probe(self._record.url, api_key=launch.key, model=None, timeout=30)
                self._become(
                    Phase.CHECKING,
                    model=endpoint.model,
                    max_model_len=endpoint.max_model_len,
                    version=endpoint.version or engine.log.facts.version,
                )
                await self._checks(endpoint, engine)
        except (ModelServerError, TimeoutError) as error:
            why = str(error) or f"the checks took longer than {CHECK_SECONDS:.0f} s"
            failed = Check("checks", False, why, "see the engine's log: m3agent serve logs")
            self._found([failed], wire_ok=False)

    async def _checks(self, endpoint: Endpoint, engine: EngineProcess) -> None:
        launch, looking = self._launch, self._watcher.checking
        wire = await wire_check(
            endpoint, api_key=launch.key, context=launch.context, tokenizer=launch.tokenizer, listen=looking
        )
        self._found(wire, wire_ok=_passed(wire))
        if not self._served:  # a restart does not change the weights, so one check is enough
            model = await model_check(endpoint, api_key=launch.key, listen=looking)
            self._found(model, model_ok=_passed(model))
            looking("the draft, if there is one")
            self._found(await draft_check(endpoint, api_key=launch.key))
            self._found(dense_check(self._record, engine.log.facts, self._environ))

    def _found(self, checks: list[Check], **update: object) -> None:
        """Report the results of checks and store them in the record."""
        for check in checks:
            self._watcher.checked(check)
        all_checks = {result["name"]: result for result in self._record.checks}
        all_checks |= {check.name: asdict(check) for check in checks}
        self._become(Phase.CHECKING, checks=tuple(all_checks.values()), **update)

    def _become(self, phase: Phase, **update: object) -> None:
        """Store the phase and new facts in the record."""
        since = self._record.since if phase == self._record.phase else time.time()
        self._record = self._record.model_copy(update={"phase": phase, "since": since, **update})
        try:
            write_record(self._launch.folder, self._record)
        except OSError as error:  # a full disk must not stop the server
            self._watcher.say(
                f"{self._launch.folder / RECORD} cannot be written: {error.strerror}; it is out of date"
            )
        self._watcher.phase(self._record)

    def _find_url(self) -> bool:
        """Return whether the server's address is known; Slurm chooses the node itself."""
        file = self._launch.start.url_file
        if file is None:
            return True
        try:
            url = file.read_text("utf-8").strip()
        except OSError:
            return False
        if url and url != self._record.url:
            self._become(self._record.phase, url=url)
        return bool(url)

    async def _healthy(self) -> bool:
        import httpx2

        root = self._record.url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self._launch.key}"} if self._launch.key else {}
        try:
            async with httpx2.AsyncClient(
                trust_env=False, timeout=10, verify=certificates_for(root)
            ) as client:
                return (await client.get(f"{root}/health", headers=headers)).status_code == 200
        except httpx2.HTTPError:
            return False


def _passed(checks: list[Check]) -> bool:
    """Return whether the answers can be trusted. Checks of speed do not matter for that."""
    return all(check.ok is not False for check in checks if not check.timed)
