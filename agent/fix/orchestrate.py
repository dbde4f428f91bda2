"""Run one fix, from the issue to the verified patch. This is the main flow of the program."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from m3agent.agent.certificate.build import described_environment
from m3agent.agent.certificate.statement import Environment
from m3agent.agent.checks.declared import checks_of
from m3agent.agent.delivery.pull_request import destination
from m3agent.agent.endpoint.choice import (
    EndpointChoice,
    ModelServer,
    choose_endpoint,
    opened,
    required_model_server,
)
from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.fix import session_events
from m3agent.agent.fix.agreement import Rival, passed_tests, scores
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.fix.collection import collected, not_importable
from m3agent.agent.fix.compared_runs import baseline_run
from m3agent.agent.fix.finalize import FixResult, end, end_early
from m3agent.agent.fix.proposal import PROPOSALS
from m3agent.agent.fix.ranking import AttemptResult, Rank, ranked, result_of
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.fix.run_context import RunContext, prepare
from m3agent.agent.fix.sandbox_setup import environment_of, sandbox_for, without_suites
from m3agent.agent.loop.limits import RunLimits, Variation, variations
from m3agent.agent.mcp.toolset import start_servers
from m3agent.agent.repo.snapshot import TREES, workspace_of
from m3agent.agent.session import events
from m3agent.agent.session.catalog import at_work_on, trim
from m3agent.agent.session.session import CALLS, Session
from m3agent.agent.session.usage import Totals
from m3agent.agent.verify.baseline import Baseline, BaselineRun, KeptBaselines
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.git import copy_store
from m3agent.sandbox.store.workspace import Workspace
from m3agent.serving.client.messages import Delta
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.runners.python import PYTEST
from m3agent.tools.runners.suites import DEFAULT, described, suites_of
from m3agent.util.append_only import fault
from m3agent.util.concurrency import all_of
from m3agent.util.errors import EnvironmentFault, M3AgentError, UsageError
from m3agent.util.threads import uninterrupted


@dataclasses.dataclass(frozen=True)
class PreparedFix:
    """What all attempts share."""

    run_context: RunContext
    """The model server, the packed repository and its state."""
    backend: Backend
    spec: SandboxSpec
    """How to start sandboxes, with `backend`."""
    started: Callable[[Variation], events.Event]
    """Returns the first event of an attempt's log."""
    shared: list[events.Event]
    """Events of the preparation, which every attempt's log contains."""
    kept: KeptBaselines
    """The results of base trees' tests."""
    environment: Environment | None = None
    """Where the tests run, if a certificate is wanted."""


async def check(request: FixRequest, state: Path, say: Callable[[str], None]) -> None:
    """Refuse a request that can only fail. Nothing is written, so that a refused request leaves no session.

    Raises M3AgentError: The request is refused, with the reason.
    """
    request.hand_over.check(request.repository)
    if caution := await asyncio.to_thread(request.hand_over.caution, request.repository):
        say(caution)
    if request.proposes == "plan" and request.settings.attempts > 1:
        raise UsageError("--plan is for one attempt: leave out --attempts")
    if request.settings.training and request.settings.attempts > 1:
        raise UsageError("--training is for one conversation: leave out --attempts")
    await asyncio.to_thread(_choice, request, state)
    if request.hand_over.pull_request:
        branch, api = request.hand_over.branch, request.settings.github_api
        await destination(request.repository, request.issue, branch, api, say)


def _choice(request: FixRequest, state: Path) -> EndpointChoice:
    """Choose what to talk to. Only a language model can answer a question."""
    choose = required_model_server if request.answer == "only" else choose_endpoint
    choice = choose(request.settings, state)
    if request.proposes and (choice.source if isinstance(choice, ModelServer) else "embedded") == "embedded":
        raise UsageError(
            f"the embedded engine cannot propose a {PROPOSALS[request.proposes]}: name a model server with --endpoint, or start one with "
            "m3agent serve"
        )
    return choice


