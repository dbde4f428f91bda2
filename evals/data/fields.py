"""Read one row of a data file field by field, with type checks.

Errors name the file, the row and the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from m3agent.evals.data.instance import DataError
from m3agent.util.sanitize import printable_line


@dataclass(frozen=True)
class Fields:
    """The fields of a row, or of an object in one.

    A field that is null counts as absent. Texts are kept byte for byte: the line ends of a patch belong to
    it.
    """

    values: Mapping[str, Any]
    where: str
    """Start of each error message, such as `rows.jsonl row 3`."""
    prefix: str = ""
    """Path of the object in the row, such as `environment.`; empty for the row itself."""

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def wrong(self, name: str, problem: str) -> DataError:
        """Return the error for a field."""
        return DataError(f"{self.where}, field {self.prefix}{name}: {problem}")

    def malformed(self, name: str, text: str, problem: str) -> DataError:
        """Return the error for a field with a text of another form; `problem` follows the text's beginning."""
        return self.wrong(name, f"{printable_line(text, 60)!r} {problem}")

    def text(self, name: str, *, empty: bool = True) -> str:
        """Return a required text. With `empty=False`, a text without visible characters is an error."""
        if name not in self.values:
            raise self.wrong(name, "it is missing; a string is expected")
        value = self._text(name, self.values[name], "a string")
        if not empty and not value.strip():
            raise self.wrong(name, "it is empty; a string is expected")
        return value

    def optional(self, name: str) -> str | None:
        """Return a text; None if the field is absent."""
        return self.text(name) if name in self else None

    def first(self, *names: str) -> str | None:
        """Return the first of these texts that is present and not empty; None if there is none."""
        return next((value for name in names if (value := self.optional(name))), None)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty if the field is absent. A single text counts as a list of one."""
        if name not in self:
            return ()
        value = self.values[name]
        return tuple(
            self._text(name, item, "a list of strings")
            for item in (value if isinstance(value, list) else [value])
        )

    def tests(self, name: str) -> tuple[str, ...]:
        """Return required test ids. The field is a list of texts, or such a list as JSON text."""
        if name not in self.values:
            raise self.wrong(name, "it is missing; a list of test ids is expected")
        value = self.values[name]
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise self.malformed(name, value, "is not a JSON list of test ids") from None
        if not isinstance(value, list):
            raise self.wrong(name, f"a list of test ids is expected, not {_kind(value)}")
        return tuple(self._text(name, item, "a list of test ids") for item in value)

    def variables(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts; empty if the field is absent."""
        if name not in self:
            return {}
        value = self.values[name]
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"an object of strings is expected, not {_kind(value)}")
        return {key: self._text(f"{name}.{key}", item, "a string") for key, item in value.items()}

    def date(self, name: str) -> datetime | None:
        """Return an ISO 8601 time, in UTC unless it has an offset; None if the field is absent."""
        text = self.optional(name)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.malformed(name, text, "is not a date like 2020-06-29T21:51:15Z") from None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def inner(self, name: str) -> Fields:
        """Return the fields of a nested object; an object without fields if it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, f"an object is expected, not {_kind(value)}")
        return Fields(value or {}, self.where, f"{self.prefix}{name}.")

    def _text(self, name: str, value: object, expected: str) -> str:
        if not isinstance(value, str):
            raise self.wrong(name, f"{expected} is expected, not {_kind(value)}")
        if "\0" in value:
            raise self.wrong(name, "it has a NUL character, which neither files nor commands may contain")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, "it has half a surrogate pair, which is not a character") from None
        return value


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
