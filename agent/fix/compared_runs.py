"""Prepare the test runs that a verification compares: those in fresh sandboxes, and the base tree's in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from m3agent.agent.checks.declared import checks_of
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.baseline import Baseline, BaselineRun, KeptBaselines, key_of
from m3agent.agent.verify.tree_runs import TEST_TIMEOUT, TreeRuns
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.execution_map import Recording
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners.suites import suites_of
from m3agent.tools.test_report import TestReport

RECORD_AFTER = 0.2
"""Share of the time for verification after which it is estimated whether a suite is large. The tests before are not
recorded."""


def fresh_runs(
    workspace: Workspace,
    fresh: Callable[[Workspace], Sandbox],
    settings: Settings,
    logs: Path,
    bytecode: Bytecode | None = None,
) -> TreeRuns:
    """Return what runs tests of a workspace's trees in fresh sandboxes.

    Args:
        workspace: The trees. The suites are those of its base.
    """
    timeout = max(TEST_TIMEOUT, 60 * settings.verify_minutes)
    store, base = workspace.store, workspace.base
    shared = Bytecode() if bytecode is None else bytecode
    return TreeRuns(
        SandboxesAhead(store, fresh),
        logs,
        timeout,
        suites_of(store, base),
        base=base,
        bytecode=shared,
        checks=checks_of(settings.checks, lambda: files_of(workspace)),
    )


def baseline_run(
    runs: TreeRuns,
    sandbox: Sandbox,
    spec: SandboxSpec,
    backend: Backend,
    settings: Settings,
    kept: KeptBaselines | None,
    tell: Callable[[Baseline], None],
) -> BaselineRun:
    """Return the run of the base tree's tests, which has not started."""
    tree = sandbox.workspace.base
    seconds, verify_seconds = 60 * settings.baseline_minutes, 60 * settings.verify_minutes
    recording = Recording(after=RECORD_AFTER * verify_seconds, above=verify_seconds)

    def run() -> Awaitable[TestReport]:
        return runs.run_recorded(tree, seconds, recording)

    key = None if kept is None else key_of(spec, backend, sandbox, (seconds, verify_seconds))
    return BaselineRun(run, kept, key, tell, runs.bytecode)
