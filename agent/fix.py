"""One fix, from issue to verified patch: the flow that everything else is a part of."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from m3agent.agent import events, session_events
from m3agent.agent.accounting import Totals
from m3agent.agent.attempt import Attempt
from m3agent.agent.choice import Rank, ranked, result_of
from m3agent.agent.ending import FixResult, end, end_early
from m3agent.agent.endpoint_choice import choose_endpoint, opened
from m3agent.agent.environments import chosen_sandbox, with_environment
from m3agent.agent.errors import EnvironmentFault, M3AgentError
from m3agent.agent.failures import FAILURES
from m3agent.agent.ground import Ground, prepare
from m3agent.agent.housekeeping import at_work_on, trim
from m3agent.agent.limits import RunLimits
from m3agent.agent.offer import destination
from m3agent.agent.other_tools import start_servers
from m3agent.agent.request import FixRequest
from m3agent.agent.session import CALLS, Session
from m3agent.agent.together import all_of
from m3agent.agent.variation import variations
from m3agent.agent.verify import Verification
from m3agent.agent.workspaces import TREES, workspace_of
from m3agent.sandbox.engine import connect
from m3agent.sandbox.git import copy_store
from m3agent.sandbox.open import Backend, SandboxSpec
from m3agent.sandbox.workspace import Workspace
from m3agent.serving.chat import Delta


async def fix(
    request: FixRequest,
    sessions: Sequence[Session],
    state: Path,
    *,
    say: Callable[[str], None],
    listener: Callable[[str], Callable[[Delta], None]] = lambda _: lambda _: None,
) -> FixResult:
    """Run one fix to its end and log it, with an attempt in each of the sessions; `say` gets notes for people, and the
    listener to a session, by its id, the pieces of its answers.

    Expected failures (no sandbox, no model server, a refused hand-over) are results with their exit code. An
    interruption is logged, with the patch so far, and raised on.
    """
    attempts = _attempts(request, sessions, say, listener)
    async with contextlib.AsyncExitStack() as stack:
        for attempt in attempts:
            await stack.enter_async_context(attempt.stack)
        try:
            await _make(request, attempts, state, stack, say)
        except asyncio.CancelledError:
            for attempt in attempts:
                end_early(attempt, "interrupted")
            raise
        except FAILURES as error:
            for attempt in attempts:
                attempt.failure = attempt.failure or error
    return await _hand_over_the_best(attempts)


def _attempts(
    request: FixRequest,
    sessions: Sequence[Session],
    say: Callable[[str], None],
    listener: Callable[[str], Callable[[Delta], None]],
) -> list[Attempt]:
    settings, point = request.settings, request.resume
    found = []
    together = Totals() if len(sessions) > 1 else None
    varied = variations(len(sessions), settings.seed) if point is None else [point.variation]
    for session, variation in zip(sessions, varied, strict=True):
        limits = RunLimits(
            settings.max_turns,
            settings.max_minutes,
            settings.max_tokens,
            settings.max_cost,
            together=together,
        )
        if point is not None:
            limits.started -= point.seconds
            limits.used = point.used
        found.append(Attempt(request, session, limits, variation, say, listener(session.id)))
    return found


async def _make(
    request: FixRequest,
    attempts: Sequence[Attempt],
    state: Path,
    stack: contextlib.AsyncExitStack,
    say: Callable[[str], None],
) -> None:
    """All attempts, each to its end, or until one of them is verified."""
    settings, repository = request.settings, request.repository
    request.hand_over.check(repository)
    if request.hand_over.pull_request:
        await destination(repository, request.issue, request.hand_over.branch, settings.github_api, say)
    spec, backend = await chosen_sandbox(settings, say)
    if spec.backend == "docker":  # not tried yet, and nothing may go to a model in vain
        (await asyncio.to_thread(connect)).close()
    choice = await asyncio.to_thread(choose_endpoint, settings, state)
    server = await stack.enter_async_context(opened(choice))
    dirty = 0
    if request.resume is not None:
        attempts[0].go_on(request.resume)
    else:
        dirty = len(await asyncio.to_thread(repository.dirty_paths))
        await asyncio.to_thread(_give_workspaces, request, attempts)
        for attempt in attempts:
            assert attempt.workspace is not None
            attempt.session.write(
                session_events.session_started(
                    request,
                    backend,
                    server,
                    attempt.workspace.base,
                    dirty,
                    attempt.variation,
                    attempts[0].session.id,
                )
            )
    if repository.root is not None:
        own = [attempt.session.id for attempt in attempts]
        for other in await asyncio.to_thread(at_work_on, state, str(repository.root), own):
            say(f"session {other} works on this repository as well: their patches may not fit together")

    def log(event: events.Event) -> None:
        for attempt in attempts:
            attempt.session.write(event)

    async def offer_tools() -> None:
        earlier = None if request.resume is None else request.resume.tools
        logs = attempts[0].session.folder / CALLS
        offered = await start_servers(request.mcp, earlier, request.may_call, logs, stack, say)
        for attempt in attempts:
            attempt.other_tools = offered
        if earlier is None and offered.schemas:
            log(events.ToolsOffered(tools=offered.schemas))

    async def start_sandboxes() -> SandboxSpec:
        started = time.monotonic()
        assert attempts[0].workspace is not None
        ready = await with_environment(spec, backend, attempts[0].workspace, settings, state, say)
        if ready.image != spec.image:
            seconds = round(time.monotonic() - started, 3)
            log(events.EnvironmentReady(image=str(ready.image), seconds=seconds))
        await all_of(*(attempt.start_sandbox(ready, backend) for attempt in attempts))
        return ready

    ground, spec, _ = await all_of(
        prepare(request, server, state, log, say), start_sandboxes(), offer_tools()
    )
    await _work(attempts, ground, dirty, backend, spec)
    if lost := await asyncio.to_thread(trim, state):
        say(f"{len(lost)} old sessions lost their trees and messages, for sessions took too much of the disk")


def _give_workspaces(request: FixRequest, attempts: Sequence[Attempt]) -> None:
    """The work tree as it is, read once, in a store of each attempt's own."""
    first, *others = attempts
    first.workspace = workspace_of(request.repository, first.session.folder)
    for attempt in others:
        store = copy_store(first.workspace.store.git_dir, attempt.session.folder / TREES)
        attempt.workspace = Workspace(store, first.workspace.base)


