"""`m3agent report` and `m3agent sessions`: show earlier fixes as tables, JSON or a page."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import (
    All,
    AsJson,
    Repo,
    Session,
    argument,
    option,
    print_bytes,
    print_json,
    say,
    session_names,
    sessions_here,
)
from m3agent.util.as_typed import as_typed
from m3agent.util.counted import counted
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import columns_of, printable_line
from m3agent.util.table import fitting, without, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.text import Text

    from m3agent.agent.report.model import SessionReport
    from m3agent.agent.session.catalog import Sessions, Summary

sessions_app = typer.Typer(
    help="List fixes, show their results, watch a running one, and resume, fork or export them.",
    no_args_is_help=True,
)

PAGE = "m3agent-report.html"
"""The file of a report without -o. Nothing else has this name, so an earlier report is overwritten."""
WHICH = "A session's id, the beginning of an id, or 'last'"
COLUMNS = ("ID", "WHEN", "STATUS", "REPOSITORY", "TURNS", "PRICE", "SIZE", "REASON", "ISSUE")
WIDTHS = (30, 10, 12, 20, 6, 9, 9, 60, 60)
"""Most characters of each column. A terminal cuts the last one, the issue, where it ends."""
DROPPED = ("SIZE", "TURNS", "PRICE", "REASON", "REPOSITORY")
"""Columns that a narrow terminal does not show, in this order. With --all, the repository stays."""
DROPPED_LAST = ("ISSUE", "WHEN")
"""Further columns to leave out, in this order, if the issue has no room at all: the status is never cut for them."""
SHOWN = 20  # sessions in the list, unless the user wants others
NAMES = 12  # characters of the first column of `sessions show`


@sessions_app.command("list")
def sessions_list(
    number: Annotated[
        int | None,
        option(
            "--number", "-n", f"How many; 0 for all. By default {SHOWN}, and all with --json.", "N", min=0
        ),
    ] = None,
    repo: Repo = Path(),
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Print the last sessions of this repository, the newest at the end. JSON has the newest first."""
    sessions = sessions_here(repo, every=every, shows=True)
    found = sessions.list()
    wanted = number if number is not None else 0 if as_json else SHOWN
    shown = found[:wanted] if wanted else found
    if as_json:
        print_json([dataclasses.asdict(summary) for summary in shown])
    elif shown:
        dropped = [head for head in DROPPED if head != "REPOSITORY" or not every]
        _print_list(shown[::-1], len(found) - len(shown), dropped)
    else:
        say("there are no sessions yet" + (f" about {sessions.where}" if sessions.where else ""))


def _print_list(shown: Sequence[Summary], earlier: int, dropped: Sequence[str]) -> None:
    """Print sessions, the oldest first, and how many earlier ones there are; `dropped` as in `fitting`."""
    from datetime import UTC, datetime

    from m3agent.agent.ui.result import print_result

    now = datetime.now(UTC)
    rows: Sequence[Sequence[str]] = [COLUMNS, *(_row(summary, now) for summary in shown)]
    if not any(summary.price for summary in shown):
        rows, dropped = without(rows, "PRICE"), [head for head in dropped if head != "PRICE"]
    width = columns_of(sys.stdout)
    table, left_out = fitting(rows, width, dropped)
    if not table.partition("\n")[0].endswith(COLUMNS[-1]):
        table, left_out = fitting(rows, width, [*dropped, *DROPPED_LAST])
    has_age = "WHEN" not in left_out
    print_result(_coloured(table.splitlines(), rows, shown, has_age=has_age))
    if earlier:
        say(f"{counted(earlier, 'earlier session is', 'earlier sessions are')} not shown: -n 0 lists all")
    if left_out:
        say(f"too narrow for {', '.join(left_out)}: `m3agent sessions show ID` has them")
    for summary in shown:
        if summary.problem:
            say(summary.problem)


def _coloured(
    lines: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[Summary], *, has_age: bool
) -> Text:
    """Return the lines of the list, made from rows, in colours; a line below each fork says what it continues.

    `has_age` is whether the lines have the second cell of the rows.
    """
    from rich.text import Text

    from m3agent.agent.ui.result import HEAD, LABEL, OTHER_STATUS, STATUSES

    when = max(len(row[0]) for row in rows) + 2
    status = when + has_age * (max(len(row[1]) for row in rows) + 2)
    made = Text().append(f"{lines[0]}\n", HEAD)
    for row, summary in zip(lines[1:], shown, strict=True):
        end = status + len(summary.status)
        made.append(row[:when], LABEL).append(row[when:status], "dim")
        made.append(row[status:end], STATUSES.get(summary.status, OTHER_STATUS)).append(f"{row[end:]}\n")
        if summary.forked_from:
            made.append(f"{'':<{when}}{_fork(summary)}\n", "dim")
    return made


def _fork(summary: Summary) -> str:
    return printable_line(f"fork of {summary.forked_from} after turn {summary.forked_turn}", 60)


