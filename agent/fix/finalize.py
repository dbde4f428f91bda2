"""End an attempt: hand over its patch, and write the last events of its session."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from m3agent.agent.certificate.build import Change as CertifiedChange
from m3agent.agent.certificate.build import maker_of, statement_of
from m3agent.agent.certificate.statement import Base, Source, write
from m3agent.agent.delivery.apply import PullUpdate, apply_to_work_tree, commit_to_branch
from m3agent.agent.delivery.pr_text import Work, commit_message
from m3agent.agent.delivery.pull_request import Offered, offer, push_further
from m3agent.agent.exit_codes import Failure, exit_code_of
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.loop.completion_gate import why_no_change, why_not_tested
from m3agent.agent.loop.loop import Outcome
from m3agent.agent.loop.turn_events import tokens_of
from m3agent.agent.session import events
from m3agent.agent.session.session import PATCH
from m3agent.agent.verify.accuracy import known_accuracy
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.serving.client.http import mask_key
from m3agent.util.errors import EXIT_CODES, HANDED_OVER, M3AgentError, Status

UNFINISHED = {"limit": Status.LIMIT, "proposed": Status.PROPOSED, "stalled": Status.STALLED}
"""Statuses by the kind of an outcome with which the model was not done."""
MOST_QUOTED = 300
"""Most characters of the model's own reason that a reason quotes."""


@dataclass(frozen=True)
class Change:
    """A patch, and the workspace that holds its trees."""

    workspace: Workspace
    patch: Patch


@dataclass(frozen=True)
class FixResult:
    """The result of a fix."""

    status: Status
    """How the fix ended."""
    exit_code: int
    """Exit code of the process."""
    reason: str
    """Why it ended so, in one sentence."""
    session: Path
    """The session's folder."""
    evidence: Verification | None = field(repr=False)
    """The verification; None if nothing was verified."""
    change: Change | None = field(repr=False)
    """The patch; None if nothing was changed."""
    isolated: bool = True
    """Whether the sandbox isolated the commands and tests."""
    opened: Offered | None = None
    """The pull request that was opened or got a further commit; None without one."""
    words: str = field(default="", repr=False)
    """The model's final message, without keys."""

    @property
    def is_verified(self) -> bool:
        """Whether a test that failed passes with the patch, and no test that passed fails."""
        return self.status is Status.VERIFIED

    @property
    def patch(self) -> bytes:
        """The patch in the format of `git apply`; empty if nothing was changed."""
        return b"" if self.change is None else self.change.patch.text


async def end(attempt: Attempt, *, hand_over: bool, notes: Sequence[str] = ()) -> FixResult:
    """End an attempt that was not interrupted, and return its result.

    Args:
        hand_over: Whether to hand over its patch; true for the chosen attempt only.

    Raises:
        SandboxError: The patch cannot be read. The attempt has not been ended.
        EnvironmentFault: The log cannot be written, so it does not say how the attempt ended.
    """
    if attempt.failure is not None:
        return _failed(attempt, attempt.failure)
    if attempt.overtaken_by is not None:
        return end_early(attempt, f"attempt {attempt.overtaken_by} was verified first")
    assert attempt.outcome is not None
    assert attempt.patch is not None
    may_answer = attempt.request.answer != "no"
    status, reason = judge(attempt.outcome, attempt.evidence, may_answer=may_answer)
    exit_code = EXIT_CODES[status]
    told = [*notes, *_notes_on(attempt, attempt.patch)]
    if attempt.evidence is not None:
        common_dir = attempt.request.repository.common_dir
        accuracy = await asyncio.to_thread(known_accuracy, attempt.session.state, common_dir)
        told += [] if accuracy is None else [str(accuracy)]
    opened: Offered | None = None
    uncommitted = await asyncio.to_thread(_uncommitted, attempt, attempt.patch)  # before --apply writes them
    for step in (_certify, _handed_over) if hand_over else ():
        try:
            note, opened = await step(attempt, attempt.patch, attempt.outcome, status)
            told += [note] if note else []
        except M3AgentError as error:
            exit_code = _log(attempt, error)
    return _write(attempt, status, reason, exit_code, attempt.patch, told, uncommitted, opened)


