"""Run the base tree's tests once, in the background, and keep the result for later sessions.

The run starts when the session's sandbox is ready, while the model server reads the prompt. Verification uses its result
instead of another run, and so do the completion gate and the test tool.

Only complete results are kept (`m3agent.agent.verify.kept_runs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from m3agent import __version__
from m3agent.agent.verify.kept_runs import KeptRuns
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import SandboxError
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners import suites as runners
from m3agent.tools.test_report import TestReport


class KeptBaselines(KeptRuns[TestReport]):
    """The results of earlier sessions.

    Args:
        state: The state folder.
    """

    def __init__(self, state: Path) -> None:
        super().__init__(state / "baselines", TestReport)


def key_of(spec: SandboxSpec, backend: Backend, sandbox: Sandbox, limits: Sequence[float]) -> str:
    """Return the name of a base tree's result: a hash of everything that may change the result.

    Args:
        spec, backend: How the sandbox of the run starts.
        sandbox: A started sandbox of the same kind.
        limits: Time limits of the run, in seconds.
    """
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
        run: Runs the tests. Raises SandboxError.
        kept: The results of earlier sessions; None to neither read nor write one.
        key: Name of this result among them; None has the same effect.
        tell: Receives the result once, if it is complete or was stopped because its time was over.
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
