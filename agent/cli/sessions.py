"""`m3agent report` and `m3agent sessions`: show earlier fixes as tables, JSON or a page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.cli.common import (
    All,
    AsJson,
    Repo,
    faults,
    print_bytes,
    say,
    session_names,
    sessions_here,
)
from m3agent.agent.errors import UsageError
from m3agent.agent.util.sanitize import columns_of, print_text, printable_line
from m3agent.agent.util.table import fitting, wrapped

if TYPE_CHECKING:
    from m3agent.agent.report.model import SessionReport
    from m3agent.agent.session.catalog import Sessions, Summary

sessions_app = typer.Typer(
    help="List earlier fixes, show their results, and resume, fork or export them.", no_args_is_help=True
)

WHICH = "A session's id, the beginning of an id, or 'last'"
COLUMNS = ("ID", "STARTED (UTC)", "STATUS", "TURNS", "PRICE", "SIZE", "REPOSITORY", "ISSUE", "REASON")
DROPPED = ("SIZE", "TURNS", "PRICE", "STARTED (UTC)", "REASON", "REPOSITORY")
"""Columns that a narrow terminal does not show, in this order; an id begins with the time of the start."""
NAMES = 12  # characters of the first column of `sessions show`
WIDTHS = (30, 16, 12, 6, 9, 9, 20, 40, 60)  # most characters of each column


@sessions_app.command("list")
def sessions_list(repo: Repo = Path(), every: All = False, as_json: AsJson = False) -> None:
    """Print the sessions of this repository, newest first."""
    with faults():
        sessions = sessions_here(repo, every=every, shows=True)
        found = sessions.list()
        if as_json:
            _print_json([_fields(summary) for summary in found])
        elif found:
            rows = [COLUMNS, *(_row(summary) for summary in found)]
            table, left_out = fitting(rows, columns_of(sys.stdout), DROPPED)
            print_text(table, end="")
            if left_out:
                say(f"too narrow for {', '.join(left_out)}: `m3agent sessions show ID` has them")
        else:
            say("there are no sessions yet" + (f" about {sessions.where}" if sessions.where else ""))
        for summary in found:
            if summary.problem and not as_json:
                say(summary.problem)


@sessions_app.command("show")
def sessions_show(
    session: Annotated[
        str, typer.Argument(help=f"{WHICH}.", metavar="[SESSION]", autocompletion=session_names)
    ] = "last",
    repo: Repo = Path(),
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Print the result of one session."""
    with faults():
        from m3agent.agent.session.catalog import summary_of

        summary = summary_of(sessions_here(repo, every=every, shows=True).find(session))
        named = summary.repository and (every or repo != Path())
        there = f" --repo {shlex.quote(summary.repository)}" if named else ""
        if as_json:
            _print_json(_fields(summary))
        elif summary.problem:
            raise UsageError(summary.problem)
        else:
            print_text(_details(summary, columns_of(sys.stdout), there), end="")


def report(
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", help="Write the page to this file; - is standard output.", metavar="FILE"
        ),
    ],
    sessions: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{WHICH}; or the path of a session's folder or log. By default the last session.",
            metavar="SESSION...",
            autocompletion=session_names,
        ),
    ] = None,
    repo: Repo = Path(),
    every: All = False,
) -> None:
    """Write one self-contained HTML page that shows sessions: verdict, patch, timeline, tokens."""
    with faults():
        from m3agent.agent.report.page import render
        from m3agent.agent.report.write import check_target, write_page
        from m3agent.agent.session.catalog import LAST

        if output != "-":
            check_target(Path(output))
        here = partial(sessions_here, repo, every=every, shows=True)
        page = render([_read(here, name) for name in dict.fromkeys(sessions or [LAST])]).encode()
        if output == "-":
            print_bytes(page)
        else:
            write_page(Path(output), page)
            say(f"wrote {output} ({len(page) / 1000:,.0f} kB)")


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


def _row(summary: Summary) -> tuple[str, ...]:
    from m3agent.agent.report import text

    cells = (
        summary.id,
        text.moment(summary.started)[:16] or text.UNKNOWN,
        summary.status,
        text.count(summary.turns),
        text.price(summary.price),
        text.size(summary.bytes),
        Path(summary.repository).name or text.UNKNOWN,
        summary.issue or text.UNKNOWN,
        summary.reason or text.UNKNOWN,
    )
    return tuple(printable_line(cell, width) for cell, width in zip(cells, WIDTHS, strict=True))


def _details(summary: Summary, width: int, there: str = "") -> str:
    """Return a session for people, one detail a line; lines wrap on a terminal of `width` columns, if it is not 0.

    `there` is the option that names the session's repository in the next command, if it is not the present one.
    """
    from m3agent.agent.report import text

    asks_a_model = summary.engine.partition(":")[0] != "embedded"

    def tokens() -> str:
        if summary.prompt_tokens is None or not asks_a_model:
            return ""
        cached = "" if summary.cached_tokens is None else f" ({summary.cached_tokens:,} cached)"
        return f"{summary.prompt_tokens:,} in{cached}, {text.count(summary.completion_tokens)} out"

    known = {
        "id": summary.id,
        "started": text.moment(summary.started),
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
    known["next"] = _next(summary, there)
    lines: list[str] = []
    for name, value in known.items():
        if value:
            first, *below = wrapped(printable_line(value, 500), width - NAMES)
            lines += [f"{name:<{NAMES}}{first}\n", *(f"{'':<{NAMES}}{line}\n" for line in below)]
    return "".join(lines)


def _next(summary: Summary, there: str) -> str:
    from m3agent.agent.errors import HANDED_OVER
    from m3agent.agent.loop.resume import RESUMABLE

    if summary.patch and summary.repository and summary.status in HANDED_OVER:
        if summary.uncommitted:
            return f"git apply {shlex.quote(summary.patch)} (m3agent apply does not write over uncommitted changes)"
        return f"m3agent apply {summary.id}{there} (writes the patch into the work tree, unless it is there)"
    if summary.turns and summary.status in RESUMABLE:
        return f"m3agent sessions resume {summary.id}{there}"
    return f"m3agent report {summary.id}{there} -o report.html"


def _fields(summary: Summary) -> dict[str, object]:
    import dataclasses

    return dataclasses.asdict(summary)


def _print_json(value: object) -> None:
    import json

    print_bytes(json.dumps(value, indent=2).encode() + b"\n")
