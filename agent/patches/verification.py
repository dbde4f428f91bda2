"""Verify a patch as a fix verifies its own: with the same environment, baseline, test runs and verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypedDict

from m3agent.agent.certificate.build import Change, described_environment, statement_of
from m3agent.agent.certificate.statement import Environment, Statement
from m3agent.agent.checks.declared import advice
from m3agent.agent.fix.compared_runs import baseline_run, fresh_runs
from m3agent.agent.fix.sandbox_setup import environment_of, sandbox_for, suites_of, without_suites
from m3agent.agent.issue.load import Issue
from m3agent.agent.patches.change import Source, read_change
from m3agent.agent.repo.repository import Repository
from m3agent.agent.repo.snapshot import scratch_folder, workspace_of
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.baseline import Baseline, BaselineRun, KeptBaselines
from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.network.proxy import NetworkRequest
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport, exception_line
from m3agent.util.errors import EnvironmentFault
from m3agent.util.sanitize import printable_line

MOST_RED = 3
"""Most red tests of which people read why they are red."""
MOST_LINE = 300
"""Most characters of that, with the test's id."""


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify, and how."""

    source: Source
    """Where the patch is."""
    repository: Repository
    """The repository that it is for."""
    settings: Settings
    """The settings in force."""
    issue: Issue | None = None
    """The issue that the patch is for."""
    cached: bool = True
    """Whether a known result of the base tree's tests may be used."""
    pinned: tuple[str, ...] = ()
    """Ids of tests that state what the issue changes."""


async def verify_patch(
    request: VerifyRequest,
    state: Path,
    *,
    env: Mapping[str, str],
    say: Callable[[str], None],
    expected: Callable[[Change], bool] = lambda _: True,
) -> Statement | Change:
    """Verify a patch and return its certificate. Nothing outside of the state folder changes.

    Args:
        expected: Returns whether the patch is worth testing. The objects of the patch are removed when `verify_patch` returns.

    Returns:
        The certificate. The patch itself, untested, if it is empty or not expected.

    Raises:
        UsageError, PermissionRefused, EnvironmentFault: There is no such patch, or this machine cannot test it.
        SandboxError: A sandbox failed, so nothing is known about the patch.
    """
    started, settings, repository = datetime.now(UTC), request.settings, request.repository
    with scratch_folder(state) as folder:
        api = settings.github_api
        change = await read_change(request.source, repository, folder, github_api=api, env=env, say=say)
        if about := change.workspace.about_submodules:
            say(about)
        if not await asyncio.to_thread(suites_of, change.workspace):
            say(await asyncio.to_thread(without_suites, change.workspace))
        if not expected(change) or change.patch.empty:
            return change
        if more := await asyncio.to_thread(advice, settings.checks, lambda: files_of(change.workspace)):
            say(printable_line(more, MOST_LINE))
        evidence, environment = await verify_change(change, request, state, folder, say)
        for line in why_red(evidence):
            say(line)
        return await asyncio.to_thread(
            statement_of, change, evidence, environment, settings, started, request.issue
        )


def why_red(evidence: Verification) -> Iterator[str]:
    """Yield why tests are red with a failed patch: those that it breaks or adds, otherwise those that stay red."""
    if evidence.verdict != "failed":
        return
    red = (*evidence.broken, *evidence.added_red) or evidence.still_red
    for ident in red[:MOST_RED]:
        if why := exception_line(evidence.errors.get(ident, "")):
            yield printable_line(f"{ident}, with the patch: {why}", MOST_LINE)