async def _work(
    attempts: Sequence[Attempt], ground: Ground, dirty: int, backend: Backend, spec: SandboxSpec
) -> None:
    """Side by side, the model's servers willing; verified one after the other, for tests may be sensitive to load."""
    cache_is_warm, verifying = asyncio.Event(), asyncio.Lock()
    known: dict[str, Verification] = {}

    async def make(attempt: Attempt) -> None:
        try:
            await attempt.work(ground, dirty, cache_is_warm)
            async with verifying:
                await attempt.verify(backend, spec, known)
        except FAILURES as error:
            attempt.failure = error

    tasks = {asyncio.create_task(make(attempt)): attempt for attempt in attempts}
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if best := [tasks[task] for task in done if tasks[task].is_verified]:
                for task in pending:
                    tasks[task].overtaken_by = best[0].variation.number
                break
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _hand_over_the_best(attempts: Sequence[Attempt]) -> FixResult:
    """Choose among the attempts and end all of them; returns what came of the chosen one."""
    chosen, notes = attempts[0], list[str]()
    try:
        if len(attempts) > 1:
            chosen = await _choose(attempts)
            notes = [f"attempt {chosen.variation.number} of {len(attempts)} was chosen"]
            for attempt in attempts:
                if attempt is not chosen:
                    # its log cannot be written, perhaps; what counts is how the chosen one ends
                    with contextlib.suppress(EnvironmentFault):
                        await end(attempt, hand_over=False, notes=notes)
        return await end(chosen, hand_over=True, notes=notes)
    except asyncio.CancelledError:
        end_early(chosen, "interrupted")
        raise
    except FAILURES as error:
        chosen.failure = error
        return await end(chosen, hand_over=False)


async def _choose(attempts: Sequence[Attempt]) -> Attempt:
    """The best attempt; why, stands in the log of each. Raises SandboxError where a patch cannot be read."""

    def rank() -> list[Rank]:
        return ranked(
            [
                result_of(attempt.variation.number, attempt.workspace, attempt.patch, attempt.evidence)
                for attempt in attempts
            ]
        )

    ranks = await asyncio.to_thread(rank)
    event = session_events.attempt_chosen(ranks, [attempt.session for attempt in attempts])
    for attempt in attempts:
        with contextlib.suppress(M3AgentError):
            attempt.session.write(event)
    return attempts[ranks[0].number - 1]
