"""`m3agent fix --each`: fix several issues one after the other, each in a session of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from m3agent.agent.report.text import UNKNOWN
from m3agent.cli.common import faults, finish, say
from m3agent.util.append_only import AppendOnlyFile, fault
from m3agent.util.counted import counted
from m3agent.util.errors import Status, UsageError
from m3agent.util.json_lines import json_lines
from m3agent.util.sanitize import columns_of, print_note, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.ui.event_printer import Screen

INTERRUPTED = 130
Begin = Callable[[str], "tuple[Coroutine[None, None, FixResult], Screen]"]
"""Returns the fix of an issue and the screen that shows it."""
Kept = Callable[[Sequence[str]], Path]
"""Returns the file for the results of these issues."""


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


def fix_each(file: Path, begin: Begin, *, json_result: bool, kept: Kept) -> NoReturn:
    """Fix the issues that a file names, show a table of the results, and exit with the largest of the exit codes.

    An issue that cannot be fixed does not stop the others. Ctrl-C does. If the same issues were cut off before, those that came
    to their end are not fixed again.

    Args:
        file: Has an issue on each line, in any form that `fix` accepts; `-` is standard input.
        kept: Returns the file that keeps the results of these issues until all have one.
    """
    specs = _issues(file)
    path = kept(specs)
    with contextlib.closing(_results(path)) as results:
        ended = dict(json.loads(line) for _, line in json_lines(path.read_bytes()))
        if ended:
            say(f"{len(ended)} of {counted(len(specs), 'issue')} ended before and will not be fixed again")
        rows = list[tuple[str, ...]]()
        for number, spec in enumerate(specs, 1):
            if number in ended:
                rows.append(tuple(ended[number]))
                continue
            say(f"issue {number} of {len(specs)}: {printable_line(spec, 200)}")
            code, result = _fix(*begin(spec), json_result=json_result)
            status, session = (
                ("error", UNKNOWN) if result is None else (result.status.value, result.session.name)
            )
            rows.append((status, str(code), session, printable_line(spec, 200)))
            if code == INTERRUPTED:
                break
            if status != Status.ERROR:  # the next run may find what was missing, such as the model server
                results.append(json.dumps([number, rows[-1]]).encode(), sync=True)
        else:
            path.unlink()
    for line in wrapping(
        [("status", "exit", "session", "issue"), *rows], columns_of(sys.stderr)
    ).splitlines():
        print_note(line)
    raise typer.Exit(max(int(row[1]) for row in rows))


def kept_in(state: Path, repo: Path) -> Kept:
    """Return what names the file with the results of issues of a repository."""

    def path(specs: Sequence[str]) -> Path:
        name = hashlib.sha256(json.dumps([str(repo.resolve()), *specs]).encode()).hexdigest()[:32]
        return state / "each" / f"{name}.jsonl"

    return path


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