async def fix(
    request: FixRequest,
    session: Session,
    state: Path,
    *,
    say: Callable[[str], None],
    listener: Callable[[str], Callable[[Delta], None]] = lambda _: lambda _: None,
) -> FixResult:
    """Run one fix to its end and log it.

    Args:
        session: Session of the first attempt; the caller closes it. The sessions of the other attempts are created
            after the preparation.
        listener: Returns the callback for the streamed answers of an attempt, given its session id.

    Returns:
        The result. Expected failures (no sandbox, no model server, a refused hand-over) are results with an exit code.

    Raises asyncio.CancelledError: The fix was interrupted. The log says so, and the patch so far is written.
    """
    first = _first_attempt(request, session, say, listener)
    attempts, passed = [first], dict[int, frozenset[int]]()
    with contextlib.ExitStack() as sessions:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(first.stack)
            try:
                prepared = await _prepare(first, state, stack, say)
                for attempt in _further_attempts(first, prepared, sessions, listener):
                    attempts.append(attempt)
                    await stack.enter_async_context(attempt.stack)
                await _work(attempts, prepared)
                passed = await _passed_tests(attempts, prepared)
                if lost := await asyncio.to_thread(trim, state):
                    say(
                        f"{len(lost)} old sessions lost their trees and "
                        "messages because sessions took too much disk space"
                    )
            except asyncio.CancelledError:
                for attempt in attempts:
                    end_early(attempt, "interrupted")
                raise
            except FAILURES as error:
                for attempt in attempts:
                    attempt.failure = attempt.failure or error
        return await _hand_over_the_best(attempts, passed)


def _first_attempt(
    request: FixRequest,
    session: Session,
    say: Callable[[str], None],
    listener: Callable[[str], Callable[[Delta], None]],
) -> Attempt:
    settings, point = request.settings, request.resume
    limits = RunLimits(settings.max_turns, settings.max_minutes, settings.max_tokens, settings.max_cost)
    if point is not None:
        limits.started -= point.seconds
        limits.used = point.used
        variation = point.variation
    else:
        variation = variations(settings.attempts, settings.seed)[0]
        limits.together = Totals() if settings.attempts > 1 else None
    return Attempt(request, session, limits, variation, say, listener(session.id))


def _further_attempts(
    first: Attempt,
    prepared: PreparedFix,
    sessions: contextlib.ExitStack,
    listener: Callable[[str], Callable[[Delta], None]],
) -> Iterator[Attempt]:
    """Yield the other attempts, each with its own session, which `sessions` closes. Raises EnvironmentFault."""
    settings = first.request.settings
    if first.request.resume is not None:
        return
    for variation in variations(settings.attempts, settings.seed)[1:]:
        session = sessions.enter_context(contextlib.closing(first.session.beside(variation.number)))
        session.write(prepared.started(variation))
        for event in prepared.shared:
            session.write(event)
        limits = dataclasses.replace(first.limits, used=Totals())
        attempt = Attempt(first.request, session, limits, variation, first.say, listener(session.id))
        attempt.started, attempt.other_tools = first.started, first.other_tools
        attempt.group = first.session.id
        yield attempt


