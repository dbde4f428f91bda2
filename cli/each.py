"""`m3agent fix --each`: fix several issues, some of them at a time, each in a session of its own."""

from __future__ import annotations

import asyncio
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
from m3agent.agent.settings.settings import SETTINGS, Settings
from m3agent.cli.common import print_outcome, run, say, settings_in, state_folder
from m3agent.util.append_only import AppendOnlyFile, fault
from m3agent.util.concurrency import some_at_a_time
from m3agent.util.counted import counted
from m3agent.util.errors import INTERRUPTED, Status, UsageError
from m3agent.util.json_lines import json_lines
from m3agent.util.sanitize import columns_of, print_note, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.ui.event_printer import Screen
    from m3agent.agent.ui.queue_view import QueueView

MOST = 20
"""Most issues of a query, unless the user wants others."""
PRINTS = ("--result-only", "--json", "--json-result", "--detach")
"""Options of which each decides what is printed."""
ENDS = ("--plan", "--spec", "--result-only")
"""Options of which each decides where a fix ends."""
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


def check_together(given: Mapping[str, bool], workers: int) -> None:
    """Refuse options of `fix` that exclude each other, or need one another.

    Args:
        given: Which options are given.
        workers: Issues at a time.

    Raises:
        UsageError: With the reason.
    """
    printed = [name for name in PRINTS if given[name]]
    if len(printed) > 1:
        raise UsageError(f"{' and '.join(printed)} each decide what is printed: give only one")
    ends = [name for name in ENDS if given[name]]
    if len(ends) > 1:
        raise UsageError(f"{ends[0]} and {ends[-1]} exclude each other: give only one")
    if given["--follow"] and not given["--pr"]:
        raise UsageError("--follow is for pull requests: give --pr too")
    if given["--apply"] and workers > 1:
        raise UsageError(
            "--apply is for one issue at a time: leave out --workers, or give m3agent apply then"
        )


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
    workers: int,
    json_result: bool,
) -> NoReturn:
    """Fix the issues that a file or a query names.

    Args:
        each: The file or the query.
        most: Most issues of a query.
        files: Where to write reports.
        handed: What to do with the patches.
        workers: Most issues at a time.

    Raises:
        M3AgentError: The issues or the files cannot be used.
    """
    from m3agent.agent.issue.query import found_issues
    from m3agent.agent.repo.repository import open_repository, origin_url
    from m3agent.agent.report.write import check_target

    settings = settings_in(repo, flags)

    def query(text: str) -> list[str]:
        origin = origin_url(open_repository(repo))
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
    kept = kept_in(state, repo, settings, [named, most, *handed])
    fix_each(
        specs,
        begin,
        workers=workers,
        json_result=json_result,
        kept=kept,
        report=lambda ended: write_reports(files, state, ended),
    )


def kept_in(state: Path, repo: Path, settings: Settings, asked: Sequence[object]) -> Path:
    """Return the file with the results of a command until all its issues have one.

    Args:
        settings: Those in force: another model or limit gives other results, also if a variable or a file names it.
        asked: What names the issues, and what to do with the patches.
    """
    values = {name: getattr(settings, name) for name, setting in SETTINGS.items() if not setting.secret}
    name = hashlib.sha256(json.dumps([str(repo.resolve()), asked, values]).encode()).hexdigest()[:32]
    return state / "each" / f"{name}.jsonl"


def fix_each(
    specs: Sequence[str],
    begin: Begin,
    *,
    workers: int = 1,
    json_result: bool,
    kept: Path,
    report: Callable[[list[Ended]], None],
) -> NoReturn:
    """Fix issues, show a table of the results, and exit with the largest of the exit codes.

    An issue that cannot be fixed does not stop the others. Ctrl-C stops all, and the table and the report follow. If the same
    command was cut off before, issues that came to their end are not fixed again.

    Args:
        workers: Most issues at a time.
        kept: The file that keeps the results until all issues have one and the report is written.
        report: Writes the report about all.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
    """
    with contextlib.closing(_results(kept)) as results:
        before = _before(kept)
        known = {spec: before[spec] for spec in specs if spec in before}
        if known:
            say(f"{len(known)} of {counted(len(specs), 'issue')} ended before and will not be fixed again")
        queue = _Queue(specs, begin, results, known, workers, json_result=json_result)
        is_interrupted = False
        try:
            queue.work()
        except KeyboardInterrupt:
            is_interrupted = True
        ended = [queue.ended[spec] for spec in specs if spec in queue.ended]
        table = [("status", "exit", "session", "issue"), *(end.row for end in ended)]
        for line in wrapping(table, columns_of(sys.stderr)).splitlines():
            print_note(line)
        report(ended)
        if is_interrupted:
            raise KeyboardInterrupt
        kept.unlink()
    raise typer.Exit(max(end.exit for end in ended))