def end_early(
    attempt: Attempt,
    reason: str,
    status: Status = Status.INTERRUPTED,
    exit_code: int = EXIT_CODES[Status.INTERRUPTED],
) -> FixResult:
    """End a session early, with the patch of its last checkpoint."""
    patch = None
    if attempt.workspace is not None and attempt.sandbox is not None:
        with contextlib.suppress(SandboxError):  # the patch is for convenience: keep the first reason
            patch = attempt.workspace.patch(attempt.sandbox.tree)
    try:
        return _write(attempt, status, reason, exit_code, patch, [], _uncommitted(attempt, patch))
    except M3AgentError:  # if the state folder cannot be written, the caller's reason says so
        return FixResult(status, exit_code, reason, attempt.session.folder, None, None)


def _log(attempt: Attempt, error: Failure) -> int:
    """Log an error and return its exit code. Raises EnvironmentFault if the log cannot be written."""
    exit_code = exit_code_of(error)
    attempt.session.write(events.Error(kind=type(error).__name__, text=str(error), exit=exit_code))
    return exit_code


def _failed(attempt: Attempt, error: Failure) -> FixResult:
    """End an attempt that an error stopped. Raises EnvironmentFault if the log cannot be written."""
    exit_code = _log(attempt, error)
    return end_early(attempt, str(error), Status.ERROR, exit_code)


def _notes_on(attempt: Attempt, patch: Patch) -> list[str]:
    notes = []
    if patch.runs_later:
        notes.append(
            f"these files will run automatically later; read them first: {', '.join(patch.runs_later)}"
        )
    if attempt.sandbox is not None:
        notes += [f"not in the patch: {name} ({why})" for name, why in attempt.sandbox.left_out.items()]
    return notes


async def _certify(attempt: Attempt, patch: Patch, *_: object) -> tuple[str, None]:
    """Write the certificate, if one is wanted; return what was done, empty if nothing. Raises EnvironmentFault."""
    path, workspace, loop = attempt.request.certificate, attempt.workspace, attempt.loop
    if path is None:
        return "", None
    if attempt.evidence is None or attempt.environment is None:
        return "no certificate was written because no patch was verified", None
    assert workspace is not None
    assert loop is not None
    request = attempt.request
    base = Base(commit=request.repository.head, tree=workspace.base, uncommitted=attempt.dirty)
    started = datetime.now(UTC) - timedelta(seconds=time.monotonic() - attempt.started)
    statement = await asyncio.to_thread(
        statement_of,
        CertifiedChange(workspace, patch, patch.text, base, Source(kind="fix", commit=None)),
        attempt.certified or attempt.evidence,
        attempt.environment,
        request.settings,
        started,
        request.issue,
        maker_of(loop.model.client.endpoint.model),
        attempt.accepted_test_files,
    )
    await asyncio.to_thread(write, statement, path)
    return f"the certificate is in {path}", None


async def _handed_over(
    attempt: Attempt, patch: Patch, outcome: Outcome, status: Status
) -> tuple[str, Offered | None]:
    """Hand the patch over as requested; return what was done, empty if nothing, and the pull request that has it now."""
    wanted = attempt.request.hand_over
    has_patch = attempt.evidence is not None or (wanted.always and patch.text)
    if not (wanted.asked and has_patch):
        return "", None
    if status not in HANDED_OVER and not wanted.always:
        return "the patch was not handed over because the fix did not succeed", None
    if wanted.update is not None and status is Status.UNVERIFIED and not wanted.update.draft:
        return "the patch was not pushed: it is unverified, and the pull request is no draft", None
    # written before the user's repository changes, so that the patch survives the end of this process
    attempt.session.write_file(PATCH, patch.text)
    if wanted.pull_request and attempt.evidence is not None:
        opened = await _offer(attempt, patch, attempt.evidence, outcome.text)
        return f"opened pull request {opened.address}", opened
    if wanted.update is not None:
        opened = await _push(attempt, patch, wanted.update, status)
        return f"the last commit of {opened.address} is {opened.commit[:12]}", opened
    return _hand_over(attempt, patch, status), None


def _hand_over(attempt: Attempt, patch: Patch, status: Status) -> str:
    """Apply or commit the patch, as requested; return a sentence that says what was done."""
    request, workspace = attempt.request, attempt.workspace
    assert workspace is not None
    if (branch := request.hand_over.branch) is None:
        apply_to_work_tree(request.repository, workspace, patch)
        return f"applied to the work tree: {', '.join(patch.paths)}"
    message = commit_message(request.issue, status)
    commit = commit_to_branch(request.repository, workspace, patch, branch, message)
    return f"committed to branch {branch} as {commit[:12]}"


