"""The flow: candidates of a history, newest first, validated one after the other until there are enough instances."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from m3agent.agent.printable import shown
from m3agent.evals.create.archive import pack
from m3agent.evals.create.build import Validated, Validator, instance_id, instance_of, row_of
from m3agent.evals.create.folder import Made, Tried
from m3agent.evals.create.history import History
from m3agent.evals.create.mine import Bounds, Candidate, examine
from m3agent.evals.create.recipe import recipe_of
from m3agent.evals.create.statement import statement_of, told
from m3agent.evals.environments.base import DEBIAN

WINDOW = 200
"""Commits that are looked at before the likeliest fixes among them are tried."""
TELL_EVERY = 5.0  # seconds between two words about commits looked at

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What to make. limit: instances that the folder is to have; python: the minor version, whatever is declared."""

    limit: int = 50
    since: datetime | None = None
    until: datetime | None = None
    python: str | None = None
    bounds: Bounds = field(default_factory=Bounds)


@dataclass
class Seen:
    """Commits looked at so far, and why so many of them are no candidates."""

    commits: int = 0
    candidates: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


async def candidates(history: History, wish: Wish, seen: Seen, say: Say) -> AsyncIterator[Candidate]:
    """The history's candidates, window by window, in each the likeliest fix first. Raises EnvironmentFault."""
    told_at = time.monotonic()
    window: list[Candidate] = []
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


def by_score(window: Sequence[Candidate]) -> list[Candidate]:
    """The likeliest fixes first; among equals the newest."""
    return sorted(window, key=lambda candidate: -candidate.score)


async def create(history: History, made: Made, wish: Wish, validate: Validator, say: Say) -> Seen:
    """Fill the folder until it has as many instances as wished, or the history is at its end.

    Raises:
        EnvironmentFault: the repository is damaged, or the folder cannot be written.
        SandboxError: what `validate` raises.
    """
    seen = Seen()
    if len(made.rows) >= wish.limit:
        return seen
    async for candidate in candidates(history, wish, seen, say):
        if candidate.commit.sha in made.tried:
            continue
        title = shown(title_of(candidate), 60)
        say(f"trying {candidate.commit.sha[:12]} {title}")
        tried = await _try(history, made, candidate, wish, validate)
        say(
            f"{tried.verdict}: {tried.reason} ({tried.seconds:.0f} s); {len(made.tried)} tried, "
            f"{len(made.rows)} of {wish.limit} instances"
        )
        if len(made.rows) >= wish.limit:
            break
    return seen


def title_of(candidate: Candidate) -> str:
    """The first line of what a candidate's author said."""
    return next(iter(told(candidate).splitlines()), candidate.commit.message.strip().partition("\n")[0])


async def _try(history: History, made: Made, candidate: Candidate, wish: Wish, validate: Validator) -> Tried:
    started = time.monotonic()
    recipe = await asyncio.to_thread(
        recipe_of, history, candidate.base, candidate.commit, wish.python, tuple(DEBIAN)
    )
    logs = made.path / "logs" / instance_id(made.repo, candidate.base)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=made.path) as scratch:
        archive = Path(scratch, "base.tar.gz")
        row = row_of(made.repo, candidate, recipe, (title_of(candidate), ""), Validated())
        await asyncio.to_thread(_write_base, history, row, archive)
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        found = await validate(instance_of(row, archive), logs)
    reason = found.reason or (
        "" if found.fail_to_pass else "no test fails before the fix and passes after it"
    )
    tried = Tried(
        verdict="invalid" if reason else "valid",
        reason=reason
        or f"{len(found.fail_to_pass)} fail before and pass after, {len(found.pass_to_pass)} pass both times",
        instance_id=row["instance_id"],
        title=title_of(candidate),
        score=candidate.score,
        seconds=round(time.monotonic() - started, 1),
    )
    whole = None if reason else row_of(made.repo, candidate, recipe, _statement(candidate, found), found)
    await asyncio.to_thread(made.add, candidate.commit.sha, tried, whole, history.store)
    return tried


def _write_base(history: History, row: dict[str, str], archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        refs = {row["repo_ref"]: row["base_commit"]}
        archive.write_bytes(pack(history.store, refs, "base", Path(scratch)))


def _statement(candidate: Candidate, found: Validated) -> tuple[str, str]:
    """The statement, with the errors of the tests that fail before the fix; of their file, where it fails as a whole."""
    errors = {
        ident: found.errors.get(ident) or found.errors.get(ident.partition("::")[0], "")
        for ident in found.fail_to_pass
    }
    return statement_of(candidate, errors)
