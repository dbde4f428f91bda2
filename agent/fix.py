"""One fix, from issue to verified patch: the flow that everything else is a part of."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m3agent import __version__
from m3agent.agent import events, prompt
from m3agent.agent.accounting import prices_of
from m3agent.agent.context.cache import folder_of
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packed import Context
from m3agent.agent.context.packing import PackOptions
from m3agent.agent.context.tokenizer.source import chosen_tokenizer
from m3agent.agent.conversation import Conversation
from m3agent.agent.environments import chosen_sandbox, with_environment
from m3agent.agent.errors import EXIT_CODES, M3AgentError, Status, UsageError
from m3agent.agent.handover import apply_to_work_tree, check_branch, commit_to_branch
from m3agent.agent.hosts import announce
from m3agent.agent.housekeeping import at_work_on, trim
from m3agent.agent.issue import Issue
from m3agent.agent.limits import Limits
from m3agent.agent.loop import Loop, Outcome
from m3agent.agent.repository import Repository
from m3agent.agent.resume import Outstanding, ResumePoint
from m3agent.agent.servers import live_servers
from m3agent.agent.session import Session
from m3agent.agent.settings import Settings
from m3agent.agent.verify import Verification, verify
from m3agent.agent.workspaces import TREES, workspace_of
from m3agent.sandbox.allow_list import parse_hosts
from m3agent.sandbox.base import Sandbox
from m3agent.sandbox.docker_machine import connect
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.git import TreeStore
from m3agent.sandbox.open import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.proxy import NetworkRequest
from m3agent.sandbox.workspace import Patch, Workspace
from m3agent.serving.chat import Delta
from m3agent.serving.client import Client, RetryNote
from m3agent.serving.endpoint import Endpoint, probe
from m3agent.serving.errors import ModelServerError
from m3agent.serving.examine import Findings, examine
from m3agent.serving.prices import Prices
from m3agent.tools.registry import Toolset
from m3agent.tools.test_runner import TestReport

EMBEDDED = "embedded: search-based repair judged by the tests, no language model"
MODEL_SERVER_EXIT = 4
SANDBOX_EXIT = 3
ANSWER_ROOM = 32_768
"""Tokens of a model's window kept free for the conversation when the repository is packed into it."""


@dataclass(frozen=True)
class FixRequest:
    """What to fix, where, and what to do with the patch. branch: name of a new one, or None. resume: where a session that
    ended before its time goes on; None for a new one."""

    issue: Issue
    repository: Repository
    settings: Settings
    apply: bool = False
    branch: str | None = None
    resume: ResumePoint | None = None


@dataclass(frozen=True)
class FixResult:
    """How it ended. patch: as `git apply` takes it, empty when there is none; evidence: None when nothing was checked."""

    status: Status
    exit_code: int
    reason: str
    patch: bytes
    session: Path
    evidence: Verification | None


@dataclass
class Progress:
    """What a fix has come to so far: what is handed over if it ends early."""

    workspace: Workspace | None = None
    sandbox: Sandbox | None = None
    loop: Loop | None = None


async def fix(
    request: FixRequest,
    session: Session,
    state: Path,
    *,
    say: Callable[[str], None],
    on_delta: Callable[[Delta], None] = lambda _: None,
) -> FixResult:
    """Run one fix to its end and log it; `say` gets notes for people.

    Expected failures (no sandbox, no model server, a refused hand-over) are results with their exit code. An
    interruption is logged, with the patch so far, and raised on.
    """
    started = time.monotonic()
    settings = request.settings
    limits = Limits(settings.max_turns, settings.max_minutes, settings.max_tokens, settings.max_cost)
    if request.resume is not None:
        limits.started -= request.resume.seconds
        limits.used = request.resume.used
    progress = Progress()
    end = _End(session, limits, progress, started)
    try:
        return await _fix(request, session, state, limits, progress, end, say, on_delta)
    except asyncio.CancelledError:
        end.early(Status.INTERRUPTED, "interrupted", EXIT_CODES[Status.INTERRUPTED])
        raise
    except SandboxError as error:
        return end.error(type(error).__name__, str(error), SANDBOX_EXIT)
    except ModelServerError as error:
        return end.error(type(error).__name__, str(error), MODEL_SERVER_EXIT)
    except M3AgentError as error:
        return end.error(type(error).__name__, str(error), error.exit_code)