async def _push(attempt: Attempt, patch: Patch, to: PullUpdate, status: Status) -> Offered:
    """Push the change since the pull request's last commit; without a change, push nothing."""
    assert attempt.workspace is not None
    since = Workspace(attempt.workspace.store, to.tree)
    change = await asyncio.to_thread(since.patch, patch.tree)
    message = commit_message(attempt.request.issue, status)
    return await push_further(
        attempt.request.repository, since, change, to, attempt.session.id, message, attempt.say
    )


async def _offer(attempt: Attempt, patch: Patch, evidence: Verification, words: str) -> Offered:
    """Open a pull request; `words` is the model's last answer."""
    request, workspace, loop = attempt.request, attempt.workspace, attempt.loop
    assert workspace is not None
    assert loop is not None
    model = loop.model.client.endpoint.model
    said = _masked(attempt, words)
    work = Work(request.issue, patch.paths, evidence, said, model, isolated=_is_isolated(attempt))
    return await offer(
        request.repository,
        workspace,
        patch,
        work,
        branch=request.hand_over.branch,
        github_api=request.settings.github_api,
        say=attempt.say,
    )


def _uncommitted(attempt: Attempt, patch: Patch | None) -> tuple[str, ...]:
    """Return the changed paths with uncommitted changes in the user's work tree, as far as git can still tell."""
    if patch is None or patch.empty:
        return ()
    try:
        return tuple(sorted(attempt.request.repository.dirty_paths() & set(patch.paths)))
    except M3AgentError:  # the end of a session is written also if the folder is gone
        return ()


def _masked(attempt: Attempt, words: str) -> str:
    """Return a text for publication without the keys of this fix."""
    for key in (*(key.text for key in attempt.request.settings.keys), attempt.server_key):
        words = mask_key(words, key)
    return words


def _write(
    attempt: Attempt,
    status: Status,
    reason: str,
    exit_code: int,
    patch: Patch | None,
    notes: list[str],
    uncommitted: tuple[str, ...],
    opened: Offered | None = None,
) -> FixResult:
    session, used, loop = attempt.session, attempt.limits.used, attempt.loop
    turns, calls = (loop.model.turn, loop.calls.number) if loop else (0, 0)
    address, commit = (opened.address, opened.commit) if opened else (None, None)
    text, paths = (patch.text, list(patch.paths)) if patch else (b"", [])
    path = session.write_file(PATCH, text) if text else None
    session.write(
        events.SessionFinished.of(
            used,
            status=status,
            exit=exit_code,
            reason=reason,
            patch=str(path) if path else None,
            paths=paths,
            notes=notes,
            pull_request=address,
            turns=turns,
            calls=calls,
            seconds=round(attempt.limits.seconds, 3),
            commit=commit,
            uncommitted=uncommitted,
            **tokens_of(used),
        )
    )
    change = None
    if text and patch is not None and attempt.workspace is not None:
        change = Change(attempt.workspace, patch)
    verified_this = patch is not None and attempt.patch is not None and patch.tree == attempt.patch.tree
    evidence = attempt.evidence if verified_this else None
    isolated = _is_isolated(attempt)
    words = "" if attempt.outcome is None else _masked(attempt, attempt.outcome.text)
    return FixResult(status, exit_code, reason, session.folder, evidence, change, isolated, opened, words)


def judge(outcome: Outcome, evidence: Verification | None, *, may_answer: bool = False) -> tuple[Status, str]:
    """Return the status of a fix and its reason. A verified patch counts more than how the loop ended."""
    if evidence is not None and evidence.verdict == "verified":
        return Status.VERIFIED, evidence.reason
    if outcome.kind != "done":
        return UNFINISHED[outcome.kind], outcome.reason
    if evidence is None and may_answer and outcome.text.strip():
        return Status.ANSWERED, "the question is answered"
    if evidence is None:
        why = why_no_change(outcome.text)
        said = f"nothing was changed: {why[:MOST_QUOTED]}"
        return Status.EMPTY, said if why else "nothing was changed, so there is no patch"
    reason = evidence.reason
    if evidence.verdict == "unverified" and (why := why_not_tested(outcome.text)):
        reason += f"; the model says that it is not tested: {why[:MOST_QUOTED]}"
    return Status(evidence.verdict), reason


def _is_isolated(attempt: Attempt) -> bool:
    return attempt.sandbox is None or attempt.sandbox.machine.isolated
