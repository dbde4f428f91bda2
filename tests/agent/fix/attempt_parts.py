"""The parts of an attempt, with the model and the sandboxes from tests/fakes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from m3agent.agent.context.types import Context
from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix import attempt as attempt_module
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.fix.run_context import RunContext
from m3agent.agent.issue.load import Issue
from m3agent.agent.loop.limits import RunLimits, Variation
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.repo.host_git import HostGit
from m3agent.agent.repo.repository import Repository
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.agent.settings.loader import settings_of
from m3agent.agent.verify.baseline import BaselineRun, KeptBaselines
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.network.proxy import NetworkRequest
from m3agent.sandbox.store.workspace import Workspace
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import Delta
from m3agent.serving.client.parameters import Affinity
from m3agent.serving.client.prices import Prices
from m3agent.tools.test_report import TestReport
from tests.agent.core import BUGGY, sums
from tests.fakes.client import ENDPOINT, Answer, ScriptedClient
from tests.fakes.machine import Script, memory_sandbox
from tests.fakes.suite import Suite
from tests.fakes.trees import memory_workspace

SPEC = SandboxSpec(image="an-image")
ISSUE = Issue("Wrong sums", "add() gives wrong sums.", "text", "digest")
PACKED = Context([b"<file>calc.py</file>\n"], (), (), 10, exact=True)
CUT_SHORT = TestReport((), (), (), (), {}, False, False, 0.0, 1, "", False)


async def cut_short() -> TestReport:
    """Return the result of a run of tests that did not finish."""
    return CUT_SHORT


def no_baseline(folder: Path) -> BaselineRun:
    """Return a run of the base tree's tests without a complete result."""
    return BaselineRun(cut_short, KeptBaselines(folder), None)


RUN_CONTEXT = RunContext(ENDPOINT, "sesame", Prices(prompt=1.0, completion=10.0), PACKED)


@dataclass
class World:
    """The surroundings of an attempt: replaces the model's client and the sandboxes that it makes."""

    folder: Path
    answers: list[Answer] = field(default_factory=list)
    script: Script = field(default_factory=lambda: Suite(sums))
    clients: list[ScriptedClient] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    affinities: list[Affinity] = field(default_factory=list)
    on_retry: list[Callable[[RetryNote], None]] = field(default_factory=list)
    sandboxes: list[tuple[Backend, SandboxSpec, Sandbox]] = field(default_factory=list)
    on_request: list[Callable[[NetworkRequest], None]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    workspace_files: Mapping[str, str] = field(default_factory=lambda: BUGGY)

    def new_client(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None,
        on_retry: Callable[[RetryNote], None],
        recorded: bool,
        affinity: Affinity,
    ) -> ScriptedClient:
        """Replaces `Client`."""
        self.clients.append(ScriptedClient(self.answers, endpoint))
        self.keys.append(api_key)
        self.on_retry.append(on_retry)
        self.affinities.append(affinity)
        return self.clients[-1]

    def new_sandbox(
        self,
        backend: Backend,
        spec: SandboxSpec,
        workspace: Workspace,
        _: Callable[[str], None],
        on_request: Callable[[NetworkRequest], None],
    ) -> Sandbox:
        """Replaces `new_sandbox`."""
        sandbox = memory_sandbox(workspace, self.script)
        self.sandboxes.append((backend, spec, sandbox))
        self.on_request.append(on_request)
        return sandbox

    def attempt(
        self,
        *answers: Answer,
        variation: Variation = Variation(),  # noqa: B008  # it is immutable
        hand_over: HandOver = HandOver(),  # noqa: B008  # it is immutable
        issue: Issue = ISSUE,
        resume: ResumePoint | None = None,
        workspace: Workspace | None = None,
        name: str = "session",
        **settings: Any,
    ) -> Attempt:
        """Return an attempt at `BUGGY` that has a workspace but no sandbox."""
        self.answers = list(answers)
        root = self.folder / "repository"
        git_dir = f"{root}/.git"
        where = HostGit(str(root), git_dir, git_dir, str(root))
        repository = Repository(where, "0" * 40, "main", shallow=False)
        wanted = settings_of({"reruns": 0, "verify_rounds": 0} | settings)
        request = FixRequest(issue, repository, wanted, hand_over, resume)
        session = Session.create(self.folder, [self.lines.append], name)
        self.sessions.append(session)
        limits = RunLimits(wanted.max_turns, wanted.max_minutes)
        made = Attempt(request, session, limits, variation, self.said.append, self.deltas.append)
        made.workspace = workspace or memory_workspace(self.folder, self.workspace_files)
        return made

    async def verify(
        self,
        attempt: Attempt,
        known: dict[str, Verification] | None = None,
        backend: Backend = "bwrap",
        spec: SandboxSpec = SPEC,
        baseline: BaselineRun | None = None,
    ) -> None:
        """Verify an attempt's patch, by default without a known result of the base tree."""
        runs = attempt.fresh_runs(backend, spec)
        await attempt.verify(runs, baseline or no_baseline(self.folder), {} if known is None else known)

    def log(self, kind: str) -> list[Line]:
        """Return the events of one type, of all attempts."""
        return [line for line in self.lines if line["type"] == kind]

    def kinds(self) -> Sequence[str]:
        """Return the types of all events in order."""
        return [line["type"] for line in self.lines]


@contextlib.contextmanager
def world_in(folder: Path) -> Iterator[World]:
    """Yield the surroundings of one test's attempts."""
    made = World(folder)
    with (
        mock.patch.object(attempt_module, "Client", made.new_client),
        mock.patch.object(attempt_module, "new_sandbox", made.new_sandbox),
        mock.patch("os.fsync"),  # no test here cuts the power
    ):
        yield made
    for session in made.sessions:
        session.close()