async def _fix(
    request: FixRequest,
    session: Session,
    state: Path,
    limits: Limits,
    progress: Progress,
    end: _End,
    say: Callable[[str], None],
    on_delta: Callable[[Delta], None],
) -> FixResult:
    settings, repository, point = request.settings, request.repository, request.resume
    messages: Conversation | None = None
    outstanding: list[Outstanding] = []
    dirty = 0
    if request.branch is not None:
        check_branch(repository, request.branch)
    if request.apply and repository.bare:
        raise UsageError("a bare repository has no work tree to apply a patch to: use --branch NAME")
    spec, backend = await chosen_sandbox(settings, say)
    if spec.backend == "docker":  # not tried yet, and nothing may go to a model in vain
        (await asyncio.to_thread(connect)).close()
    async with contextlib.AsyncExitStack() as stack:
        url, described = await _find_endpoint(settings, state, stack)
        if point is None:
            workspace = await asyncio.to_thread(workspace_of, repository, session.folder)
            dirty = len(await asyncio.to_thread(repository.dirty_paths))
            session.write(_session_started(request, backend, url, described, workspace.base, dirty))
        else:
            workspace = await asyncio.to_thread(_workspace_again, session.folder, point)
            messages = stack.enter_context(contextlib.closing(Conversation.read(session.folder)))
            outstanding = point.outstanding(messages)
            session.write(_session_resumed(point, messages, outstanding))
        progress.workspace = workspace
        if repository.root is not None:
            for other in await asyncio.to_thread(at_work_on, state, str(repository.root), session.id):
                say(f"session {other} works on this repository as well: their patches may not fit together")

        async def start_sandbox() -> tuple[SandboxSpec, Sandbox]:
            started = time.monotonic()
            ready = await with_environment(spec, backend, workspace, settings, state, say)
            if ready.image != spec.image:
                seconds = round(time.monotonic() - started, 3)
                session.write(events.EnvironmentReady(image=str(ready.image), seconds=seconds))
            sandbox = new_sandbox(backend, ready, workspace, say, _log_requests(session, "session"))
            progress.sandbox = sandbox
            return ready, await stack.enter_async_context(sandbox)

        async def read_repository() -> tuple[Endpoint, Prices | None, Context | None]:
            endpoint = await probe(url, api_key=settings.key, model=settings.model)
            prices = _check_host(endpoint, settings, state, say)
            context, findings = await _gather(
                _pack(request, endpoint, session, state), examine(endpoint, api_key=settings.key)
            )
            _log_endpoint(session, endpoint, findings, time.monotonic() - started)
            for advice in findings.advice(endpoint, context.tokens if context is not None else 0):
                say(advice)
            return endpoint, prices, context

        started = time.monotonic()
        (endpoint, prices, context), (spec, sandbox) = await _gather(read_repository(), start_sandbox())
        client = await stack.enter_async_context(
            Client(endpoint, api_key=settings.key, on_retry=lambda note: session.write(_retry_event(note)))
        )
        if context is not None:
            first = _first_messages(request, context, endpoint, dirty, say)
            messages = stack.enter_context(contextlib.closing(Conversation.begin(session.folder, first)))
        assert messages is not None, "a session that goes on has them, any other has a context"
        loop = progress.loop = Loop(
            client=client,
            sandbox=sandbox,
            tools=Toolset(sandbox, session.folder / "calls"),
            session=session,
            limits=limits,
            messages=messages,
            prices=prices,
            thinking=settings.thinking,
            on_delta=on_delta,
        )
        if point is not None:
            await sandbox.rollback(point.tree)
            loop.go_on_from(point)
        outcome = await loop.run(outstanding)
        patch = await sandbox.patch()
    evidence = None
    if not patch.empty:

        def fresh(of: Workspace) -> Sandbox:
            return new_sandbox(backend, spec, of, say, _log_requests(session, "verify"))

        evidence = await verify(workspace, patch, fresh, session.folder / "calls")
        _log_verification(session, evidence)
    if lost := await asyncio.to_thread(trim, state):
        say(f"{len(lost)} old sessions lost their trees and messages, for sessions took too much of the disk")
    return end.finished(outcome, patch, evidence, request)


