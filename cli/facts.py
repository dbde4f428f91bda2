"""`m3agent plan --facts`: check the tables of facts, and print their rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

from m3agent.cli.common import print_bytes, print_json
from m3agent.serving.facts.table import TABLES, Row, raw_rows, raw_text, rows, unknown
from m3agent.util.counted import counted
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import columns_of
from m3agent.util.table import wrapped

IN_PIPES = 80
"""Width in cells for a pipe or a file."""
_NAMING = ("name", "what", "said", "versions", "pattern")
"""Fields that name a row for people, the first that it has."""
_NAME_CELLS = 60
_LABEL = 18  # cells of a field's name


@cache
def kinds() -> Mapping[str, type[Row]]:
    """Return the class of each table's rows, in the order of `TABLES`. Raises TableError: a row is malformed, or rows contradict."""
    from m3agent.serving.check.scrape import PanelRow
    from m3agent.serving.client.models import ModelRow
    from m3agent.serving.launch.engine_faults import EndRow, FaultRow
    from m3agent.serving.launch.load_signs import Sign
    from m3agent.serving.plan.engines import EngineRow
    from m3agent.serving.plan.gpus import ArchitectureRow, Gpu
    from m3agent.serving.plan.known_issues import KnownIssue, VersionRow, check_versions
    from m3agent.serving.plan.overlay import ChangeRow
    from m3agent.serving.plan.recipe import Recipe
    from m3agent.serving.plan.remarks import Remark

    check_versions()
    first = (EngineRow, ArchitectureRow, Gpu, VersionRow, KnownIssue, Recipe, ChangeRow)
    return dict(zip(TABLES, (*first, Sign, FaultRow, EndRow, ModelRow, PanelRow, Remark), strict=True))


@dataclass(frozen=True)
class Fact:
    """A row of a table, as it is listed."""

    table: str
    row: str
    """The row's name, or the beginning of what it says."""
    date: str
    days: int
    source: str
    values: Mapping[str, Any]
    """All fields but date and source, as they stand in the file."""


def print_facts(wanted: str | None, *, as_json: bool) -> None:
    """Check all tables, and print the rows of one, or those in which a word stands; None prints all.

    Raises:
        TableError: A table is malformed.
        UsageError: There is neither such a table nor such a row.
    """
    listed = list(facts(datetime.now(UTC).date()))
    if wanted is not None:
        listed = _with(wanted, listed)
    if as_json:
        print_json([json.loads(json.dumps(asdict(fact), default=str)) for fact in listed])
        return
    width = columns_of(sys.stdout) or IN_PIPES
    print_bytes("\n".join(_shown(fact, width) for fact in listed).encode())


def _with(wanted: str, listed: Sequence[Fact]) -> list[Fact]:
    """Return the rows of a table, or those in which a word stands. Raises UsageError: there are none."""
    in_table = [fact for fact in listed if fact.table == wanted]
    shown = in_table or [fact for fact in listed if wanted.lower() in _text(asdict(fact)).lower()]
    if not shown:
        raise UsageError(f"no row says {wanted}, and {unknown('table', wanted, TABLES)}")
    return shown


def facts(today: date) -> Iterator[Fact]:
    """Yield the rows of all tables. Raises TableError: a table is malformed."""
    for table, kind in kinds().items():
        parsed = rows(kind, table)
        for row, entry in zip(parsed, raw_rows(table, raw_text(table)), strict=True):
            values = {name: value for name, value in entry.items() if name not in ("source", "date")}
            yield Fact(table, _name(table, entry), str(row.date), (today - row.date).days, row.source, values)


def _name(table: str, entry: Mapping[str, Any]) -> str:
    name = next(str(entry[key]) for key in _NAMING if key in entry)
    if table in ("changes", "versions"):  # several engines have rows of the same name
        name = f"{entry['when'][0].get('engine')}: {name}"
    if table == "remarks":
        name = f"{name}: {entry['said']}"
    name = " ".join(name.split())
    return name if len(name) <= _NAME_CELLS else f"{name[: _NAME_CELLS - 1]}…"


def _shown(fact: Fact, width: int) -> str:
    """Return a row as lines: its name, then each field with its value."""
    age = "today" if fact.days == 0 else f"{counted(fact.days, 'day')} ago"
    fields = {**fact.values, "source": fact.source, "date": f"{fact.date} ({age})"}
    lines = [f"{fact.table}: {fact.row}"]
    for name, value in fields.items():
        first, *below = wrapped(_text(value), width - _LABEL)
        lines += [f"  {name:<{_LABEL - 2}}{first}", *(" " * _LABEL + line for line in below)]
    return "".join(f"{line}\n" for line in lines)


def _text(value: Any, *, inner: bool = False) -> str:
    """Return a value for people: on one line, a list with commas, a group of settings in braces as in the file."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            pairs = ", ".join(f"{name} = {_text(part, inner=True)}" for name, part in value.items())
            return f"{{ {pairs} }}" if inner else pairs
        case list():
            parts = ", ".join(_text(part, inner=True) for part in value)
            return f"[{parts}]" if inner else parts
    words = " ".join(str(value).split())
    return words if words or not inner else '""'
