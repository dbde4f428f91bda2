"""Create instances: validate the candidates of a history, newest first, until there are enough."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from m3agent.evals.create.folder import CreatedFolder, ValidatedCandidate, instance_id, pack, row_of
from m3agent.evals.create.graded import Validated
from m3agent.evals.create.history import CommitHistory
from m3agent.evals.create.mine import Bounds, MinedCommit, examine
from m3agent.evals.create.recipe import recipe_of
from m3agent.evals.create.statement import KINDS, cleaned_message, kind_of, statement_of
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.swebench import read_row
from m3agent.sandbox.images.debian import BASES
from m3agent.util.sanitize import printable_line

WINDOW = 200
"""Number of commits to examine before the likeliest fixes among them are validated."""
LEFT_OUT: Literal["left out"] = "left out"
TELL_EVERY = 5.0  # seconds between two progress messages about examined commits

Say = Callable[[str], None]
Validate = Callable[[Instance, Path], Awaitable[Validated]]
"""Runs the tests of an instance; see `GradedValidator`."""
Rewrite = Callable[[MinedCommit, Mapping[str, str]], Awaitable[str | None]]
"""Returns a candidate's issue from its commit and the errors of its tests; None to keep the statement (see `Rewriter`)."""


@dataclass(frozen=True)
class CreateRequest:
    """What to create."""

    limit: int = 50
    """Number of instances that the folder should have in the end."""
    since: datetime | None = None
    """Earliest date of a commit; None for any."""
    until: datetime | None = None
    """Latest date of a commit; None for any."""
    python: str | None = None
    """Minor version of Python, such as `3.11`; overrides what the project declares."""
    bounds: Bounds = field(default_factory=Bounds)
    """Largest size of a change."""
    kinds: Collection[str] = KINDS
    """Kinds of instances to make."""


@dataclass
class CommitCounts:
    """Counts of examined commits."""

    commits: int = 0
    """Number of examined commits."""
    candidates: int = 0
    """How many of them are candidates."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Number of rejected commits, by reason."""


async def candidates(
    history: CommitHistory, wish: CreateRequest, seen: CommitCounts, say: Say
) -> AsyncIterator[MinedCommit]:
    """Yield the history's candidates, window by window; within a window the likeliest fix comes first.

    Raises:
        EnvironmentFault: The repository is damaged.
    """
    told_at = time.monotonic()
    window: list[MinedCommit] = []
    commits = await asyncio.to_thread(lambda: list(history.commits(wish.since, wish.until)))
    for commit in commits:
        found = await asyncio.to_thread(examine, history, commit, wish.bounds)
        seen.commits += 1
        if isinstance(found, str):
            seen.rejected[found] += 1
        else:
            seen.candidates += 1
            window.append(found)
        if time.monotonic() - told_at > TELL_EVERY:
            told_at = time.monotonic()
            say(f"looked at {seen.commits} of {len(commits)} commits: {seen.candidates} candidates")
        if seen.commits % WINDOW == 0 or seen.commits == len(commits):
            for candidate in by_score(window):
                yield candidate
            window = []


def by_score(window: Sequence[MinedCommit]) -> list[MinedCommit]:
    """Return the candidates with the likeliest fix first; among equal scores the newest first."""
    return sorted(window, key=lambda candidate: -candidate.score)


async def create(
    history: CommitHistory,
    made: CreatedFolder,
    wish: CreateRequest,
    validate: Validate,
    say: Say,
    rewrite: Rewrite | None = None,
) -> CommitCounts:
    """Fill the folder until it has enough instances or the history ends.

    Raises:
        EnvironmentFault: The repository is damaged, or the folder cannot be written.
        SandboxError: `validate` raised it.
        ModelServerError: `rewrite` raised it.
    """
    seen = CommitCounts()
    if len(made.rows) >= wish.limit:
        return seen
    async for candidate in candidates(history, wish, seen, say):
        known = made.tried.get(candidate.commit.sha)
        if known is not None and not (known.verdict == LEFT_OUT and known.kind in wish.kinds):
            continue
        title = printable_line(title_of(candidate), 60)
        say(f"trying {candidate.commit.sha[:12]} {title}, as {instance_id(made.repo, candidate.base)}")
        tried = await _try(history, made, candidate, wish, validate, rewrite)
        say(
            f"{tried.verdict}: {tried.reason} ({tried.seconds:.0f} s); {len(made.tried)} tried, "
            f"{len(made.rows)} valid so far (limit {wish.limit})"
        )
        if len(made.rows) >= wish.limit:
            break
    return seen


def title_of(candidate: MinedCommit) -> str:
    """Return the first line of the candidate's cleaned message, else of its original message."""
    return next(
        iter(cleaned_message(candidate).splitlines()), candidate.commit.message.strip().partition("\n")[0]
    )


async def _try(
    history: CommitHistory,
    made: CreatedFolder,
    candidate: MinedCommit,
    wish: CreateRequest,
    validate: Validate,
    rewrite: Rewrite | None,
) -> ValidatedCandidate:
    started = time.monotonic()
    recipe = await asyncio.to_thread(
        recipe_of, history, candidate.base, candidate.commit, wish.python, tuple(BASES)
    )
    logs = made.path / "logs" / instance_id(made.repo, candidate.base)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=made.path) as scratch:
        # a row has a statement, and a commit may have no message
        row = row_of(made.repo, candidate, recipe, (title_of(candidate) or "?", ""), Validated())
        await asyncio.to_thread(_write_base, history, row, Path(scratch, row["repo_archive"]))
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        try:
            instance = read_row(Fields(row, row["instance_id"]), Path(scratch))
        except DataError as error:  # nobody could read the row
            found = Validated(reason=str(error))
        else:
            found = await validate(instance, logs)
    reason = found.reason or (
        "" if found.fail_to_pass else "no test fails before the fix and passes after it"
    )
    errors = _errors(found)
    kind = "" if reason else kind_of(candidate, errors)
    unwanted = bool(kind) and kind not in wish.kinds
    counts = (
        f"{len(found.fail_to_pass)} fail before and pass after, {len(found.pass_to_pass)} pass both times"
    )
    tried = ValidatedCandidate(
        verdict="invalid" if reason else LEFT_OUT if unwanted else "valid",
        reason=reason or (f"its kind is {kind}" if unwanted else counts),
        instance_id=row["instance_id"],
        title=title_of(candidate),
        score=candidate.score,
        seconds=round(time.monotonic() - started, 1),
        kind=kind,
    )
    whole = None
    if tried.verdict == "valid":
        statement = statement_of(candidate, errors)
        if rewrite is not None and (text := await rewrite(candidate, errors)) is not None:
            statement = text, "model"
        whole = row_of(made.repo, candidate, recipe, statement, found) | {"kind": kind}
    await asyncio.to_thread(made.add, candidate.commit.sha, tried, whole, history.store)
    return tried


def _write_base(history: CommitHistory, row: dict[str, str], archive: Path) -> None:
    archive.parent.mkdir()
    archive.write_bytes(pack(history.store, {row["repo_ref"]: row["base_commit"]}, "base"))


def _errors(found: Validated) -> dict[str, str]:
    """Return the error of each test before the fix. If a test file fails as a whole, its error stands for its tests."""
    return {
        ident: found.errors.get(ident) or found.errors.get(ident.partition("::")[0], "")
        for ident in found.fail_to_pass
    }
