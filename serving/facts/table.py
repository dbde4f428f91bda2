"""Read the tables of facts: GPUs, known issues, recipes, faults. They are TOML files beside this one, which anyone can correct.

The code only evaluates the rows. Each file explains its fields in its first lines.
"""

from __future__ import annotations

import pkgutil
import string
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cache, partial
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from m3agent.serving.errors import TableError

TABLES = (
    "engines",
    "architectures",
    "gpus",
    "versions",
    "issues",
    "recipes",
    "changes",
    "signs",
    "faults",
    "ends",
    "models",
    "panels",
    "remarks",
)
"""Names of the tables. A row of `gpus` begins with `[[gpu]]`, and so on."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row has."""

    source: str
    """Where the row comes from: a document, a file of a program, an issue, a measurement."""
    date: date
    """When the row was written, or last compared with its source."""


SomeRow = TypeVar("SomeRow", bound=Row)


def rows(kind: type[SomeRow], table: str) -> tuple[SomeRow, ...]:
    """Return the rows of a table.

    Args:
        kind: Class of the rows; its fields and their types are the schema.

    Raises:
        TableError: The file cannot be read, is not TOML, or has a malformed row.
    """
    return parse_rows(kind, table, raw_text(table))


def raw_text(table: str) -> str:
    """Return the text of a table. Raises TableError: the file cannot be read."""
    try:
        return (pkgutil.get_data("m3agent.serving.facts", f"{table}.toml") or b"").decode()
    except (OSError, ValueError) as error:
        raise _error(table, str(error)) from None


def parse_rows(kind: type[SomeRow], table: str, text: str) -> tuple[SomeRow, ...]:
    """Parse the text of a table. Raises TableError: the text is not TOML, or has a malformed row."""
    from pydantic import TypeAdapter, ValidationError

    adapter, known = TypeAdapter(kind), [field.name for field in fields(kind)]
    parsed = []
    for number, row in enumerate(raw_rows(table, text), start=1):
        where = f"row {number} ({next(iter(row.values()), 'empty')!s:.60})"
        if strange := [name for name in row if name not in known]:
            raise _error(table, f"{where} has a field {strange[0]}; the fields are {', '.join(known)}")
        try:
            parsed.append(adapter.validate_python(row))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "one of the fields"
            raise _error(
                table, f"{where}, field {place}: {first['msg'].removeprefix('Value error, ')}"
            ) from None
    return tuple(parsed)


def raw_rows(table: str, text: str) -> list[dict[str, Any]]:
    """Parse the text of a table as TOML.

    Raises:
        TableError: The text is not TOML, or has something else than rows.
    """
    kind = table.removesuffix("s")
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise _error(table, f"it is not TOML ({error})") from None
    entries = data.get(kind)
    if set(data) != {kind} or not isinstance(entries, list):
        raise _error(table, f"every row begins with [[{kind}]], and nothing stands outside the rows")
    return entries


@dataclass(frozen=True)
class Fact:
    """A row as a list of all tables shows it."""

    table: str
    row: str
    """The row's name, or the beginning of what it says."""
    date: str
    days: int
    source: str


def facts(today: date) -> list[Fact]:
    """Return the rows of all tables, in the order of `TABLES`. Raises TableError: a table cannot be read."""
    listed = []
    for table in TABLES:
        for number, row in enumerate(raw_rows(table, raw_text(table)), start=1):
            written, name = row.get("date"), next((str(row[key]) for key in _NAMING if key in row), "")
            if not isinstance(written, date):
                raise _error(
                    table, f"row {number} ({name:.60}), field date: it is not a date such as 2026-11-29"
                )
            if table in ("changes", "versions"):  # several engines have rows of the same name
                name = f"{row['when'][0].get('engine')}: {name}"
            if table == "remarks":
                name = f"{name}: {row.get('said', '')}"
            short = name if len(name) <= _NAME_CELLS else f"{name[: _NAME_CELLS - 1]}…"
            listed.append(
                Fact(table, short, str(written), (today - written).days, str(row.get("source", "")))
            )
    return listed


