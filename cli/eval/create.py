"""`m3agent eval create`: make a benchmark from a repository's own history."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import argument, option, print_bytes, run, say, settings_in, state_folder
from m3agent.cli.eval.app import eval_app, parts
from m3agent.util.counted import counted
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import columns_of, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.evals.create.create import CommitCounts, CreateRequest
    from m3agent.evals.create.history import CommitHistory
    from m3agent.evals.create.rewrite import Rewriter

NONE_EXIT = 1
NAME = r"[A-Za-z0-9][\w.-]{0,99}(?:/[A-Za-z0-9][\w.-]{0,99})?"
"""A repository's name, with or without its owner."""
GOES = "commits and the errors of their tests go"


@eval_app.command()
@takes_settings(
    "thinking",
    endpoint="Model server that rewrites each commit as an issue; without one, the commits' messages are used.",
    engine="embedded: use no model server, even if one is configured.",
    model="Model at that server.",
)
def create(
    repo: Annotated[Path, argument("The repository's folder; may be bare.", "REPO")],
    output: Annotated[
        Path | None,
        option("--output", "-o", "Folder for the instances; an existing one is continued.", "FOLDER"),
    ] = None,
    limit: Annotated[int, option("Limit of instances to make.", "N", min=1)] = 50,
    since: Annotated[str | None, option("Only commits from this day on.", "DATE")] = None,
    until: Annotated[str | None, option("Only commits up to this day.", "DATE")] = None,
    python: Annotated[
        str | None, option("Python for all instances, like 3.11; by default each instance's own.", "3.N")
    ] = None,
    most_files: Annotated[
        int, option("Limit of files that a commit may change, tests included.", "N", min=2)
    ] = 12,
    most_lines: Annotated[
        int, option("Limit of lines that a commit may change outside the tests.", "N", min=1)
    ] = 400,
    kinds: Annotated[str | None, option("Only these kinds: bug, feature, unclear.", "KIND,...")] = None,
    name: Annotated[
        str | None, option("The repository's name; by default taken from its remote.", "OWNER/NAME")
    ] = None,
    timeout: Annotated[
        float, option("Time limit of one run of an instance's tests, in seconds.", "S", min=1)
    ] = 600,
    dry_run: Annotated[
        bool, option("--dry-run", "Only print the candidates, the likeliest fixes first.")
    ] = False,
    *,
    flags: Flags,
) -> None:
    """Make instances from commits of a local repository that change Python source and tests, and validate each one.

    An instance's id names the commit before the fix. The fix's own id would tell an agent where to find it.

    Exit codes: 0 there are instances; 1 none; 2 wrong use; 3 sandbox or machine error; 4 model server error; 130
    interrupted (the same command continues).
    """
    from m3agent.cli.hosts import ask
    from m3agent.evals.create.create import CreateRequest
    from m3agent.evals.create.mine import Bounds

    if output is None and not dry_run:
        raise UsageError("Give the folder for the instances with -o, or see the candidates with --dry-run.")
    wish = CreateRequest(
        limit,
        _day(since, "--since"),
        _day(until, "--until", end=True),
        _checked("--python", python, r"3\.\d{1,2}", "write a minor version, like 3.11"),
        Bounds(most_files, most_lines),
        _kinds(kinds),
    )
    if not dry_run:
        ask(Path("/"), flags, GOES)
    name = _checked("--name", name, NAME, "write it as owner/name")
    code = run(_create(repo, output if not dry_run else None, name, wish, timeout, flags))
    raise typer.Exit(code)


async def _create(
    repo: Path, output: Path | None, name: str | None, wish: CreateRequest, timeout: float, flags: Flags
) -> int:
    import asyncio

    from m3agent.agent.repo.snapshot import scratch_folder
    from m3agent.evals.create.history import open_history

    state = state_folder()
    with scratch_folder(state) as scratch:
        history = await asyncio.to_thread(open_history, repo, scratch, name)
        if output is None:
            return await _print_candidates(repo, history, wish)
        async with _rewriter(history, flags, state) as rewriter:
            return await _fill(history, output, wish, timeout, rewriter)


