"""Show a certificate to people, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from m3agent.agent.certificate.statement import Check, Runs, Statement, TestRuns
from m3agent.agent.verify.test_sets import TEST_SETS
from m3agent.sandbox.backends.kinds import shown_status
from m3agent.util.counted import counted
from m3agent.util.sanitize import printable_line
from m3agent.util.table import wrapped

MOST_LISTED = 30
"""Most entries of a list that are shown."""
MOST = 300
"""Most characters of an entry. Names and texts come from the repository and the patch."""
WIDTH = 13
"""Characters of the first column."""
Row = tuple[str, str]
"""A name and a text."""


def table(statement: Statement, width: int = 0, sign: str = "", accuracy: str = "") -> str:
    """Return the certificate for people: the verdict, what was tested, and the tests that decide.

    Args:
        width: Columns of the terminal; 0 for no terminal.
    """
    said, tests = statement.predicate, statement.predicate.tests
    files = counted(len(said.patch.paths), "file")
    rows = [
        (f"{sign}{shown_status(said.verdict, said.environment.sandbox)}", said.reason),
        ("patch", f"{files} on {said.base.commit[:12]}, sha256 {said.patch.sha256[:12]}"),
        *_shown(said.patch.paths),
    ]
    sets = {each.label: getattr(tests, each.certificate) for each in TEST_SETS}
    with_runs = [each.label for each in TEST_SETS if each.has_runs]
    for label in with_runs:
        rows += _listed(label, list(map(runs_of, sets.pop(label))))
    if said.put_back:
        files, them = counted(len(said.put_back), "file"), "it" if len(said.put_back) == 1 else "them"
        rows.append(("put back", f"{files}: the tests ran without the patch's changes to {them}"))
        rows += _shown(said.put_back)
    texts: dict[str, Sequence[str]] = {
        **sets,
        "tampering": said.tampering,
        "review": [f"{line.path}:{line.line} {line.what}" for line in said.review],
        "checks": list(chain.from_iterable(map(_of_check, said.checks))),
    }
    for name, listed in texts.items():
        rows += _listed(name, listed) if listed else []
    if accuracy:
        rows.append(("accuracy", accuracy))
    return in_rows(rows, width)


def _of_check(check: Check) -> list[str]:
    return [f"{check.command}: {text}" for text in check.new or [check.silent or "no new problem"]]


def _listed(name: str, entries: Sequence[str]) -> Iterator[Row]:
    yield name, str(len(entries))
    yield from _shown(entries)


def _shown(entries: Sequence[str]) -> Iterator[Row]:
    yield from (("", entry) for entry in entries[:MOST_LISTED])
    if len(entries) > MOST_LISTED:
        yield "", f"{len(entries) - MOST_LISTED} more"


def in_rows(rows: Sequence[Row], width: int) -> str:
    """Return rows as a table for people. On a terminal of `width` columns, if it is not 0, texts wrap at words."""
    lines: list[str] = []
    for name, text in rows:
        first, *below = wrapped(printable_line(text, MOST), width - WIDTH - 2)
        lines += [f"{name:<{WIDTH}}  {first}", *(f"{'':<{WIDTH}}  {line}" for line in below)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def runs_of(test: TestRuns) -> str:
    """Return a test with its runs, such as `t (red in 3 of 3 runs without the patch, green in 3 of 3 runs with it)`."""
    return f"{test.id} ({_runs(test.without_patch)} without the patch, {_runs(test.with_patch)} with it)"


def _runs(runs: Runs) -> str:
    """Return the runs of one side, such as `green in 5 of 5 runs`."""
    total = runs.green + runs.red
    if not total:
        return "no result"
    colour, number = ("red", runs.red) if runs.red >= runs.green else ("green", runs.green)
    return f"{colour} in {number} of {counted(total, 'run')}"
