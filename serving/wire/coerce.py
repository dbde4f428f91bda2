"""Convert raw text to JSON values: by a JSON schema, as M3's wire format does not mark numbers and strings, or as almost JSON."""

import ast
import html
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

Schema = Mapping[str, Any]

# Python's default limit for decimal integers (sys.get_int_max_str_digits).
_MAX_INTEGER_DIGITS = 4300
# Enough for any hand-written schema; stops a $ref that points at itself.
_MAX_SCHEMA_DEPTH = 12

_INTEGER = re.compile(r"([+-]?[0-9]+)(?:\.0+)?")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Type names that tool authors use although JSON Schema does not define them.
_TYPE_ALIASES = {
    "str": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_KEYWORDS = {
    "items": "array",
    "prefixItems": "array",
    "properties": "object",
    "additionalProperties": "object",
}
"""The types that a schema without a type means, by its keywords."""
# Order in which the types of a union are tried. If none fits, the value is the text itself.
_ORDER = ("null", "boolean", "integer", "number", "array", "object")
_NO_MATCH = object()

_MOST_CHARACTERS = 2_000_000
_MOST_ENCODINGS = 3
_FENCED = re.compile(r"\s*```(?:json|python)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)
_STRING = r'"(?:[^"\\]|\\.)*+"'
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_CONSTANT = re.compile(rf"({_STRING})|\b(True|False|None)\b", re.DOTALL)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class Coercer:
    """Convert text by the schemas of one tool.

    Args:
        document: The tool's `parameters`, to which every `$ref` refers.
    """

    def __init__(self, document: Schema | None) -> None:
        self._document: Schema = document if isinstance(document, Mapping) else {}
        self._root: Schema | None = None

    @property
    def root(self) -> Schema:
        """The schema of the whole arguments object, with the properties of all its alternatives."""
        if self._root is None:
            self._root = self.container(self._document, "")[1]
        return self._root

    def alternatives(self, schema: object, depth: int = 0) -> list[tuple[str | None, Schema]]:
        """Return the simple schemas that a schema stands for, each with its type (None if none is named)."""
        if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
            return []
        if isinstance(reference := schema.get("$ref"), str):
            return self.alternatives(self._resolve(reference), depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := schema.get(key), Sequence) and choices:
                branches = self._branches(schema, key, choices)
                return [simple for branch in branches for simple in self.alternatives(branch, depth + 1)]
        return [(kind, schema) for kind in _types_of(schema)]

    def _branches(self, schema: Schema, key: str, choices: Sequence[object]) -> list[Schema]:
        """Return the schemas of which one holds, each with what stands beside `key`; those of allOf are merged into one."""
        common = {name: value for name, value in schema.items() if name != key}
        if key == "allOf":
            return [self._merge(common, *choices)]
        return [self._merge(common, choice) for choice in choices]

    def is_text(self, schema: object) -> bool:
        """Return whether a value is a string or another scalar, and can therefore contain no elements."""
        kinds = {kind for kind, _ in self.alternatives(schema)}
        return "string" in kinds and not kinds & {"array", "object", None}

    def container(self, schema: object, first_child: str) -> tuple[str, Schema]:
        """Return how to read the elements inside an element: `array` or `object`, and the schema for that."""
        simple_schemas = self.alternatives(schema)
        preferred = ("array", "object") if first_child == "item" else ("object", "array")
        for kind in preferred:
            if matching := [simple for name, simple in simple_schemas if name == kind]:
                return kind, _union(matching)
        return ("array" if first_child == "item" else "object"), {}

    def takes(self, schema: object, name: str) -> bool:
        """Return whether a value of this schema may contain an element with that name."""
        simple_schemas = self.alternatives(schema)
        if objects := [simple for kind, simple in simple_schemas if kind == "object"]:
            union = _union(objects)
            declared = properties(union)
            return not declared or name in declared or bool(union.get("additionalProperties"))
        return name == "item" and any(kind == "array" for kind, _ in simple_schemas)

    def text(self, text: str, schema: object) -> Any:
        """Return the value that `text` stands for under `schema`; `text` itself if no other type fits.

        HTML entities stay as they are, with one exception: the text is unescaped if only the unescaped text
        is an allowed value. That can be decided where the schema lists the values or requires JSON.
        """
        simple = self.alternatives(schema)
        value = _fit(text, simple)
        if value is _NO_MATCH and "&" in text:
            value = _fit(html.unescape(text), simple)
        return text if value is _NO_MATCH else value

    def _merge(self, base: Schema, *others: object) -> Schema:
        """Merge schemas into one: properties are combined; of other keywords, the later schema's counts."""
        merged = dict(base)
        for other in others:
            extra = self._dereference(other)
            declared = {**properties(merged), **properties(extra)}
            merged.update(extra)
            if declared:
                merged["properties"] = declared
        return merged

    def _dereference(self, schema: object) -> Schema:
        for _ in range(_MAX_SCHEMA_DEPTH):
            if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
                break
            schema = self._resolve(reference)
        return schema if isinstance(schema, Mapping) else {}

    def _resolve(self, reference: str) -> object:
        node: object = self._document
        if not reference.startswith("#"):
            return None
        for part in reference.lstrip("#").strip("/").split("/"):
            if part and isinstance(node, Mapping):
                node = node.get(part.replace("~1", "/").replace("~0", "~"))
        return node


def _types_of(schema: Schema) -> list[str | None]:
    """Return the types that a schema names, or that its keywords mean; None stands for any type."""
    match schema.get("type"):
        case str() as kind:
            return [_TYPE_ALIASES.get(kind, kind)]
        case [*kinds]:
            return [_TYPE_ALIASES.get(kind, kind) for kind in kinds if isinstance(kind, str)]
        case _:
            return [next((kind for keyword, kind in _KEYWORDS.items() if keyword in schema), None)]


def properties(schema: Schema) -> Mapping[str, Any]:
    """Return the members that the schema of an object declares."""
    members = schema.get("properties")
    return members if isinstance(members, Mapping) else {}


def member(schema: Schema, name: str) -> object:
    """Return the schema of the object member with that name."""
    declared = properties(schema)
    return declared[name] if name in declared else schema.get("additionalProperties")


def item(schema: Schema, index: int) -> object:
    """Return the schema of an array's item at `index`."""
    items = schema.get("items")
    first = schema.get("prefixItems", items)
    if isinstance(first, Sequence) and index < len(first):
        return first[index]
    return items if isinstance(items, Mapping) else None


def _union(schemas: Sequence[Schema]) -> Schema:
    """Merge the schemas of one type.

    For objects, a member may be what any of the schemas allows. For arrays, the first schema counts.
    """
    if len(schemas) == 1:
        return schemas[0]
    members: dict[str, list[object]] = {}
    for schema in schemas:
        for name, value in properties(schema).items():
            members.setdefault(name, []).append(value)
    union: dict[str, Any] = {}
    for schema in reversed(schemas):
        union.update(schema)
    if members:
        union["properties"] = {name: {"anyOf": values} for name, values in members.items()}
    return union


def _fit(text: str, simple: Sequence[tuple[str | None, Schema]]) -> Any:
    """Return the value that `text` stands for under one of the schemas, or _NO_MATCH."""
    listed = [value for _, schema in simple for value in _listed_values(schema)]
    for spelling in (text, text.strip()):
        if spelling in listed:
            return spelling
    texts = [schema for kind, schema in simple if kind in ("string", None)]
    otherwise = text if not simple or not all(map(_listed_values, texts)) else _NO_MATCH
    return next(_readings(text, simple, bool(texts) or not simple), otherwise)


def _readings(text: str, simple: Sequence[tuple[str | None, Schema]], may_be_string: bool) -> Iterator[Any]:
    """Yield what `text` stands for as each other type than a string that the schemas allow."""
    for wanted in _ORDER:
        for kind, schema in simple:
            if kind == wanted or (kind is None and _listed_values(schema)):
                value = _read(text, wanted, may_be_string)
                if value is not _NO_MATCH and _allowed(value, schema):
                    yield value


def _listed_values(schema: Schema) -> list[Any]:
    """Return the values that `enum` or `const` allow; an empty list if the schema has neither."""
    listed = schema.get("enum")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        return list(listed)
    return [schema["const"]] if "const" in schema else []


def _allowed(value: Any, schema: Schema) -> bool:
    listed = _listed_values(schema)
    # Python's True equals 1, but JSON's true does not.
    return not listed or any(
        isinstance(value, bool) == isinstance(entry, bool) and value == entry for entry in listed
    )


def _read(text: str, kind: str, may_be_string: bool) -> Any:
    """Read `text` as one JSON type; return the value or _NO_MATCH."""
    text = text.strip()
    if not may_be_string and (kind, text.lower()) in _BLANKS:
        return _BLANKS[kind, text.lower()]()
    return _READERS[kind](text)


def _integer(text: str) -> Any:
    match = _INTEGER.fullmatch(text)
    return int(match[1]) if match and len(match[1]) <= _MAX_INTEGER_DIGITS else _NO_MATCH


def _number(text: str) -> Any:
    if _INTEGER.fullmatch(text) and "." not in text:
        return _integer(text)
    if not _NUMBER.fullmatch(text):
        return _NO_MATCH
    value = float(text)
    return value if math.isfinite(value) else _NO_MATCH


def _json(text: str, kind: type) -> Any:
    """Read `text` as a JSON array or object; models write these as often as nested elements."""
    try:
        value = json.loads(text, parse_constant=refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return _NO_MATCH
    return value if isinstance(value, kind) else _NO_MATCH


_READERS: Mapping[str, Callable[[str], Any]] = {
    "null": lambda text: None if text == "null" else _NO_MATCH,
    "boolean": lambda text: {"true": True, "false": False}.get(text.lower(), _NO_MATCH),
    "integer": _integer,
    "number": _number,
    "array": lambda text: _json(text, list),
    "object": lambda text: _json(text, dict),
}
"""How each type is read."""
_BLANKS: Mapping[tuple[str, str], Callable[[], Any]] = {
    **dict.fromkeys((("null", ""), ("null", "null"), ("null", "none")), lambda: None),
    ("array", ""): list,
    ("object", ""): dict,
}
"""What blank texts and words for nothing mean where no text is allowed."""


def json_object(text: str) -> dict[str, Any] | None:
    """Read `text` as a JSON object; return None if it is not one."""
    value = _json(text, dict)
    return None if value is _NO_MATCH else value


def refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity. Raises ValueError."""
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def strict_value(text: str) -> Any:
    """Read JSON; characters that JSON wants to be escaped may stand in strings as they are.

    Raises:
        ValueError: The text is not JSON, or has NaN or Infinity, which other parsers refuse in the history.
        RecursionError: The text is nested too deeply.
    """
    return json.loads(text, strict=False, parse_constant=refuse)


def mended_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text means; None if it means none, or if more than one reading is possible.

    These forms are read: an object that is encoded once more, as a string; a Python literal; JSON with Python's constants,
    with a comma before a closing bracket, or in a fenced block. Text that is cut is never completed.
    """
    if len(text) > _MOST_CHARACTERS:
        return None
    value: Any = text
    for _ in range(_MOST_ENCODINGS):
        if not isinstance(value, str):
            break
        value = _almost_json(value)
    return value if isinstance(value, dict) else None


def _almost_json(text: str) -> Any:
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
