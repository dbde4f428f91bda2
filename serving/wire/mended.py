"""Read arguments that are almost a JSON object: what servers and models write in its place, if it has one meaning.

These forms are read: an object that is encoded once more, as a string; a Python literal; JSON with Python's constants,
with a comma before a closing bracket, or in a fenced block. Text that is cut is never completed.
"""

import ast
import json
import re
import warnings
from typing import Any, NoReturn

_MOST_CHARACTERS = 2_000_000
_MOST_ENCODINGS = 3
_FENCED = re.compile(r"\s*```(?:json|python)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)
_STRING = r'"(?:[^"\\]|\\.)*+"'
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_CONSTANT = re.compile(rf"({_STRING})|\b(True|False|None)\b", re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def strict_value(text: str) -> Any:
    """Read JSON; characters that JSON wants to be escaped may stand in strings as they are.

    Raises:
        ValueError: The text is not JSON, or has NaN or Infinity, which other parsers refuse in the history.
        RecursionError: The text is nested too deeply.
    """
    return json.loads(text, strict=False, parse_constant=refuse_constant)


def mended_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text means; None if it means none, or if more than one reading is possible."""
    if len(text) > _MOST_CHARACTERS:
        return None
    value: Any = text
    for _ in range(_MOST_ENCODINGS):
        if not isinstance(value, str):
            break
        value = _value(value)
    return value if isinstance(value, dict) else None


def _value(text: str) -> Any:
    fenced = _FENCED.fullmatch(text)
    text = (fenced[1] if fenced else text).strip()
    if not text.endswith(("}", '"', "'")):
        return None
    without_commas = _TRAILING_COMMA.sub(lambda match: match[1] or "", text)
    with_constants = _CONSTANT.sub(lambda match: match[1] or _CONSTANTS[match[2]], without_commas)
    for reading in dict.fromkeys((text, without_commas, with_constants)):
        try:
            return strict_value(reading)
        except (ValueError, RecursionError):
            continue
    return _literal(text)


def _literal(text: str) -> Any:
    """Return the value of a Python literal; None if it has one that JSON lacks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unknown escape, such as "\d", has no certain meaning
            value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, Warning):
        return None
    return json.loads(json.dumps(value)) if _has_only_names(value) else None


def _has_only_names(value: object) -> bool:
    """Return whether all keys are strings: others would become strings in JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_only_names(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_only_names, value))


def refuse_constant(constant: str) -> NoReturn:
    """Refuse NaN and Infinity. Raises ValueError."""
    raise ValueError(f"{constant} is not JSON")
