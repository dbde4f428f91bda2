"""The inside of one `<invoke>`: parameters as text to and from a dictionary of arguments."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.serving.coerce import Coercer

NAMESPACE = "]<]minimax[>["

# How a value that itself contains the namespace token survives. The writer puts a backslash after
# `]<]minimax[` wherever `>[` or a backslash follows, the reader takes that backslash away again. Text that
# M3 writes on its own never has a backslash there, so ordinary output passes through untouched.
ESCAPED = "]<]minimax[\\"
_NEEDS_ESCAPE = re.compile(r"(\]<\]minimax\[)(?=>\[|\\)")

# Deeper elements are kept as text; no tool has such arguments, hostile output may.
_MAX_DEPTH = 64
_OPEN = re.compile(r"<([^<>/][^<>]*)>")
_CLOSE = re.compile(r"</([^<>]*)>")
_NAMED = re.compile(r"parameter\s+name\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|(\S+))\s*")
_PLAIN_OPEN = re.compile(r"\s*<(?:(parameter\s+name\s*=\s*[^<>]+)|([^<>/\s][^<>\s]*))>")
_SAFE_TAG = re.compile(r"[\w$@.:\-]+")
# Names that mean something as a tag, so an argument of that name is written with a `name` attribute.
_RESERVED_TAGS = frozenset({"invoke", "tool_call", "parameter"})
_MIXED_TEXT = "$text"


def escape(text: str) -> str:
    """Make text safe to stand between namespaced tags."""
    return _NEEDS_ESCAPE.sub(r"\1\\", text) if "]<]minimax[" in text else text


def unescape(text: str) -> str:
    """Undo `escape`."""
    return text.replace(ESCAPED, ESCAPED[:-1])


def attribute(text: str) -> str:
    """Make text safe to stand in a double-quoted attribute of a tag."""
    return html.escape(text).replace("]", "&#93;").replace("\n", "&#10;").replace("\r", "&#13;")


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Write arguments (JSON values) as M3 does: one namespaced element for each."""
    return "".join(_write_element(name, value, _RESERVED_TAGS) for name, value in arguments.items())


def _write_element(name: str, value: Any, reserved: frozenset[str]) -> str:
    if _SAFE_TAG.fullmatch(name) and name not in reserved:
        tag, closer = name, name
    else:
        tag, closer = f'parameter name="{attribute(name)}"', "parameter"
    return f"{NAMESPACE}<{tag}>{_write_value(value)}{NAMESPACE}</{closer}>"


def _write_value(value: Any) -> str:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping) and value:
        inner = _RESERVED_TAGS | {"item"}  # `<item>` inside an element would be read as a list
        return "".join(_write_element(name, child, inner) for name, child in value.items())
    if isinstance(value, Sequence) and value:
        return "".join(f"{NAMESPACE}<item>{_write_value(child)}{NAMESPACE}</item>" for child in value)
    return json.dumps(value, allow_nan=False)  # numbers, booleans, null, and empty containers


def read_arguments(body: str, coercer: Coercer) -> dict[str, Any]:
    """Read the parameters of an `<invoke>`; one that is not closed is left out, and so is all after it."""
    if f"{NAMESPACE}<" in body or f"{NAMESPACE}</" in body or "<parameter" not in body:
        return _NamespacedReader(body, coercer).read()
    return read_plain_arguments(body, coercer)


def read_plain_arguments(body: str, coercer: Coercer) -> dict[str, Any]:
    """Read parameters without namespace tokens: M2's `<parameter name="x">`, or `<x>` for a known x.

    A value ends at the closing tag that another parameter or the end follows, so it may contain such a tag.
    """
    known = _properties(coercer)
    next_parameter = "|".join([r"parameter\s+name\s*=", *(re.escape(name) + ">" for name in known)])
    found: list[tuple[str, Any]] = []
    position = 0
    while opening := _PLAIN_OPEN.match(body, position):
        name, closer = _tag_name(opening[1] or opening[2])
        if opening[2] and known and name not in known:
            break
        ending = re.compile(rf"</{re.escape(closer)}>(?=\s*(?:<(?:{next_parameter})|\Z))")
        end = ending.search(body, opening.end())
        if end is None:
            break
        found.append((name, coercer.text(body[opening.end() : end.start()], known.get(name))))
        position = end.end()
    return _fold(found, coercer, coercer.root)


def _properties(coercer: Coercer) -> Mapping[str, Any]:
    found = coercer.root.get("properties")
    return found if isinstance(found, Mapping) else {}


def _tag_name(tag: str) -> tuple[str, str]:
    """The argument a tag names, and the name its closing tag has."""
    if named := _NAMED.fullmatch(tag):
        return html.unescape(named[1] or named[2] or named[3] or ""), "parameter"
    return tag, tag