async def _gather(*work: Any) -> tuple[Any, ...]:
    """All of it at once; the first failure cancels the rest and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return tuple(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _find_endpoint(
    settings: Settings, state: Path, stack: contextlib.AsyncExitStack
) -> tuple[str, str]:
    """The address to talk to and how it was chosen: named, a running server of ours, else the embedded engine."""
    if settings.endpoint is not None:
        _refuse_search_settings(settings, settings.endpoint)
        return settings.endpoint, f"{settings.endpoint} (named)"
    if settings.engine is None:
        for record in await asyncio.to_thread(live_servers, state):
            _refuse_search_settings(settings, f"{record.url}, which is running")
            return record.url, f"{record.url} (running here: {record.engine})"
    from m3agent.serving.embedded.repair import Budget
    from m3agent.serving.embedded.server import EmbeddedServer

    budget = Budget.chosen(settings.candidates, settings.seed or 0)
    server = await stack.enter_async_context(EmbeddedServer(budget=budget))
    return server.url, EMBEDDED


def _refuse_search_settings(settings: Settings, where: str) -> None:
    """Raise UsageError for settings that only an embedded engine of this fix's own can heed."""
    given = [name for name in ("seed", "candidates") if getattr(settings, name) is not None]
    if given:
        raise UsageError(
            f"--{given[0]} steers the embedded engine, not the server at {where}: add --engine embedded, or leave it out"
        )


def _session_started(
    request: FixRequest, backend: Backend, url: str, described: str, tree: str, dirty: int
) -> events.SessionStarted:
    repository, issue = request.repository, request.issue
    return events.SessionStarted(
        m3agent=__version__,
        repository={
            "root": str(repository.root) if repository.root else None,
            "git_dir": str(repository.git_dir),
            "head": repository.head,
            "branch": repository.branch,
            "bare": repository.bare,
            "shallow": repository.shallow,
            "dirty": dirty,
        },
        issue={
            "title": issue.title,
            "source": issue.source,
            "digest": issue.digest,
            "text": issue.text,
            "images": [
                {"name": i.name, "media_type": i.media_type, "bytes": len(i.data), "digest": i.digest}
                for i in issue.images
            ],
        },
        endpoint={"url": url, "description": described},
        sandbox={"backend": backend, "image": request.settings.image, "memory": request.settings.memory},
        settings=request.settings.model_dump(mode="json", exclude={"api_key"}),
        tree=tree,
    )


def _log_endpoint(session: Session, endpoint: Endpoint, findings: Findings, seconds: float) -> None:
    session.write(
        events.EndpointProbed(
            url=endpoint.url,
            model=endpoint.model,
            flavour=endpoint.flavour,
            version=endpoint.version,
            max_model_len=endpoint.max_model_len,
            reasoning_field=endpoint.reasoning_field,
            images=endpoint.images,
            prefix_caching=findings.prefix_caching,
            cached_tokens=findings.cached_tokens,
            tokenizer_seconds=findings.tokenizer_seconds,
            seconds=round(seconds, 3),
        )
    )


def _workspace_again(folder: Path, point: ResumePoint) -> Workspace:
    """The trees of a session that goes on. Raises UsageError where they are gone."""
    if not (folder / TREES).is_dir():
        raise UsageError(f"the session in {folder} cannot be resumed: {TREES} is gone")
    store = TreeStore(folder / TREES)
    store.sweep()  # nobody else has it: the log is locked
    return Workspace(store, point.started["tree"])


def _session_resumed(
    point: ResumePoint, messages: Conversation, outstanding: list[Outstanding]
) -> events.SessionResumed:
    return events.SessionResumed(
        m3agent=__version__,
        messages=len(messages),
        tree=point.tree,
        interrupted=[each.call.id for each in outstanding if each.begun is not None and each.ended is None],
    )