@sessions_app.command("show")
def sessions_show(
    session: Session = "last", repo: Repo = Path(), every: All = False, as_json: AsJson = False
) -> None:
    """Print the result of one session."""
    from m3agent.agent.session.catalog import summary_of

    summary = summary_of(sessions_here(repo, every=every, shows=True).find(session, fixes=True))
    named = summary.repository and (every or repo != Path())
    there = f" --repo {shlex.quote(summary.repository)}" if named else ""
    if as_json:
        print_json(dataclasses.asdict(summary))
    elif summary.problem:
        raise UsageError(summary.problem)
    else:
        from m3agent.agent.ui.result import labelled, print_result

        print_result(labelled(_details(summary, columns_of(sys.stdout), there), NAMES))


def report(
    sessions: Annotated[
        list[str] | None,
        argument(
            f"{WHICH}; or the path of a session's folder or log. By default the last session.",
            "SESSION...",
            autocompletion=session_names,
        ),
    ] = None,
    output: Annotated[
        str, option("--output", "-o", "Write the page to this file; - is standard output.", "FILE")
    ] = PAGE,
    repo: Repo = Path(),
    every: Annotated[
        bool, option("--all", "Find the sessions in all repositories, not in this one only.")
    ] = False,
) -> None:
    """Write one self-contained HTML page that shows sessions: verdict, patch, timeline, tokens."""
    from m3agent.agent.report.page import render
    from m3agent.agent.report.write import check_target, write_page, written
    from m3agent.agent.session.catalog import LAST

    if output != "-":
        check_target(Path(output))
    here = partial(sessions_here, repo, every=every, shows=True)
    page = render([_read(here, name) for name in dict.fromkeys(sessions or [LAST])]).encode()
    if output == "-":
        print_bytes(page)
    else:
        write_page(Path(output), page)
        say(written(Path(output), page))


def _read(here: Callable[[], Sessions], name: str) -> SessionReport:
    """Return the report of a session. Its name is a path if it looks like one, else one of the sessions `here`."""
    from m3agent.agent.report.reader import report_of
    from m3agent.agent.session.log_reader import LOG, read_log

    path = Path(name)
    if "/" not in name and path.suffix != ".jsonl":
        path = here().find(name)
    if path.name == LOG:
        path = path.parent
    path = path.resolve()
    folder = path if path.is_dir() else None
    return report_of(read_log(path / LOG if folder else path), folder)


def _row(summary: Summary, now: datetime) -> tuple[str, ...]:
    from m3agent.agent.report import text

    cells = (
        summary.id,
        text.ago(summary.started, now),
        summary.status,
        Path(summary.repository).name or text.UNKNOWN,
        text.count(summary.turns),
        text.price(summary.price),
        text.size(summary.bytes),
        summary.reason or text.UNKNOWN,
        summary.issue or text.UNKNOWN,
    )
    return tuple(printable_line(cell, width) for cell, width in zip(cells, WIDTHS, strict=True))


def _details(summary: Summary, width: int, there: str = "") -> str:
    """Return a session for people, one detail a line; lines wrap on a terminal of `width` columns, if it is not 0.

    `there` is the option that names the session's repository in the next command, if it is not the present one.
    """
    from m3agent.agent.report import text

    def tokens() -> str:
        if summary.prompt_tokens is None:
            return ""
        cached = "" if summary.cached_tokens is None else f" ({summary.cached_tokens:,} cached)"
        return f"{summary.prompt_tokens:,} in{cached}, {text.count(summary.completion_tokens)} out"

    known = {
        "id": summary.id,
        "started": text.moment(summary.started),
        "forked": _fork(summary).removeprefix("fork ") if summary.forked_from else "",
        "status": summary.status,
        "reason": summary.reason,
        "issue": summary.issue,
        "source": summary.source,
        "repository": summary.repository,
        "commit": summary.commit,
        "engine": summary.engine,
        "turns": text.count(summary.turns),
        "calls": text.count(summary.calls),
        "tokens": tokens(),
        "price": "" if summary.price is None else text.price(summary.price),
        "time": text.duration(summary.seconds),
        "patch": summary.patch or "none",
        "notes": "; ".join(summary.notes),
        "folder": f"{summary.folder} ({text.size(summary.bytes)})",
    }
    known["next"] = as_typed(_next(summary, there), summary.repository)
    lines: list[str] = []
    for name, value in known.items():
        if value:
            first, *below = wrapped(printable_line(value, 500), width - NAMES)
            lines += [f"{name:<{NAMES}}{first}\n", *(f"{'':<{NAMES}}{line}\n" for line in below)]
    return "".join(lines)


def _next(summary: Summary, there: str) -> str:
    from m3agent.agent.loop.resume import RESUMABLE
    from m3agent.util.errors import HANDED_OVER, Status

    if summary.patch and summary.repository and summary.status in HANDED_OVER:
        if summary.uncommitted:
            return f"git apply {shlex.quote(summary.patch)} (m3agent apply does not write over uncommitted changes)"
        return f"m3agent apply {summary.id}{there} (writes the patch into the work tree, unless it is there)"
    if summary.turns and summary.status in RESUMABLE:
        return f"m3agent sessions resume {summary.id}{there}"
    if summary.status == Status.INTERRUPTED:
        return "type the same command again: no model was asked yet"
    return f"m3agent report {summary.id}{there}"
