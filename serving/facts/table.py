"""Read the tables of facts: GPUs, known issues, recipes, faults. They are TOML files beside this one, which anyone can correct.

The code only evaluates the rows. Each file explains its fields in its first lines.
"""

from __future__ import annotations

import difflib
import json
import math
import pkgutil
import re
import string
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from m3agent.serving.errors import TableError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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
    needed: ClassVar[Sequence[str]] = ()
    """Names of the rows that the program asks for."""

    @property
    def names(self) -> tuple[str, ...]:
        """What only this row of its table may be called; empty if rows have no names."""
        name = getattr(self, "name", "")
        return (name,) if name else ()

    def check(self) -> None:
        """Compare the fields with each other. Raises ValueError, which begins with the field's name: they contradict."""


SomeRow = TypeVar("SomeRow", bound=Row)
Number = TypeVar("Number", int, float)


def rows(kind: type[SomeRow], table: str) -> tuple[SomeRow, ...]:
    """Return the rows of a table.

    Args:
        kind: Class of the rows; its fields and their types are the schema.

    Raises:
        TableError: The file cannot be read, is not TOML, has a malformed row, or lacks one that is needed.
    """
    parsed = parse_rows(kind, table, raw_text(table))
    names = {name for row in parsed for name in row.names}
    for name in kind.needed:
        if name not in names:
            raise table_error(table, f"there is no row {name}, which m3agent needs")
    return parsed


def raw_text(table: str) -> str:
    """Return the text of a table. Raises TableError: the file cannot be read."""
    try:
        return (pkgutil.get_data("m3agent.serving.facts", f"{table}.toml") or b"").decode()
    except (OSError, ValueError) as error:
        raise table_error(table, str(error)) from None


def parse_rows(kind: type[SomeRow], table: str, text: str) -> tuple[SomeRow, ...]:
    """Parse the text of a table. Raises TableError: the text is not TOML, or has a malformed row."""
    parsed: list[SomeRow] = []
    owners: dict[str, int] = {}
    for line, entry in zip(_lines(table, text), raw_rows(table, text), strict=True):
        name = next((value for value in entry.values() if isinstance(value, str)), "empty")
        where = f"line {line} ({name[:60]})"
        try:
            _check_entry(entry, kind)
            row = read(kind, entry)
            row.check()
            _check_names(row, owners)
        except ValueError as error:
            raise table_error(table, f"{where}, field {error}") from None
        owners |= dict.fromkeys(row.names, line)
        parsed.append(row)
    return tuple(parsed)


def _check_entry(entry: Mapping[str, Any], kind: type[Row]) -> None:
    """Check what holds for every field. Raises ValueError, which begins with the field's name."""
    known = {field.name: field.default is field.default_factory is MISSING for field in fields(kind)}
    for name, value in entry.items():
        if name not in known:
            raise ValueError(f"{name}: {unknown('field', name, known)}")
        for number in _numbers(value):
            if not 0 <= number < math.inf:
                raise ValueError(f"{name}: {number} is no number of a table; give 0 or more")
    for name, is_needed in known.items():
        if is_needed and (not str(entry.get(name, "")).strip() or entry[name] == []):
            lacking = "empty" if name in entry else "missing"
            raise ValueError(f"{name}: it is {lacking}; the file's first lines explain it")


def _check_names(row: Row, owners: Mapping[str, int]) -> None:
    """Check that no other row has a name of this one. Raises ValueError, which begins with the field's name."""
    for name in row.names:
        if name in owners:
            field = "name" if name == row.names[0] else "aliases"
            raise ValueError(f"{field}: line {owners[name]} has {name} too; rename or remove one")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)


def read(kind: Any, value: object) -> Any:
    """Return a value of TOML as a type wants it. Raises ValueError, which begins with the place within the value."""
    from pydantic import ValidationError

    try:  # as JSON, because there a list may be a tuple, but a text is never a number
        return _adapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ", ".join(f"entry {part + 1}" if isinstance(part, int) else part for part in first["loc"])
        raise ValueError(f"{place}: {_plain(first)}" if place else _plain(first)) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


_PLAIN = {
    "string_type": "{} is no text; write it in quotes",
    "bool_type": "{} is neither true nor false; write one of them, without quotes",
    "float_type": "{} is no number; write digits without quotes, such as 139.8",
    "int_type": "{} is no whole number; write digits without quotes, such as 8",
    "int_from_float": "{} is no whole number; write it without a point, such as 8",
    "tuple_type": "{} is no list; write it in brackets",
    "frozen_set_type": "{} is no list; write it in brackets",
    "dict_type": '{} is no table; write it in braces, such as {{ name = "value" }}',
}
"""What is wrong with a value, by pydantic's names of errors."""