def _first_messages(
    request: FixRequest, context: Context, endpoint: Endpoint, dirty: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    if request.issue.images and not endpoint.images:
        say(f"{endpoint.host} takes no images: the issue's {len(request.issue.images)} are left out")
    return prompt.first_messages(
        context,
        request.issue,
        request.repository.head,
        dirty,
        images=endpoint.images,
        instructions=request.settings.instructions,
        hosts=parse_hosts(request.settings.allow_net or ""),
    )


async def _pack(request: FixRequest, endpoint: Endpoint, session: Session, state: Path) -> Context | None:
    """The repository as text, in what the model's window leaves for it; None where the conversation has it already."""
    if request.resume is not None:
        return None
    settings, checkout = request.settings, request.repository.checkout
    started = time.monotonic()

    def work() -> Context:
        options = PackOptions(
            budget=_budget(settings, endpoint),
            tokenizer=chosen_tokenizer(settings, str(state), endpoint.url, settings.model or endpoint.model),
            cache=folder_of(str(state), checkout.git_dir),
            issue=request.issue.text,
            frozen=settings.prefix == "frozen",
        )
        return pack(checkout, options)

    context = await asyncio.to_thread(work)
    session.write(
        events.ContextPacked(
            files=len(context.files),
            tokens=context.tokens,
            exact=context.exact,
            dropped=dict(Counter(reason for _, reason in context.dropped)),
            redacted=list(context.redacted),
            digest=context.digest,
            seconds=round(time.monotonic() - started, 3),
        )
    )
    return context


def _budget(settings: Settings, endpoint: Endpoint) -> int | None:
    """Tokens for the repository: as set, and never more than the window leaves beside the conversation."""
    window = endpoint.max_model_len
    if window is None:
        return settings.context_budget
    room = window - min(ANSWER_ROOM, window // 4)
    return room if settings.context_budget is None else min(room, settings.context_budget)


def _check_host(
    endpoint: Endpoint, settings: Settings, state: Path, say: Callable[[str], None]
) -> Prices | None:
    """Before anything goes to a host for the first time: say which; and refuse a price limit nobody can watch."""
    prices = prices_of(endpoint, settings.server_price)
    if settings.max_cost is not None and prices is None:
        raise UsageError(
            f"--max-cost: the prices of {endpoint.host} are not known; give --server-price for a server of your own, "
            "or use --max-tokens instead"
        )
    if not settings.yes:
        announce(endpoint.url, state, say, "the repository and the issue go")
    return prices


def _retry_event(note: RetryNote) -> events.Retry:
    return events.Retry(attempt=note.attempt, wait=note.wait_seconds, reason=note.reason)


def _log_requests(session: Session, where: Literal["session", "verify"]) -> Callable[[NetworkRequest], None]:
    """Logs what a sandbox's programs ask the network for."""

    def log(request: NetworkRequest) -> None:
        with contextlib.suppress(M3AgentError):  # where the log cannot be written, the next event says so
            session.write(events.NetworkRequest(where=where, **dataclasses.asdict(request)))

    return log


def _log_verification(session: Session, evidence: Verification) -> None:
    runs: tuple[tuple[Literal["before", "after"], TestReport, str], ...] = (
        ("before", evidence.before, evidence.old_tree),
        ("after", evidence.after, evidence.new_tree),
    )
    for where, report, tree in runs:
        session.write(
            events.TestFinished(where=where, call=None, complete=report.complete, tree=tree, **report.sets)
        )
    session.write(
        events.Verify(
            verdict=evidence.verdict,
            reason=evidence.reason,
            fixed=list(evidence.fixed),
            broken=list(evidence.broken),
            still_red=list(evidence.still_red),
            new=list(evidence.new_tests),
            seconds=evidence.seconds,
        )
    )


@dataclass
class _End:
    """Writes the last events of a session, whichever way it ended."""

    session: Session
    limits: Limits
    progress: Progress
    started: float

    def finished(
        self, outcome: Outcome, patch: Patch, evidence: Verification | None, request: FixRequest
    ) -> FixResult:
        """The loop came to an end of its own; hand the patch over."""
        status, reason = judge(outcome, evidence)
        exit_code = EXIT_CODES[status]
        notes = []
        if patch.runs_later:
            notes.append(
                f"these files run by themselves later, read them first: {', '.join(patch.runs_later)}"
            )
        sandbox = self.progress.sandbox
        if sandbox is not None and sandbox.left_out:
            notes += [f"not in the patch: {name} ({why})" for name, why in sandbox.left_out.items()]
        if status is Status.VERIFIED or (not patch.empty and status is Status.UNVERIFIED):
            # before the user's repository is touched: whatever ends this process then, the patch is there
            self.session.write_file("patch.diff", patch.text)
            try:
                notes += self._hand_over(request, patch, status)
            except M3AgentError as error:
                self.session.write(
                    events.Error(kind=type(error).__name__, text=str(error), exit=error.exit_code)
                )
                exit_code = error.exit_code
        elif (request.apply or request.branch) and not patch.empty:
            notes.append("the patch was not applied, since the fix did not succeed")
        return self._write(status, reason, exit_code, patch, evidence, notes)

    def error(self, kind: str, text: str, exit_code: int) -> FixResult:
        """Something failed that is not the model's doing."""
        with contextlib.suppress(M3AgentError):
            self.session.write(events.Error(kind=kind, text=text, exit=exit_code))
        return self.early(Status.ERROR, text, exit_code)

    def early(self, status: Status, reason: str, exit_code: int) -> FixResult:
        """The session ends before its time, with the patch of its last checkpoint."""
        patch = None
        workspace, sandbox = self.progress.workspace, self.progress.sandbox
        if workspace is not None and sandbox is not None:
            with contextlib.suppress(
                SandboxError
            ):  # there is a reason already; this is for the user's convenience
                patch = workspace.patch(sandbox.tree)
        try:
            return self._write(status, reason, exit_code, patch, None, [])
        except M3AgentError:  # the state folder cannot be written: that is the reason already
            return FixResult(status, exit_code, reason, b"", self.session.folder, None)

    def _hand_over(self, request: FixRequest, patch: Patch, status: Status) -> list[str]:
        workspace = self.progress.workspace
        assert workspace is not None
        if request.apply:
            apply_to_work_tree(request.repository, workspace, patch)
            return [f"applied to the work tree: {', '.join(patch.paths)}"]
        if request.branch is not None:
            message = f"Fix: {request.issue.title}\n\nMade by m3agent {__version__}; verdict: {status}.\n"
            commit = commit_to_branch(request.repository, workspace, patch, request.branch, message)
            return [f"committed to branch {request.branch} as {commit[:12]}"]
        return []

    def _write(
        self,
        status: Status,
        reason: str,
        exit_code: int,
        patch: Patch | None,
        evidence: Verification | None,
        notes: list[str],
    ) -> FixResult:
        text = patch.text if patch is not None else b""
        path = self.session.write_file("patch.diff", text) if text else None
        used, loop = self.limits.used, self.progress.loop
        self.session.write(
            events.SessionFinished(
                status=status,
                exit=exit_code,
                reason=reason,
                patch=str(path) if path else None,
                paths=list(patch.paths) if patch is not None else [],
                notes=notes,
                turns=loop.turn if loop else 0,
                calls=loop.calls if loop else 0,
                prompt_tokens=used.prompt,
                cached_tokens=used.cached,
                completion_tokens=used.completion,
                reasoning_tokens=used.reasoning,
                cached_share=used.cached_share,
                tokens_per_second=used.tokens_per_second,
                price=used.price,
                seconds=round(time.monotonic() - self.started, 3),
            )
        )
        return FixResult(status, exit_code, reason, text, self.session.folder, evidence)


def judge(outcome: Outcome, evidence: Verification | None) -> tuple[Status, str]:
    """The status of a fix: what the tests say of the patch counts before how the loop ended."""
    if evidence is not None and evidence.verdict == "verified":
        return Status.VERIFIED, evidence.reason
    if outcome.kind == "limit":
        return Status.LIMIT, outcome.reason
    if outcome.kind == "stalled":
        return Status.STALLED, outcome.reason
    if evidence is None:
        return Status.EMPTY, "the model changed nothing" + (
            f": {outcome.text.strip()[:300]}" if outcome.text.strip() else ""
        )
    return Status(evidence.verdict), evidence.reason
