"""`m3agent eval report`: report a run's results as a table, a page, JSON, JUnit XML, or SWE-bench's own files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from m3agent.cli.common import AsJson, argument, option, print_bytes, say
from m3agent.cli.eval.app import eval_app
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of
from m3agent.util.sanitize import columns_of

if TYPE_CHECKING:
    from m3agent.evals.data.run_folder import RunFolder
    from m3agent.evals.report.counting import Tally
    from m3agent.evals.report.model import RunComparison, RunReport


@eval_app.command()
def report(
    run: Annotated[Path, argument("The run's folder.", "RUN")],
    compare: Annotated[
        Path | None, option("Another run to compare it with, instance by instance.", "RUN")
    ] = None,
    output: Annotated[
        str | None,
        option(
            "--output",
            "-o",
            "Write an HTML page to this file, and the sessions' pages next to it; - is standard output.",
            "FILE",
        ),
    ] = None,
    as_json: AsJson = False,
    junit: Annotated[Path | None, option("Write JUnit XML to this file.", "FILE")] = None,
    official: Annotated[
        Path | None, option("Write SWE-bench's run report (schema 2) to this file.", "FILE")
    ] = None,
    predictions: Annotated[
        Path | None, option("Write SWE-bench's predictions (JSON lines) to this file.", "FILE")
    ] = None,
    allow_incomplete: Annotated[
        bool, option("--allow-incomplete", "Show a range of scores if some attempts have no result yet.")
    ] = False,
) -> None:
    """Report the results of a run: rates with intervals, costs, and each attempt, failures first.

    Exit codes: 0 reported; 2 wrong use; 3 the run is not complete.
    """
    from m3agent.agent.report.write import write_page
    from m3agent.evals.report.model import compare as compared

    page = None if output in (None, "-") else Path(str(output))
    _check(page, [page, junit, official, predictions], both=output == "-" and as_json)
    folder, tally, made = _read(run, allow_incomplete=allow_incomplete)
    comparison = None
    if compare is not None:
        _, others, _ = _read(compare, allow_incomplete=allow_incomplete)
        comparison = compared(tally, others, str(compare))
    if junit is not None:
        from m3agent.evals.report.exports import junit as as_junit

        write_page(junit, as_junit(made))
    _write_official(folder, tally, official, predictions)
    if output is not None:
        _show_page(folder, made, comparison, page)
    if as_json:
        from m3agent.evals.report.exports import as_json as in_json

        print_bytes(in_json(made, comparison))
    elif output is None:
        from m3agent.agent.ui.result import print_result, tables
        from m3agent.evals.report.table import table

        print_result(tables(table(made, comparison, columns_of(sys.stdout))))
        if made.score.resolved < made.score.attempts:
            command = shlex.join(["m3agent", "eval", "report", str(run), "-o", "report.html"])
            what = "the results as a page" if made.config.command else "each attempt's steps"
            say(f"next: {command} shows {what}")


def _check(page: Path | None, files: list[Path | None], *, both: bool) -> None:
    """Check the options before any work is done."""
    from m3agent.agent.report.write import check_target

    if both:
        raise UsageError("-o - and --json both write to standard output: give -o a file")
    named = [path for path in files if path is not None]
    if len({path.absolute() for path in named}) < len(named):
        raise UsageError("two of the options name the same file: give each option its own file")
    for path in named:
        check_target(path)


def _read(run: Path, *, allow_incomplete: bool) -> tuple[RunFolder, Tally, RunReport]:
    """Return a run with its results and its report. Raises EnvironmentFault: it has to be complete and is not."""
    from m3agent.evals.data.run_folder import RunFolder
    from m3agent.evals.report.counting import tally_of
    from m3agent.evals.report.model import report_of
    from m3agent.evals.report.wording import missing_of

    folder = RunFolder.read(run)
    tally = tally_of(folder)
    report = report_of(tally)
    if not report.complete and not allow_incomplete:
        raise EnvironmentFault(
            f"{folder.path}: {missing_of(report)}, so there is no score: continue with the same `m3agent eval "
            f"run ... -o {folder.path}` as before, or print the possible range with --allow-incomplete."
        )
    return folder, tally, report


def _write_official(run: RunFolder, tally: Tally, report: Path | None, predictions: Path | None) -> None:
    """Write SWE-bench's files, and print a note if they cannot represent the whole run."""
    if report is None and predictions is None:
        return
    from m3agent.agent.report.write import write_page
    from m3agent.evals.report import exports

    results = list(tally.results.values())
    if tally.config.attempts > 1:
        say(
            f"SWE-bench's files have one attempt per instance: they contain the first of {tally.config.attempts}"
        )
    if report is not None:
        write_page(report, exports.official_report(tally.config, results).encode())
        asked, not_asked = exports.asked_official(results)
        if not_asked:
            say(
                f"{report}: {asked} patches are judged by the official rules, and {not_asked} by "
                "m3agent's rules only"
            )
    if predictions is not None:
        patches = {
            result.instance_id: _patch(run, result.instance_id, result.attempt)
            for result in exports.submitted(results)
        }
        text, damaged = exports.predictions(tally.config, patches)
        write_page(predictions, text.encode())
        if damaged:
            say(
                f"{predictions}: the patches of {', '.join(damaged)} are not UTF-8; the invalid bytes were replaced"
            )


def _patch(run: RunFolder, ident: str, number: int) -> bytes:
    try:
        return run.patch(ident, number)
    except OSError as error:
        where = run.attempt(ident, number)
        raise UsageError(
            f"{where}: the patch cannot be read ({reason_of(error)}); remove the folder and run "
            "again to repeat the attempt."
        ) from None


def _show_page(
    run: RunFolder, report: RunReport, comparison: RunComparison | None, page: Path | None
) -> None:
    """Write the page and the sessions' pages; without a file, write only the page, to stdout."""
    from m3agent.agent.report.write import write_page, written
    from m3agent.evals.report.page import render, rows, write_sessions

    sessions = {} if page is None else write_sessions(run, report, page, say)
    made = render(report, rows(run, report, sessions), comparison).encode()
    if page is None:
        print_bytes(made)
        return
    write_page(page, made)
    linked = sum(bool(session.link) for session in sessions.values())
    say(written(page, made, f", and beside it the pages of {linked:,} sessions" if linked else ""))