def _plain(error: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, and what is allowed."""
    kind, value = error["type"], json.dumps(error["input"], default=str, ensure_ascii=False)[:60]
    if kind in ("enum", "literal_error"):
        allowed = re.findall("'([^']*)'", str(error.get("ctx", {}).get("expected")))
        return unknown("value", str(error["input"]), allowed)
    if kind.startswith("date"):
        return f"{value} is no date; write it like 2026-11-29"
    return _PLAIN[kind].format(value) if kind in _PLAIN else error["msg"].removeprefix("Value error, ")


def plausible(least: float, most: float, what: str) -> Callable[[Number], Number]:
    """Return a check of a field's number: outside these bounds it has another unit, or is a typing error."""

    def check(value: Number) -> Number:
        if not least <= value <= most:
            raise ValueError(f"{value} is not within {least} to {most}: give {what}")
        return value

    return check


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Say that there is no setting, table or the like of this name, which one may be meant, and which there are."""
    spelt = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.6)
    meant = f"did you mean {spelt[near[0]]}? The" if near else "the"
    return f"there is no {what} {name or '(empty)'}; {meant} {what}s are {', '.join(filter(None, known))}"


def raw_rows(table: str, text: str) -> list[dict[str, Any]]:
    """Parse the text of a table as TOML.

    Raises:
        TableError: The text is not TOML, or has something else than rows.
    """
    kind = table.removesuffix("s")
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise table_error(table, _unreadable(table, text, str(error))) from None
    entries = data.get(kind)
    if set(data) != {kind} or not isinstance(entries, list) or len(entries) != len(_lines(table, text)):
        raise table_error(table, f"every row begins with [[{kind}]], and nothing stands outside the rows")
    return entries


def _lines(table: str, text: str) -> list[int]:
    """Return the number of the line with which each row begins."""
    head = re.compile(rf"\s*\[\[\s*{table.removesuffix('s')}\s*\]\]")
    return [number for number, line in enumerate(text.splitlines(), start=1) if head.match(line)]


_SPELLINGS = (
    (r"[-+]?\d+,\d+", "write a number with a point, such as 4.84"),
    (r"\d+-\d+-\d+|\d+\.\d+\.\d{2,}", "write a day that exists as YYYY-MM-DD, such as 2026-11-29"),
    (r"(?i)(yes|no|on|off|true|false)\b", "write true or false, in small letters and without quotes"),
    (r"[$€£]|[-+]?[\d.]+", "write only the number, with digits on both sides of its point, such as 4.84"),
    (r"\[", "write a list in brackets, such as [4, 8]"),
    (r".*", 'write a text in straight quotes at both ends, such as "H200"'),
)
"""How values look that TOML refuses, the first that fits, and what to write."""


def _unreadable(table: str, text: str, error: str) -> str:
    """Say which line of a table TOML refuses, in which row it stands, and what to write."""
    place = re.search(r" \(at line (\d+)", error)
    if place is None:
        return "a text or a list is not closed at its end: TOML reads to the end of the file"
    lines = text.splitlines()[: int(place[1])]
    if error.startswith("Unclosed array"):  # TOML finds the next line
        lines.pop()
    where = f"line {len(lines)}{_row_at(lines)}"
    return f"{where}: TOML cannot read {lines[-1].strip()[:80]!r}; {_remedy(lines[-1], error)}"


def _row_at(lines: Sequence[str]) -> str:
    """Return the name of the row that the last of these lines belongs to, in brackets; empty without one."""
    names = [line.partition("=")[2].strip(" \"'") for line in lines if line.startswith(("name =", "[["))]
    return f" ({names[-1][:60]})" if names and names[-1] else ""


def _remedy(line: str, error: str) -> str:
    """Return what to write instead of a line that TOML refuses."""
    if error.startswith("Cannot overwrite"):
        return "the row has this field twice; remove one line"
    value = re.match(r"\s*[\w.-]+\s*=\s*(.*)", line)
    if value is None:
        return "write a field as: name = value"
    return next(spelling for pattern, spelling in _SPELLINGS if re.match(pattern, value[1]))


def checked(template: str, values: Collection[str], kinds: Mapping[str, Any] | None = None) -> str:
    """Return a format string that names nothing but these values and their fields.

    Args:
        kinds: The classes of values that have fields.

    Raises:
        ValueError: It names something else.
    """
    for _, name, _, _ in string.Formatter().parse(template):
        if name is not None and name.partition(".")[0] not in values:
            raise ValueError(f"{{{name}}} is no value; the values are {', '.join(values)}")
        _check_field(name or "", kinds or {})
    return template


def _check_field(name: str, kinds: Mapping[str, Any]) -> None:
    """Check that a value such as `wish` has the field that `wish.context` names. Raises ValueError: it has none."""
    value, _, inner = name.partition(".")
    if inner and value in kinds:
        has = {field.name for field in fields(kinds[value])} | set(dir(kinds[value]))
        if inner.partition(".")[0] not in has:
            public = sorted(f"{value}.{field}" for field in has if field[0] != "_")
            raise ValueError(unknown("field", f"{{{name}}}", public))


def filled(table: str, template: str, values: Mapping[str, object]) -> str:
    """Fill in a table's format string. Raises TableError if it names a field that a value does not have."""
    try:
        return template.format_map(values)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise table_error(table, f"{template[:60]!r} cannot be filled in: {error}") from None


def table_error(table: str, said: str) -> TableError:
    """Return the error about a table of facts, with the remedy."""
    return file_error(f"serving/facts/{table}.toml", said)


def file_error(name: str, said: str) -> TableError:
    """Return the error about a file of m3agent that a person may have changed, with the remedy."""
    in_checkout = Path(__file__).resolve().parents[2].joinpath(".git").exists()
    original = f"drop your changes with `git checkout -- {name}`" if in_checkout else "install m3agent again"
    return TableError(f"{name}: {said}; correct it there, or {original} to get the original")


Test = Callable[[Any], bool]
Settings = Mapping[str, Any]
"""The settings that conditions may name, with the types of their values."""

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
        ValueError: It names a setting, a value, a test or a version that does not exist, or nothing can meet it.
    """

    def __init__(self, wanted: Mapping[str, Any], settings: Settings) -> None:
        self.tests: list[tuple[str, Test]] = []
        self.versions = str(wanted.get("versions", ""))
        for name, one in wanted.items():
            if name == "versions":
                _bounds(str(one))
                self.tests.append(("version", partial(within, versions=one)))
                continue
            if name not in settings:
                raise ValueError(unknown("setting", name, settings))
            self.tests.append((name, _variables(one) if name == "env" else _test(name, one, settings[name])))

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Return whether all settings have a wanted value."""
        for name, fits in self.tests:
            value = settings[name]
            if not fits("" if value is None else value):
                return False
        return True


def _test(name: str, wanted: Any, kind: Any = str) -> Test:
    tests = wanted if isinstance(wanted, dict) else {"is": wanted}
    for word, limit in tests.items():
        if word not in ("is", *_TESTS):
            raise ValueError(f"{name}: {unknown('test', word, list(_TESTS))}")
        _check_values(name, limit, str if word == "has" else kind)
    if "is" in tests:
        return tuple(wanted).__contains__ if isinstance(wanted, list) else lambda value: bool(value == wanted)
    _check_limits(name, tests)
    made = [_TESTS[word](limit) for word, limit in tests.items()]
    return made[0] if len(made) == 1 else lambda value: all(fits(value) for fits in made)


def _check_limits(name: str, tests: Mapping[str, Any]) -> None:
    """Check that a value can be at least the lower limit and at most the upper one."""
    least = max((tests[word] for word in ("over", "least") if word in tests), default=None)
    if least is not None and tests.get("most", least) < least:
        raise ValueError(f"{name}: the range is upside down, nothing is from {least} to {tests['most']}")


def _check_values(name: str, wanted: object, kind: Any) -> None:
    """Check that a setting can have a value, or each of a list; an empty text means that it was not given."""
    for value in wanted if isinstance(wanted, list) else [wanted]:
        try:
            if value != "":
                read(kind, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


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
    _check_order(
        versions, [bound for least, bound in bounds if least], [bound for least, bound in bounds if not least]
    )
    return bounds


def version_range(versions: str) -> str:
    """Return a range of versions such as `>=0.25,<0.27.1`; the text may be empty.

    Raises:
        ValueError: The text is not a range, or its lower bound is not below the upper one.
    """
    if versions:
        _bounds(versions)
    return versions


def pip_versions(versions: str) -> str:
    """Return a range of versions as pip writes it, such as `>=0.24,!=0.25.*`.

    Raises:
        ValueError: The text is not a range, or its lower bound is not below the upper one.
    """
    try:
        parts = list(SpecifierSet(versions))
    except InvalidSpecifier:
        parts = []
    if not parts:
        raise ValueError(f"{versions!r} is not a range of versions such as >=0.24,!=0.25.*")
    by_sign = {
        sign: [Version(part.version) for part in parts if part.operator.startswith(sign)] for sign in "<>"
    }
    _check_order(versions, by_sign[">"], by_sign["<"])
    return versions


def _check_order(versions: str, least: list[Version], most: list[Version]) -> None:
    if least and most and max(least) >= min(most):
        raise ValueError(
            f"the range {versions} is upside down: no version is from {max(least)} to {min(most)}"
        )