@contextlib.asynccontextmanager
async def _rewriter(history: CommitHistory, flags: Flags, state: Path) -> AsyncIterator[Rewriter | None]:
    """Yield what rewrites commits as issues; None without a model server. People are told where the commits go."""
    import asyncio

    from m3agent.agent.endpoint.choice import choose_model_server
    from m3agent.cli import hosts
    from m3agent.evals.create.rewrite import Rewriter
    from m3agent.serving.client.client import Client
    from m3agent.serving.client.endpoint import probe

    settings = settings_in(Path("/"), flags)  # no repository's own settings
    server = await asyncio.to_thread(choose_model_server, settings, state)
    if server is None:
        yield None
        return
    say(f"issues are written by {server.description}")
    hosts.tell(server, settings, GOES)
    endpoint = await probe(server.url, api_key=server.key, model=settings.model)
    if endpoint.flavour == "embedded":
        raise UsageError(
            f"{endpoint.url} is the embedded engine, which writes no issues: name another server with --endpoint, or "
            "use none with --engine embedded."
        )
    async with Client(
        endpoint, api_key=server.key, on_retry=lambda note: say(f"asked again: {note.reason}")
    ) as client:
        yield Rewriter(client, history.store, settings.thinking, say)


async def _print_candidates(repo: Path, history: CommitHistory, wish: CreateRequest) -> int:
    from m3agent.evals.create.create import CommitCounts, candidates, title_of

    seen = CommitCounts()
    found = [candidate async for candidate in candidates(history, wish, seen, say)]
    rows = [
        (c.commit.sha[:12], f"{c.commit.date:%Y-%m-%d}", str(c.score), printable_line(title_of(c), 80))
        for c in found
    ]
    if not found:
        return _none(seen)
    table = wrapping([("COMMIT", "DATE", "SCORE", "TITLE"), *rows], columns_of(sys.stdout))
    print_bytes(table.encode())
    _conclude(seen)
    say("SCORE is how much a commit's messages look like a fix")
    say(
        f"next: {shlex.join(['m3agent', 'eval', 'create', str(repo), '-o', 'FOLDER'])} makes instances of them"
    )
    return 0


async def _fill(
    history: CommitHistory, output: Path, wish: CreateRequest, timeout: float, rewriter: Rewriter | None
) -> int:
    from m3agent.evals.create.create import create
    from m3agent.evals.create.folder import CreatedFolder
    from m3agent.evals.create.graded import GradedValidator

    validator = GradedValidator(*parts(say), timeout)
    with CreatedFolder.opened(output, history.name) as made:
        seen = await create(history, made, wish, validator, say, rewriter)
        made_now = f"{counted(len(made.rows), 'instance')} of {made.repo} in {output}"
        if not made.rows:
            say(made_now)
            return _none(seen)
        _conclude(seen)
        say(made_now)
        say("they are validated: `m3agent eval validate` is not needed")
        command = shlex.join(["m3agent", "eval", "run", str(output), "-o", "RUN"])
        say(f"next: {command} --endpoint URL attempts them with a language model")
        print_bytes("".join(f"{ident}\n" for ident in made.rows).encode())
        return 0


def _none(seen: CommitCounts) -> int:
    """Print why there are no candidates or no instances, and what to do; return the exit code."""
    _conclude(seen)
    if seen.candidates:
        say(
            "no candidate is a valid instance: change --since, --until or the limits, so that there are others"
        )
    else:
        say(
            "no commit is a candidate, because none has a parent here and changes Python source and tests within the limits: "
            "change --since, --until or the limits, or take another repository"
        )
    return NONE_EXIT


def _conclude(seen: CommitCounts) -> None:
    """Print why commits gave no candidate."""
    if not seen.commits:
        return
    say(f"{counted(seen.commits, 'commit')} examined, {counted(seen.candidates, 'candidate')}; the others:")
    for reason, count in seen.rejected.most_common():
        say(f"  {count:6} {reason}")


def _day(text: str | None, option: str, *, end: bool = False) -> datetime | None:
    """Parse a date option: return the beginning or the end of a day in UTC, or a moment."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: write a date like 2024-05-31.") from None
    if end and len(text) == len("2024-05-31"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _checked(option: str, text: str | None, pattern: str, advice: str) -> str | None:
    """Return the value of an option. Raises UsageError: it does not match its pattern."""
    if text is not None and not re.fullmatch(pattern, text, re.ASCII):
        raise UsageError(f"{option} {text}: {advice}.")
    return text


def _kinds(text: str | None) -> tuple[str, ...]:
    from m3agent.evals.create.statement import KINDS

    chosen = KINDS if text is None else tuple(part.strip() for part in text.split(","))
    if unknown := [kind for kind in chosen if kind not in KINDS]:
        raise UsageError(f"--kinds {printable_line(unknown[0], 40)!r}: the kinds are {', '.join(KINDS)}.")
    return chosen
