"""`m3agent fix --each`: fix several issues one after the other, each in a session of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from m3agent.agent.issue.query import is_query
from m3agent.agent.report.text import UNKNOWN
from m3agent.cli.common import faults, finish, say, settings_in, state_folder
from m3agent.util.append_only import AppendOnlyFile, fault
from m3agent.util.counted import counted
from m3agent.util.errors import INTERRUPTED, Status, UsageError
from m3agent.util.json_lines import json_lines
from m3agent.util.sanitize import columns_of, print_note, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.ui.event_printer import Screen

MOST = 20
"""Most issues of a query, unless the user wants others."""
Begin = Callable[[str], "tuple[Coroutine[None, None, FixResult], Screen]"]
"""Returns the fix of an issue and the screen that shows it."""


class Ended(NamedTuple):
    """How the fix of an issue ended."""

    status: str
    exit: int
    session: str
    """The session's id; UNKNOWN without one."""
    issue: str
    """The issue as it was named."""

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table for people."""
        return self.status, str(self.exit), self.session, printable_line(self.issue, 200)


def check(
    each: str | None, issue: str | None, for_one: Mapping[str, bool], for_each: Mapping[str, bool]
) -> None:
    """Refuse a command line that names no issue or two sources of issues, or has options that do not fit.

    Args:
        for_one: The options for one issue only, and which of them are given.
        for_each: Those for several issues.

    Raises:
        UsageError: With the reason.
    """
    if each is None and issue is None:
        raise UsageError("missing argument 'ISSUE'; see 'm3agent fix --help'.")
    wrong = [name for name, is_given in (for_each if each is None else for_one).items() if is_given]
    if wrong and each is None:
        raise UsageError(f"{wrong[0]} is for several issues: leave it away, or name them with --each")
    if each is not None and issue is not None:
        raise UsageError("--each names the issues: leave ISSUE away")
    if wrong:
        raise UsageError(f"{wrong[0]} is for one issue: leave it or --each away")


def issues_of(each: str, query: Callable[[str], list[str]]) -> tuple[object, list[str]]:
    """Return what names the issues in each run, and the issues of a file or a query, each once.

    Args:
        each: A file with an issue on each line, in any form that `fix` accepts; `-` for standard input; or a query on the
            repository's tracker.
        query: Returns the issues that a query finds.

    Raises:
        UsageError: The file cannot be read or names no issue.
    """
    if each != "-" and is_query(each) and not os.path.lexists(each):  # pathlib refuses long texts
        return each, query(each)  # the tracker may have other issues in the next run
    try:
        text = sys.stdin.read() if each == "-" else Path(each).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--each {each} cannot be read: {reason}") from None
    specs = [line.strip() for line in text.splitlines() if line.strip()]
    if not specs:
        raise UsageError(f"--each {each} names no issue: write one on each line")
    return specs, list(dict.fromkeys(specs))


def begin_all(
    each: str,
    most: int | None,
    files: Sequence[Path],
    repo: Path,
    flags: Mapping[str, object],
    handed: Sequence[bool],
    begin: Begin,
    *,
    json_result: bool,
) -> NoReturn:
    """Fix the issues that a file or a query names.

    Args:
        each: The file or the query.
        most: Most issues of a query.
        files: Where to write reports.
        handed: What to do with the patches.

    Raises:
        M3AgentError: The issues or the files cannot be used.
    """
    from m3agent.agent.issue.query import found_issues
    from m3agent.agent.repo.repository import open_repository, origin_url
    from m3agent.agent.report.write import check_target

    def query(text: str) -> list[str]:
        settings, origin = settings_in(repo, flags), origin_url(open_repository(repo))
        return found_issues(
            text, most or MOST, origin, github_api=settings.github_api, env=os.environ, say=say
        )

    for file in files:
        check_target(file, "--report")
    named, specs = issues_of(each, query)
    if not specs:
        say("no open issue is found, so nothing is to be done")
        raise typer.Exit
    state = state_folder()
    options = {name: value for name, value in flags.items() if value is not None}
    kept = kept_in(state, repo, [named, most, *handed, sorted(options.items())])
    fix_each(
        specs,
        begin,
        json_result=json_result,
        kept=kept,
        report=lambda ended: write_reports(files, state, ended),
    )


def kept_in(state: Path, repo: Path, asked: Sequence[object]) -> Path:
    """Return the file with the results of a command until all its issues have one.

    Args:
        asked: What names the issues, and the options: another model or limit gives other results.
    """
    name = hashlib.sha256(json.dumps([str(repo.resolve()), asked], default=str).encode()).hexdigest()[:32]
    return state / "each" / f"{name}.jsonl"


def fix_each(
    specs: Sequence[str],
    begin: Begin,
    *,
    json_result: bool,
    kept: Path,
    report: Callable[[list[Ended]], None],
) -> NoReturn:
    """Fix issues, show a table of the results, and exit with the largest of the exit codes.

    An issue that cannot be fixed does not stop the others. Ctrl-C does, and the table and the report follow. If the same
    command was cut off before, issues that came to their end are not fixed again.

    Args:
        kept: The file that keeps the results until all issues have one.
        report: Writes the report about all.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
    """
    ended: list[Ended] = []
    with contextlib.closing(_results(kept)) as results:
        before = _before(kept)
        if known := sum(spec in before for spec in specs):
            say(f"{known} of {counted(len(specs), 'issue')} ended before and will not be fixed again")
        for number, spec in enumerate(specs, 1):
            if spec in before:
                ended.append(before[spec])
                continue
            say(f"issue {number} of {len(specs)}: {printable_line(spec, 200)}")
            ended.append(_fix(spec, *begin(spec), json_result=json_result))
            if ended[-1].exit == INTERRUPTED:
                break
            if ended[-1].status != Status.ERROR:  # the next run may find what was missing, such as the server
                results.append(json.dumps(ended[-1]).encode(), sync=True)
        else:
            kept.unlink()
    table = [("status", "exit", "session", "issue"), *(end.row for end in ended)]
    for line in wrapping(table, columns_of(sys.stderr)).splitlines():
        print_note(line)
    report(ended)
    if ended[-1].exit == INTERRUPTED:
        raise KeyboardInterrupt
    raise typer.Exit(max(end.exit for end in ended))


def write_reports(files: Sequence[Path], state: Path, ended: Sequence[Ended]) -> None:
    """Write a report about all issues into each file: JSON if its name ends with `.json`, else a page.

    Raises:
        UsageError: A session cannot be read, or a file is not a regular one.
        EnvironmentFault: A file cannot be written.
    """
    from m3agent.agent.report.page import render
    from m3agent.agent.report.reader import report_of
    from m3agent.agent.report.write import write_page, written
    from m3agent.agent.session.catalog import summary_of
    from m3agent.agent.session.log_reader import LOG, read_log

    folders = {end: state / "sessions" / end.session for end in ended if end.session != UNKNOWN}
    for file in files:
        if not folders and file.suffix != ".json":
            say(f"{file} is not written: no issue has a session")
            continue
        if file.suffix == ".json":
            rows = [end._asdict() for end in ended]
            for end, row in zip(ended, rows, strict=True):
                summary = summary_of(folders[end]) if end in folders else None
                row["session"] = None if summary is None else end.session
                for name in ("reason", "seconds", "price", "patch"):
                    row[name] = getattr(summary, name, None)
            page = json.dumps(rows, indent=2).encode() + b"\n"
        else:
            page = render([report_of(read_log(folder / LOG), folder) for folder in folders.values()]).encode()
        write_page(file, page)
        say(written(file, page))


def _results(path: Path) -> AppendOnlyFile:
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise fault(error, path.parent) from None
    try:
        return AppendOnlyFile(path)
    except UsageError:
        raise UsageError(
            "another m3agent fix --each works on these issues: wait for it, or stop it first"
        ) from None


def _before(kept: Path) -> dict[str, Ended]:
    """Return the results that the same command has kept, by the issue. A damaged line, as a power cut leaves it, does not count."""
    before: dict[str, Ended] = {}
    for _, line in json_lines(kept.read_bytes()):
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            end = Ended(*json.loads(line))
            before[str(end.issue)] = end._replace(exit=int(end.exit))
    return before


def _fix(spec: str, fixing: Coroutine[None, None, FixResult], screen: Screen, *, json_result: bool) -> Ended:
    """Carry out one fix; return how it ended."""
    results: list[FixResult] = []

    async def kept() -> FixResult:
        results.append(await fixing)
        return results[0]

    code = INTERRUPTED
    try:
        with faults(), contextlib.suppress(KeyboardInterrupt):
            finish(kept(), screen, json_result=json_result)
    except typer.Exit as ended:
        code = ended.exit_code
    if results:
        return Ended(str(results[0].status), code, results[0].session.name, spec)
    status = Status.INTERRUPTED if code == INTERRUPTED else Status.ERROR
    return Ended(str(status), code, screen.session or UNKNOWN, spec)