class _Queue:
    """The issues of a command, at most `workers` of them at work at a time.

    Args:
        results: Gets the result of each issue that came to its end.
        ended: The issues that ended before, and how.
    """

    def __init__(
        self,
        specs: Sequence[str],
        begin: Begin,
        results: AppendOnlyFile,
        ended: Mapping[str, Ended],
        workers: int,
        *,
        json_result: bool,
    ) -> None:
        self._begin, self._results, self._workers, self._json_result = begin, results, workers, json_result
        self._of = len(specs)
        self._waiting = [(number, spec) for number, spec in enumerate(specs, 1) if spec not in ended]
        self.ended = dict(ended)
        """How each issue ended."""
        self._is_interrupted = False

    def work(self) -> None:
        """Fix the issues. Raises KeyboardInterrupt after Ctrl-C, when all fixes at work have ended."""
        if self._workers == 1:
            run(some_at_a_time(1, lambda item: self._fix_alone(*item), self._waiting))
            return
        from m3agent.agent.ui.queue_view import QueueView

        view = QueueView(self._of, len(self.ended))

        async def work() -> None:
            with view:
                await some_at_a_time(self._workers, lambda item: self._fix_beside(*item, view), self._waiting)

        run(work())

    async def _fix_alone(self, number: int, spec: str) -> None:
        self._announce(number, spec, say)
        await self._fix(spec, *self._begin(spec), say, contextlib.nullcontext)

    async def _fix_beside(self, number: int, spec: str, view: QueueView) -> None:
        self._announce(number, spec, view.say)
        fixing, screen = self._begin(spec)
        try:
            with view.showing(number, screen):
                await self._fix(spec, fixing, screen, view.say, view.paused)
        finally:
            if end := self.ended.get(spec):
                view.say(f"issue {number} of {self._of} is {end.status}: {view.state}")

    def _announce(self, number: int, spec: str, tell: Callable[[str], None]) -> None:
        if self._is_interrupted:
            raise asyncio.CancelledError
        tell(f"issue {number} of {self._of}: {printable_line(spec, 200)}")

    async def _fix(
        self,
        spec: str,
        fixing: Coroutine[None, None, FixResult],
        screen: Screen,
        tell: Callable[[str], None],
        printing: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Carry out one fix, and keep how it ended.

        Args:
            tell: Says why it could not be carried out.
            printing: Returns the context in which its patch is printed.

        Raises:
            asyncio.CancelledError: It was interrupted.
        """
        from m3agent.agent.exit_codes import FAILURES, exit_code_of

        def without_result(status: Status, code: int) -> Ended:
            return Ended(str(status), code, screen.session or UNKNOWN, spec)

        try:
            result = await fixing
            self.ended[spec] = Ended(str(result.status), result.exit_code, result.session.name, spec)
            # of others, the next run may find what was missing
            if result.status not in (Status.ERROR, Status.INTERRUPTED):
                self._results.append(json.dumps(self.ended[spec]).encode(), sync=True)
            with printing():
                print_outcome(result, screen, json_result=self._json_result)
                screen.print_end()
        except asyncio.CancelledError:
            self._is_interrupted, self.ended[spec] = True, without_result(Status.INTERRUPTED, INTERRUPTED)
            raise
        except FAILURES as error:
            self.ended[spec] = without_result(Status.ERROR, exit_code_of(error))
            tell(str(error))
        finally:
            screen.print_end()
        if self.ended[spec].exit == INTERRUPTED:
            self._is_interrupted = True
            raise asyncio.CancelledError


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
