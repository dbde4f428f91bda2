"""Write the pages of a run's sessions next to the report, and return their addresses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from m3agent.agent.errors import M3AgentError, UsageError
from m3agent.agent.report.page import render
from m3agent.agent.report.reader import report_of
from m3agent.agent.report.write import write_page
from m3agent.agent.session.log_reader import LOG, read_log
from m3agent.evals.data.results import AttemptRecord
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.report.counting import Attempt
from m3agent.evals.report.model import RunReport

_SAY_EVERY = 2.0  # seconds


@dataclass(frozen=True)
class SessionPage:
    """A session's page: its address relative to the report's, or the reason why it is missing."""

    link: str = ""
    problem: str = ""


def folder_of(page: Path) -> Path:
    """Return the folder of a report's session pages: `report_files` for `report.html`."""
    return page.with_name(f"{page.stem}_files")


def write_sessions(
    run: RunFolder, report: RunReport, page: Path, say: Callable[[str], None]
) -> dict[Attempt, SessionPage]:
    """Write a page for each attempt with a session log.

    An unreadable log is reported in the result and stops nothing.

    Raises:
        UsageError: The folder's path is taken by something else.
        EnvironmentFault: A page cannot be written.
    """
    logged = [(result, result.session) for result in report.results if result.session is not None]
    if not logged:
        return {}
    folder = folder_of(page)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is for the sessions' pages, and it is not a folder: name another page")
    found: dict[Attempt, SessionPage] = {}
    said = time.monotonic()
    for number, (result, session) in enumerate(logged, 1):
        found[result.instance_id, result.attempt] = _write_one(run, result, session, folder)
        if time.monotonic() - said > _SAY_EVERY:
            said = time.monotonic()
            say(f"{number:,} of {len(logged):,} sessions' pages are written")
    return found


def _write_one(run: RunFolder, result: AttemptRecord, session: str, folder: Path) -> SessionPage:
    root = run.path.resolve()
    source = (root / session).resolve()
    if not source.is_relative_to(root):  # the run may come from another person
        return SessionPage(problem="the session is outside the run's folder: ignored")
    if not (source / LOG).is_file():
        return SessionPage(problem="the session's log does not exist")
    try:
        shown = render([report_of(read_log(source / LOG), source)])
    except M3AgentError as error:
        return SessionPage(problem=str(error))
    name = f"{result.instance_id}-{result.attempt}.html"
    folder.mkdir(exist_ok=True)
    write_page(folder / name, shown.encode())
    return SessionPage(link=f"{folder.name}/{name}")