async def verify_change(
    change: Change, request: VerifyRequest, state: Path, folder: Path, say: Callable[[str], None]
) -> tuple[Verification, Environment]:
    """Verify a patch whose trees are known. The arguments are those of `verify_patch`, and a folder for logs.

    Returns:
        The verdict with its evidence, and what the tests ran in.

    Raises:
        EnvironmentFault, SandboxError: As for `verify_patch`.
    """
    settings, workspace = request.settings, change.workspace
    runs, spec, backend = await fresh_runs_for(request, workspace, state, folder, say)
    kept = KeptBaselines(state) if request.cached else None

    async def describe() -> tuple[Environment, BaselineRun]:
        untouched = await runs.sandboxes.first(workspace.base)
        environment = await described_environment(untouched, spec, backend)
        return environment, baseline_run(
            runs, untouched, spec, backend, settings, kept, partial(_tell_baseline, say)
        )

    # meanwhile, the sandbox of the patched tree starts
    described = asyncio.create_task(describe())

    async def known() -> TestReport | None:
        return await (await described)[1].partial()

    try:
        evidence = await verify(
            workspace,
            change.patch,
            runs,
            settings.reruns,
            known,
            60 * settings.verify_minutes,
            "" if request.issue is None else request.issue.text,
            request.pinned,
        )
        environment, _ = await described
    finally:
        described.cancel()
        for ended in await asyncio.gather(described, return_exceptions=True):
            if isinstance(ended, tuple):
                await ended[1].close()
        await runs.sandboxes.close_unused()
    return evidence, environment


class BaselineCounts(TypedDict):
    """The result of the tests of a tree."""

    passed: int
    """Number of green tests."""
    red: list[str]
    """Ids of the red tests."""
    skipped: int
    """Number of skipped tests."""
    complete: bool
    """Whether all tests had time."""
    known: bool
    """Whether the result is that of an earlier run."""


async def baseline_of(request: VerifyRequest, say: Callable[[str], None], state: Path) -> BaselineCounts:
    """Run the tests of the work tree as it is, or return a known result. The arguments are those of `verify_patch`.

    Raises:
        UsageError, EnvironmentFault, SandboxError: As for `verify_patch`.
    """
    found = list[Baseline]()
    with scratch_folder(state) as folder:
        workspace = await asyncio.to_thread(workspace_of, request.repository, folder, say)
        runs, spec, backend = await fresh_runs_for(request, workspace, state, folder, say)
        try:
            untouched = await runs.sandboxes.first(workspace.base)
            kept = KeptBaselines(state)
            run = baseline_run(runs, untouched, spec, backend, request.settings, kept, found.append)
            try:
                await run.partial()
            finally:
                await run.close()
        finally:
            await runs.sandboxes.close_unused()
    if not found:
        raise EnvironmentFault(
            "the tests of the work tree did not finish: run `m3agent doctor` to see what is missing"
        )
    report = found[0].report
    return BaselineCounts(
        passed=len(report.passed),
        red=sorted(report.red),
        skipped=len(report.skipped),
        complete=report.complete,
        known=found[0].cached,
    )


async def fresh_runs_for(
    request: VerifyRequest, workspace: Workspace, state: Path, folder: Path, say: Callable[[str], None]
) -> tuple[TreeRuns, SandboxSpec, Backend]:
    """Return what runs the tests of a workspace's trees in its environment. The caller must close its unused sandboxes.

    Raises:
        EnvironmentFault, SandboxError: As for `verify_patch`.
    """
    settings = request.settings
    spec, backend = await sandbox_for(request.repository, settings, say)
    spec = await environment_of(request.repository, spec, backend, workspace, settings, state, say)

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(backend, spec, of, say, partial(_tell_refused, say))

    return fresh_runs(workspace, fresh, settings, folder), spec, backend


def _tell_baseline(say: Callable[[str], None], found: Baseline) -> None:
    report = found.report
    known = "known from an earlier run" if found.cached else f"{report.seconds:.1f} s"
    passed, red = len(report.passed), len(report.red)
    counts = f"{passed} passed, {red} red" if passed or red else "no results"
    say(f"tests without the patch: {counts} ({known})")


def _tell_refused(say: Callable[[str], None], request: NetworkRequest) -> None:
    if request.verdict != "allowed":
        say(f"network: {request.verdict}: {request.reason}")