async def _prepare(
    first: Attempt, state: Path, stack: contextlib.AsyncExitStack, say: Callable[[str], None]
) -> PreparedFix:
    """Check that everything that the attempts need is available, and start the first attempt's sandbox."""
    request, settings, repository = first.request, first.request.settings, first.request.repository
    spec, backend = await sandbox_for(repository, settings, say)
    choice = await asyncio.to_thread(_choice, request, state)
    server = await stack.enter_async_context(opened(choice))
    dirty = 0
    if request.resume is not None:
        first.go_on(request.resume)
    else:
        dirty = len(await asyncio.to_thread(repository.dirty_paths))
        first.workspace = await asyncio.to_thread(workspace_of, repository, first.session.folder, say)
    assert first.workspace is not None
    workspace, shared = first.workspace, list[events.Event]()

    def started(variation: Variation) -> events.SessionStarted:
        return session_events.session_started(
            request, backend, server, workspace.base, dirty, variation, first.session.id
        )

    def log(event: events.Event) -> None:
        shared.append(event)
        first.session.write(event)

    if request.resume is None:
        first.session.write(started(first.variation))
    if repository.root is not None:
        own = [first.session.id]
        for other in await asyncio.to_thread(at_work_on, state, str(repository.root), own):
            say(f"session {other} also works on this repository: their patches may conflict")

    async def offer_tools() -> None:
        earlier = None if request.resume is None else request.resume.tools
        logs = first.session.folder / CALLS
        offered = await start_servers(request.mcp, earlier, request.may_call, logs, stack, say)
        first.other_tools = offered
        if earlier is None and offered.schemas:
            log(events.ToolsOffered(tools=offered.schemas))

    async def start_sandbox() -> tuple[SandboxSpec, Sequence[str], Environment | None]:
        begun = time.monotonic()
        ready = await environment_of(repository, spec, backend, workspace, settings, state, say)
        if ready.image != spec.image:
            seconds = round(time.monotonic() - begun, 3)
            log(events.EnvironmentReady(image=str(ready.image), seconds=seconds))
        _, found = await all_of(
            first.start_sandbox(ready, backend), collected(ready, backend, workspace, state, say)
        )
        environment = None
        if request.certificate is not None:
            assert first.sandbox is not None
            environment = await described_environment(first.sandbox, ready, backend)
        if found is None:
            return ready, (), environment
        log(events.TestsCollected(errors=found.errors, reason=found.reason))
        for line in filter(None, (*found.sentences(), found.advice(backend))):
            say(line)
        return ready, found.sentences(), environment

    if about := workspace.about_submodules:
        say(about)
    suites = await asyncio.to_thread(suites_of, workspace.store, workspace.base)
    named = "" if suites == DEFAULT else described(suites)
    if suites == DEFAULT:
        if request.answer != "only":
            say(await asyncio.to_thread(without_suites, workspace))
    elif [suite.runner for suite in suites] != [PYTEST]:
        say(f"tests: {named}")
    run_context, (ready, told, environment), _ = await all_of(
        prepare(request, server, state, log, say), start_sandbox(), offer_tools()
    )
    checks = await asyncio.to_thread(checks_of, settings.checks, lambda: files_of(workspace))
    run_context = dataclasses.replace(
        run_context, dirty=dirty, not_importable=told, suites=named, submodules=about, checks=checks
    )
    return PreparedFix(run_context, backend, ready, started, shared, KeptBaselines(state), environment)


async def _work(attempts: Sequence[Attempt], prepared: PreparedFix) -> None:
    """Run all attempts concurrently until all have ended or one is verified.

    Verifications run one after the other, because tests may be sensitive to load.
    """
    first, cache_is_warm, verifying = attempts[0], asyncio.Event(), asyncio.Lock()
    known: dict[str, Verification] = {}
    bytecode = Bytecode()
    baseline = _baseline(attempts, prepared, bytecode)

    async def make(attempt: Attempt) -> None:
        async def verify() -> None:
            async with verifying:
                await attempt.verify(runs, baseline, known)

        try:
            attempt.environment, attempt.dirty = prepared.environment, prepared.run_context.dirty
            if attempt is not first:
                await _set_up(attempt, first, prepared)
            runs = attempt.fresh_runs(prepared.backend, prepared.spec, bytecode)
            await attempt.work(prepared.run_context, baseline, cache_is_warm, verify, runs)
            await verify()
            async with verifying:
                await attempt.verify_whole(runs, baseline)
        except FAILURES as error:
            attempt.failure = error

    if first.request.answer != "only":
        baseline.start()
    tasks = {asyncio.create_task(make(attempt)): attempt for attempt in attempts}
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            verified = [tasks[task] for task in done if tasks[task].is_verified]
            if best := [] if first.request.proposes else verified:  # else all run, and their tests choose
                for task in pending:
                    if not tasks[task].is_verified:  # a verified attempt is about to end by itself
                        tasks[task].overtaken_by = best[0].variation.number
                        task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
                break
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await baseline.close()


def _baseline(attempts: Sequence[Attempt], prepared: PreparedFix, bytecode: Bytecode) -> BaselineRun:
    """Return the base tree's test run, whose result every attempt's log gets."""
    first, backend, spec = attempts[0], prepared.backend, prepared.spec
    assert first.workspace is not None
    assert first.sandbox is not None
    runs, tree = first.fresh_runs(backend, spec, bytecode), first.workspace.base

    def tell(found: Baseline) -> None:
        for attempt in attempts:
            seconds = round(found.report.seconds, 3)
            event = events.Baseline.of(found.report, tree=tree, cached=found.cached, seconds=seconds)
            attempt.session.write(event)
        if prepared.run_context.not_importable:  # told when the environment was ready
            return
        missing = not_importable(found.report)
        for line in filter(None, (*missing.sentences(), missing.advice(backend))):
            first.say(line)

    return baseline_run(runs, first.sandbox, spec, backend, first.request.settings, prepared.kept, tell)


