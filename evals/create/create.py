"""Create instances: validate the candidates of a history, newest first, until there are enough.

An instance's environment (Python version, packages, installation) follows from its files and its date.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.evals.create.folder import CreatedFolder, ValidatedCandidate, instance_id, pack, row_of
from m3agent.evals.create.graded import Validated
from m3agent.evals.create.history import Commit, CommitHistory
from m3agent.evals.create.mine import Bounds, MinedCommit, examine
from m3agent.evals.create.statement import KINDS, cleaned_message, kind_of, statement_of
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.swebench import read_row
from m3agent.sandbox.declared.declared import Declared, acceptable_pythons, read_declared
from m3agent.sandbox.declared.types import Files, ScanResult
from m3agent.sandbox.images.debian import BASES, RELEASED
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.json_value import mapping
from m3agent.util.sanitize import printable_line

SETTLED = timedelta(days=183)
"""How long after a Python release most packages had wheels for it."""
UNKNOWN = "0.0.0"
CLASSIFIER = re.compile(r"Programming Language :: Python :: 3\.(\d+)\b")
BUILD_FILES = ("pyproject.toml", "setup.cfg", "setup.py")

# Build tools that take the version from git's tags, which an instance does not have. Each has a pattern for
# its name in build files, and the variable that sets the version instead (from the tool's documentation).
VERSIONED_BY_TAGS = (
    (
        re.compile(r"setuptools[_-]scm|hatch-vcs|flit[_-]scm|vcs[_-]versioning", re.IGNORECASE),
        "SETUPTOOLS_SCM_PRETEND_VERSION",
    ),
    (re.compile(r"\bpbr\b"), "PBR_VERSION"),
    (re.compile(r"poetry-dynamic-versioning"), "POETRY_DYNAMIC_VERSIONING_BYPASS"),
    (re.compile(r"pdm-backend|pdm-pep517"), "PDM_BUILD_SCM_VERSION"),
)


def recipe_of(
    history: CommitHistory, base: str, commit: Commit, python: str | None, available: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return a row's `environment`, without the command that names test files, and its `version`.

    Args:
        python: The minor version to use, whatever the project declares; None to choose one.
    """
    files = files_of(Workspace(history.store, base))
    declared = read_declared(files)
    texts = [files.text(name, ScanResult()) or "" for name in BUILD_FILES]
    release = history.release(base)
    minor = python or choose_python(accepted(declared, texts), commit.date.date(), available)
    lines = [line.partition(" --hash")[0] for line in declared.requirements]
    has_pytest = any(canonicalize_name(Requirement(line).name) == "pytest" for line in lines)
    return {
        "python_official": minor,
        "python_used": minor,
        "base": None,
        "requirements_txt": "".join(f"{line}\n" for line in lines) or None,
        "packages": None,
        "pip_packages": [] if has_pytest else ["pytest"],
        "pre_install": [],
        "install": "python -m pip install -e ." if is_installable(files) else None,
        "env": {name: release or UNKNOWN for sign, name in VERSIONED_BY_TAGS if any(map(sign.search, texts))},
        "test_cmd": "pytest -rA",
        "extra_pip": [],
        "services": [],
        "exclude_newer": commit.date.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }, release or ""


def choose_python(accepts: Sequence[str], day: date, available: Sequence[str] = ()) -> str:
    """Return the newest minor version that was settled on `day`, else the oldest one.

    Args:
        accepts: Minor versions that the project accepts; empty for any. If none of them is available, all
            available versions are considered.
    """
    known = [minor for minor in RELEASED if not available or minor in available]
    fit = [minor for minor in known if not accepts or minor in accepts] or known or list(RELEASED)
    settled = [minor for minor in fit if RELEASED[minor] + SETTLED <= day]
    return max(settled, key=RELEASED.__getitem__) if settled else min(fit, key=RELEASED.__getitem__)


def accepted(declared: Declared, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the minor versions that the project declares as accepted, else those in its classifiers."""
    named = {f"3.{minor}" for text in texts for minor in CLASSIFIER.findall(text)}
    return acceptable_pythons(declared) or tuple(sorted(named))


def is_installable(files: Files) -> bool:
    """Return whether pip can install the tree. A pyproject.toml may exist only to configure other tools."""
    whole = files.toml("pyproject.toml", ScanResult())
    return "setup.py" in files.paths or bool(
        mapping(whole, "project") or mapping(whole, "build-system") or mapping(whole, "tool", "poetry")
    )


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
    kinds: Collection[str] = KINDS


@dataclass
class CommitCounts:
    """Counts of examined commits."""

    commits: int = 0
    candidates: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


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
        examined = await asyncio.to_thread(examine, history, commit, wish.bounds)
        seen.commits += 1
        if isinstance(examined, str):
            seen.rejected[examined] += 1
        else:
            seen.candidates += 1
            window.append(examined)
        if time.monotonic() - told_at > TELL_EVERY:
            told_at = time.monotonic()
            say(f"looked at {seen.commits} of {len(commits)} commits: {seen.candidates} candidates")
        if seen.commits % WINDOW == 0 or seen.commits == len(commits):
            for candidate in sorted(window, key=lambda candidate: -candidate.score):
                yield candidate
            window = []


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
            validated = Validated(reason=str(error))
        else:
            validated = await validate(instance, logs)
    reason = validated.reason or (
        "" if validated.fail_to_pass else "no test fails before the fix and passes after it"
    )
    errors = _errors(validated)
    kind = "" if reason else kind_of(candidate, errors)
    unwanted = bool(kind) and kind not in wish.kinds
    fixed, kept = len(validated.fail_to_pass), len(validated.pass_to_pass)
    counts = f"{fixed} fail before and pass after, {kept} pass both times"
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
        whole = row_of(made.repo, candidate, recipe, statement, validated) | {"kind": kind}
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