_NAMING = ("name", "what", "said", "versions", "pattern")
"""Fields that name a row for people, the first that it has."""
_NAME_CELLS = 60


def checked(template: str, values: Collection[str]) -> str:
    """Return a format string that names nothing but these values and their fields.

    Raises:
        ValueError: It names something else.
    """
    for _, name, _, _ in string.Formatter().parse(template):
        if name is not None and name.partition(".")[0] not in values:
            raise ValueError(f"{{{name}}} is no value; the values are {', '.join(values)}")
    return template


def filled(table: str, template: str, values: Mapping[str, object]) -> str:
    """Fill in a table's format string. Raises TableError if it names a field that a value does not have."""
    try:
        return template.format_map(values)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _error(table, f"{template[:60]!r} cannot be filled in: {error}") from None


def _error(table: str, said: str) -> TableError:
    return TableError(
        f"serving/facts/{table}.toml: {said}; correct it there, or install m3agent again to get the original"
    )


Test = Callable[[Any], bool]

_TESTS: Mapping[str, Callable[[Any], Test]] = {
    "not": lambda wanted: lambda value: value not in (wanted if isinstance(wanted, list) else [wanted]),
    "over": lambda wanted: lambda value: value != "" and value > wanted,
    "least": lambda wanted: lambda value: value != "" and value >= wanted,
    "most": lambda wanted: lambda value: value != "" and value <= wanted,
    "has": lambda wanted: lambda value: wanted in value,
}


class Condition:
    """A group of settings: for each, its value, a list of possible values, or a test such as `{ over = 4 }`.

    A setting that is None counts as an empty text. `versions` is a range of the setting `version`, such as `>=0.25,<0.27.1`,
    and `env` has conditions on variables. Planning evaluates many conditions, so the tests are made once.

    Raises:
        ValueError: It names a setting, a test or a version that does not exist.
    """

    def __init__(self, wanted: Mapping[str, Any], settings: Collection[str]) -> None:
        self.tests: list[tuple[str, Test]] = []
        for name, one in wanted.items():
            if name == "versions":
                _bounds(str(one))
                self.tests.append(("version", partial(within, versions=one)))
                continue
            if name not in settings:
                raise ValueError(f"there is no setting {name}; the settings are {', '.join(settings)}")
            self.tests.append((name, _variables(one) if name == "env" else _test(name, one)))

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Return whether all settings have a wanted value."""
        for name, fits in self.tests:
            value = settings[name]
            if not fits("" if value is None else value):
                return False
        return True


def _test(name: str, wanted: Any) -> Test:
    if isinstance(wanted, list):
        return tuple(wanted).__contains__
    if not isinstance(wanted, dict):
        return lambda value: bool(value == wanted)
    if strange := set(wanted) - set(_TESTS):
        raise ValueError(f"there is no test {strange.pop()} for {name}; the tests are {', '.join(_TESTS)}")
    tests = [_TESTS[word](limit) for word, limit in wanted.items()]
    return tests[0] if len(tests) == 1 else lambda value: all(fits(value) for fits in tests)


def _variables(wanted: Mapping[str, Any]) -> Test:
    tests = {name: _test(name, one) for name, one in wanted.items()}
    return lambda env: all(fits(env.get(name, "")) for name, fits in tests.items())


def within(version: str | None, versions: str) -> bool:
    """Return whether a version is known and lies within a range, such as `>=0.25,<0.27.1`.

    A pre-release comes before its release.
    """
    if not version:
        return False
    known = Version(version)
    return all(known >= bound if least else known < bound for least, bound in _bounds(versions))


@cache
def _bounds(versions: str) -> list[tuple[bool, Version]]:
    """Parse a range of versions: whether each bound is the least one (`>=`) or lies above (`<`), and the bound."""
    bounds = []
    for part in versions.split(","):
        sign = ">=" if part.startswith(">=") else "<"
        try:
            bounds.append((sign == ">=", Version(part.removeprefix(sign) if part.startswith(sign) else "")))
        except InvalidVersion:
            raise ValueError(f"{versions!r} is not a range of versions such as >=0.25,<0.27.1") from None
    return bounds