async def _set_up(attempt: Attempt, first: Attempt, prepared: PreparedFix) -> None:
    """Give an attempt its own copy of the initial work tree, and a sandbox. Raises SandboxError, EnvironmentFault."""
    assert first.workspace is not None
    source, target = first.workspace.store.git_dir, attempt.session.folder / TREES
    try:
        store = await uninterrupted(lambda: copy_store(source, target))
    except OSError as error:
        raise fault(error, attempt.session.folder) from None
    attempt.workspace = Workspace(store, first.workspace.base)
    await attempt.start_sandbox(prepared.spec, prepared.backend)


async def _passed_tests(attempts: Sequence[Attempt], prepared: PreparedFix) -> dict[int, frozenset[int]]:
    """Run the test that each attempt wrote first on the patches with the best verdict, within the time limit of the fix."""
    rivals = [rival for attempt in attempts if (rival := _rival(attempt, prepared)) is not None]
    left = min(attempt.limits.deadline for attempt in attempts) - time.monotonic()
    try:
        return await passed_tests(rivals, left)
    except TimeoutError:
        reason = "the time of --max-minutes is over"
    except SandboxError as error:  # the attempts themselves came to their end
        reason = str(error)
    attempts[0].say(f"the tests of the attempts cannot choose among their patches: {reason}")
    return {}


def _rival(attempt: Attempt, prepared: PreparedFix) -> Rival | None:
    """Return an attempt with a patch and a test of its own; None if it lacks one of them."""
    evidence, workspace = attempt.evidence, attempt.workspace
    patch, proposal = attempt.patch, attempt.proposal
    if evidence is None or workspace is None or patch is None or proposal is None or not proposal.test:
        return None
    runs = partial(attempt.fresh_runs, prepared.backend, prepared.spec)
    return Rival(attempt.variation.number, evidence.verdict, workspace, patch.tree, proposal.test, runs)


async def _hand_over_the_best(attempts: Sequence[Attempt], passed: Mapping[int, frozenset[int]]) -> FixResult:
    """Choose the best attempt, end all attempts, and return the result of the chosen one."""
    chosen, notes = attempts[0], list[str]()
    try:
        if len(attempts) > 1:
            chosen = await _choose(attempts, scores(passed))
            number = chosen.variation.number
            notes = [f"attempt {number} of {len(attempts)} was chosen"]
            if number in passed:
                notes[0] += f": its patch passes the tests of {len(passed[number])} of {len(passed)} attempts"
            for attempt in attempts:
                if attempt is not chosen:
                    # a log that cannot be written must not prevent the end of the chosen attempt
                    with contextlib.suppress(EnvironmentFault):
                        await end(attempt, hand_over=False, notes=notes)
        return await end(chosen, hand_over=True, notes=notes)
    except asyncio.CancelledError:
        end_early(chosen, "interrupted")
        raise
    except FAILURES as error:
        chosen.failure = error
        return await end(chosen, hand_over=False)


async def _choose(attempts: Sequence[Attempt], executed: Mapping[int, int]) -> Attempt:
    """Return the best attempt, and log the ranking in all attempts. Raises SandboxError if a patch cannot be read."""

    def result(attempt: Attempt) -> AttemptResult:
        number = attempt.variation.number
        return result_of(number, attempt.workspace, attempt.patch, attempt.evidence, executed.get(number, 0))

    def rank() -> list[Rank]:
        return ranked([result(attempt) for attempt in attempts])

    ranks = await asyncio.to_thread(rank)
    event = session_events.attempt_chosen(ranks, [attempt.session for attempt in attempts])
    for attempt in attempts:
        with contextlib.suppress(M3AgentError):
            attempt.session.write(event)
    return attempts[ranks[0].number - 1]