def _child_schema(schema: Mapping[str, Any], name: str) -> object:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _fold(found: list[tuple[str, Any]], coercer: Coercer, schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object of named values; a name that comes again makes a list of its values."""
    grouped: dict[str, list[Any]] = {}
    for name, value in found:
        grouped.setdefault(name, []).append(value)
    result: dict[str, Any] = {}
    for name, values in grouped.items():
        if len(values) == 1:
            result[name] = values[0]
            continue
        kind, simple = coercer.container(_child_schema(schema, name), "item")
        items = simple.get("items") if kind == "array" else None
        result[name] = [coercer.text(value, items) if isinstance(value, str) else value for value in values]
    return result


class _NamespacedReader:
    """Reads a body cut at its namespace tokens: every piece after the first begins with a tag, or is text."""

    def __init__(self, body: str, coercer: Coercer) -> None:
        self._pieces = body.split(NAMESPACE)
        self._coercer = coercer
        self._known = _properties(coercer)
        self._read: set[str] = set()

    def read(self) -> dict[str, Any]:
        """All parameters, in order."""
        found: list[tuple[str, Any]] = []
        loose = [self._pieces[0]]  # text since the last parameter: the value of one without opening tag
        index = 1
        while index < len(self._pieces):
            piece = self._pieces[index]
            if closing := _CLOSE.match(piece):
                name = closing[1]
                value = self._elided_value(loose)
                if value is not None and self._may_be_elided(name):
                    found.append((name, self._text(value, self._known.get(name))))
                    self._read.add(name)
                loose = [piece[closing.end() :]]
            elif (opening := _OPEN.match(piece)) and not self._is_elided_text(opening[1], index):
                name, closer = _tag_name(opening[1])
                schema = _child_schema(self._coercer.root, name)
                element = self._element(index, piece[opening.end() :], closer, schema, 1)
                if element is None:
                    break
                value, index, tail = element
                found.append((name, value))
                self._read.add(name)
                loose = [tail]
            else:
                loose.append(piece)
            index += 1
        return _fold(found, self._coercer, self._coercer.root)

    def _text(self, text: str, schema: object) -> Any:
        return self._coercer.text(unescape(text), schema)

    @staticmethod
    def _elided_value(loose: list[str]) -> str | None:
        """The value whose opening tag is missing: after a bare namespace token, or without one at all."""
        if len(loose) > 1:
            return NAMESPACE.join(loose[1:])
        return loose[0] if loose[0].strip() else None

    def _may_be_elided(self, name: str) -> bool:
        known = name in self._known or not self._known
        return bool(name) and known and name not in self._read

    def _is_elided_text(self, tag: str, index: int) -> bool:
        """Whether what looks like an unknown parameter is the value of a known one, say HTML."""
        if not self._known or _tag_name(tag)[0] in self._known or index + 1 >= len(self._pieces):
            return False
        closing = _CLOSE.match(self._pieces[index + 1])
        return closing is not None and closing[1] in self._known and self._may_be_elided(closing[1])

    def _element(
        self, index: int, text: str, closer: str, schema: object, depth: int
    ) -> tuple[Any, int, str] | None:
        """The value of the element that piece `index` opens, the piece that closes it, the text after.

        None if nothing closes it.
        """
        end_tag = f"</{closer}>"
        if depth > _MAX_DEPTH or self._coercer.is_text(schema):
            return self._raw_element(index, text, end_tag, schema)
        children: list[tuple[str, Any]] = []
        texts = [text]
        kind, container = "", schema
        index += 1
        while index < len(self._pieces):
            piece = self._pieces[index]
            if piece.startswith(end_tag):
                value = self._compose(children, texts, kind, container, schema)
                return value, index, piece[len(end_tag) :]
            if opening := _OPEN.match(piece):
                name, child_closer = _tag_name(opening[1])
                if not children:
                    kind, container = self._coercer.container(schema, opening[1])
                child_schema: object = None
                if isinstance(container, Mapping):
                    child_schema = (
                        container.get("items") if kind == "array" else _child_schema(container, name)
                    )
                child = self._element(index, piece[opening.end() :], child_closer, child_schema, depth + 1)
                if child is None:
                    return None
                value, index, tail = child
                children.append((name, value))
                texts.append(tail)
            else:
                texts.append(NAMESPACE + piece)
            index += 1
        return None

    def _raw_element(
        self, index: int, text: str, end_tag: str, schema: object
    ) -> tuple[Any, int, str] | None:
        """A string ends at its own closing tag; whatever stands before that belongs to it."""
        for end in range(index + 1, len(self._pieces)):
            if self._pieces[end].startswith(end_tag):
                whole = NAMESPACE.join([text, *self._pieces[index + 1 : end]])
                return self._text(whole, schema), end, self._pieces[end][len(end_tag) :]
        return None

    def _compose(
        self,
        children: list[tuple[str, Any]],
        texts: list[str],
        kind: str,
        container: object,
        schema: object,
    ) -> Any:
        text = "".join(texts)
        if not children:
            return self._text(text, schema)
        if kind == "array":
            return [value for _, value in children]
        if text.strip():
            field = _MIXED_TEXT
            while any(name == field for name, _ in children):
                field = "$" + field
            children.append((field, unescape(text)))
        return _fold(children, self._coercer, container if isinstance(container, Mapping) else {})
