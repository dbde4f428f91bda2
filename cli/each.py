"""`m3agent fix --each`: fix several issues one after the other, each in a session of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from m3agent.agent.report.text import UNKNOWN
from m3agent.cli.common import faults, finish, say
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import columns_of, print_note, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.ui.event_printer import Screen

INTERRUPTED = 130
Begin = Callable[[str], "tuple[Coroutine[None, None, FixResult], Screen]"]
"""Returns the fix of an issue and the screen that shows it."""


def check(file: Path | None, issue: str | None, for_one: Mapping[str, bool]) -> None:
    """Refuse a command line that names no issue or two sources of issues, or has options for one issue only.

    Raises:
        UsageError: With the reason.
    """
    if file is None and issue is None:
        raise UsageError("missing argument 'ISSUE'; see 'm3agent fix --help'.")
    if file is None:
        return
    if issue is not None:
        raise UsageError("--each names the issues: leave ISSUE away")
    if wrong := [name for name, is_given in for_one.items() if is_given]:
        raise UsageError(f"{wrong[0]} is for one issue: leave it or --each away")


def fix_each(file: Path, begin: Begin, *, json_result: bool) -> NoReturn:
    """Fix the issues that a file names, show a table of the results, and exit with the largest of the exit codes.

    An issue that cannot be fixed does not stop the others. Ctrl-C does.

    Args:
        file: Has an issue on each line, in any form that `fix` accepts; `-` is standard input.
    """
    specs = _issues(file)
    rows = [("status", "exit", "session", "issue")]
    codes = []
    for number, spec in enumerate(specs, 1):
        say(f"issue {number} of {len(specs)}: {printable_line(spec, 200)}")
        code, result = _fix(*begin(spec), json_result=json_result)
        status, session = ("error", UNKNOWN) if result is None else (result.status.value, result.session.name)
        rows.append((status, str(code), session, printable_line(spec, 200)))
        codes.append(code)
        if code == INTERRUPTED:
            break
    for line in wrapping(rows, columns_of(sys.stderr)).splitlines():
        print_note(line)
    raise typer.Exit(max(codes))


def _fix(
    fixing: Coroutine[None, None, FixResult], screen: Screen, *, json_result: bool
) -> tuple[int, FixResult | None]:
    """Carry out one fix; return its exit code, and its result unless it could not begin."""
    results: list[FixResult] = []

    async def kept() -> FixResult:
        results.append(await fixing)
        return results[0]

    try:
        with faults():
            finish(kept(), screen, json_result=json_result)
    except typer.Exit as ended:
        return ended.exit_code, results[0] if results else None


def _issues(file: Path) -> list[str]:
    try:
        text = sys.stdin.read() if file == Path("-") else file.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--each {file} cannot be read: {reason}") from None
    specs = [line.strip() for line in text.splitlines() if line.strip()]
    if not specs:
        raise UsageError(f"--each {file} names no issue: write one on each line")
    return specs
