"""Run the base tree's tests once, in the background, and keep the result for later sessions.

The run starts when the session's sandbox is ready, while the model server reads the prompt. Verification uses its result
instead of another run, and so do the completion gate and the test tool.

Complete results are kept in the state folder, which no sandbox reaches, with the bytecode that the runs compiled: later runs need
not compile the files again that their trees share. The name of a file is a hash of everything that may change the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from m3agent import __version__
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import SandboxError
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners import suites as runners
from m3agent.tools.test_report import TestReport
from m3agent.util.private_file import read_file, write_file


class Run(Protocol):
    """The result of a test run."""

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        ...


AnyRun = TypeVar("AnyRun", bound=Run)

MOST_KEPT = 100
"""Most results that are kept; the least recently used ones are deleted."""
MOST_BYTES = 500_000_000
"""Most bytes of all kept results. That of a large suite has some megabytes, because it says what each test executes."""


class KeptRuns(Generic[AnyRun]):
    """The results of earlier runs."""

    def __init__(self, folder: Path, kind: type[AnyRun]) -> None:
        self.folder = folder
        self._adapter = TypeAdapter(kind)

    def read(self, key: str) -> AnyRun | None:
        """Return the result that is kept under a key. It is None if the file is missing or damaged."""
        path = self.folder / f"{key}.json"
        content = read_file(str(path))
        if content is None:
            return None
        try:
            report = self._adapter.validate_json(content)
        except ValidationError:  # damaged, or of another version: it is written again
            return None
        with contextlib.suppress(OSError):
            path.touch()
        return report if report.complete else None

    def read_bytecode(self, key: str) -> bytes:
        """Return the bytecode that is kept with a result. It is empty if the run kept none."""
        return read_file(str(self._bytecode(self.folder / f"{key}.json"))) or b""

    @staticmethod
    def _bytecode(path: Path) -> Path:
        return path.with_suffix(".bytecode")

    def write(self, key: str, report: AnyRun, bytecode: bytes = b"") -> None:
        """Keep a complete result and its bytecode, and delete old ones. If the folder cannot be written, nothing is kept."""
        if not report.complete:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{key}.json"
            if bytecode:
                write_file(str(self._bytecode(path)), bytecode)
            # pydantic's own JSON cannot hold the name of a file that is not UTF-8
            write_file(str(path), json.dumps(self._adapter.dump_python(report)).encode())
            files = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            sizes = itertools.accumulate(map(self._size, files))
            for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
                if number >= MOST_KEPT or (number and size > MOST_BYTES):
                    path.unlink()
                    self._bytecode(path).unlink(missing_ok=True)

    def _size(self, path: Path) -> int:
        beside = self._bytecode(path)
        return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


class KeptBaselines(KeptRuns[TestReport]):
    """The results of earlier sessions."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / "baselines", TestReport)


def key_of(spec: SandboxSpec, backend: Backend, sandbox: Sandbox, limits: Sequence[float]) -> str:
    """Return the name of a base tree's result: a hash of everything that may change the result."""
    made_from: Sequence[object] = (
        __version__,
        runners.version(),
        sandbox.workspace.base,
        sandbox.machine.image_id,
        sandbox.python,
        sys.getfilesystemencoding(),  # decides the text of a path, and so of a test's id
        backend,
        asdict(spec.limits),
        [(host.host, host.below, sorted(host.ports)) for host in spec.allow_net],
        *limits,
    )
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Baseline:
    """The result of the base tree's tests."""

    report: TestReport
    """The result. It is incomplete if its time was over."""
    cached: bool
    """Whether an earlier session ran the tests."""


class BaselineRun:
    """One run of the base tree's tests, in the background.

    Args:
        kept: The results of earlier sessions; None to neither read nor write one.
        bytecode: What the run fills. It is kept with the result, and filled from there if `run` is not called.
    """

    def __init__(
        self,
        run: Callable[[], Awaitable[TestReport]],
        kept: KeptBaselines | None,
        key: str | None,
        tell: Callable[[Baseline], None] = lambda _: None,
        bytecode: Bytecode | None = None,
    ) -> None:
        self._run = run
        self._kept = kept
        self._key = key
        self._tell = tell
        self._bytecode = Bytecode() if bytecode is None else bytecode
        self._task: asyncio.Task[TestReport] | None = None

    def start(self) -> None:
        """Start the run, unless it has started."""
        if self._task is None:
            self._task = asyncio.create_task(self._find())

    @property
    def known(self) -> TestReport | None:
        """The complete result; None until the run has one."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result() if task.result().complete else None

    @property
    def done(self) -> bool:
        """Whether nothing needs to be waited for."""
        return self._task is not None and self._task.done()

    async def result(self) -> TestReport | None:
        """Wait for the complete result; None if the run was cut short, or if its sandbox failed."""
        await self.partial()
        return self.known

    async def partial(self) -> TestReport | None:
        """Wait for the result; also return one that was stopped because its time was over."""
        self.start()
        assert self._task is not None
        with contextlib.suppress(SandboxError):  # verification runs the tests itself and reports the fault
            report = await asyncio.shield(self._task)
            return report if report.complete or report.stopped else None
        return None

    async def close(self) -> None:
        """End the run if it is still under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _find(self) -> TestReport:
        kept, key = self._kept, self._key
        report = None if kept is None or key is None else await asyncio.to_thread(kept.read, key)
        cached = report is not None
        if report is None:
            report = await self._run()
            if kept is not None and key is not None:
                await asyncio.to_thread(kept.write, key, report, self._bytecode.content)
        elif kept is not None and key is not None:
            self._bytecode.content = await asyncio.to_thread(kept.read_bytecode, key)
        if report.complete or report.stopped:
            self._tell(Baseline(report, cached))
        return report
