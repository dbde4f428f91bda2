"""Read and write the parameters inside one `<invoke>`: markup to and from a dictionary of arguments.

The reader takes the parameters in order, as they are written. Only if an element is never closed, it reads
the body a second time, in repair mode. In repair mode a value also ends where its parent element ends, or
where the next declared parameter begins. A closing tag that is missing, misspelt or without its namespace
token therefore costs neither that value nor a later one.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from m3agent.serving.wire.coerce import Coercer, item, json_object, member, properties

NAMESPACE = "]<]minimax[>["

# Escape for values that contain the namespace token. The writer inserts a backslash after `]<]minimax[` if
# `>[` or a backslash follows; the reader removes that backslash. M3 itself never writes a backslash there, so
# its output passes through unchanged.
ESCAPED = "]<]minimax[\\"
_NEEDS_ESCAPE = re.compile(r"(\]<\]minimax\[)(?=>\[|\\)")

# Deeper elements stay text. No tool has such arguments, but hostile output may.
_MAX_DEPTH = 64
# M3 sometimes writes white space between the namespace token and its tag.
_OPEN = re.compile(r"\s{0,20}<([^<>/][^<>]*?)(/?)>")
_CLOSE = re.compile(r"\s{0,20}</([^<>]*?)\s*>")
_NAMED = re.compile(r"parameter(?:\s+name)?\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|(\S+))\s*")
_PLAIN_OPEN = re.compile(r"\s*<(?:(parameter\s+name\s*=\s*[^<>]+)|([^<>/\s][^<>\s]*))>")
_PLAIN_CLOSE = re.compile(r"</([^<>/\s]+)\s*>")
_SAFE_TAG = re.compile(r"[\w$@.:\-]+")
# These names have a meaning as tags. An argument with such a name is written with a `name` attribute.
_RESERVED_TAGS = frozenset({"invoke", "tool_call", "parameter"})
_MIXED_TEXT = "$text"


def escape(text: str) -> str:
    """Escape text so that it can stand between namespaced tags."""
    return _NEEDS_ESCAPE.sub(r"\1\\", text) if "]<]minimax[" in text else text


def unescape(text: str) -> str:
    """Undo `escape`."""
    return text.replace(ESCAPED, ESCAPED[:-1])


def attribute(text: str) -> str:
    """Escape text for a double-quoted attribute of a tag."""
    return html.escape(text).replace("]", "&#93;").replace("\n", "&#10;").replace("\r", "&#13;")


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Write arguments (JSON values) in M3's markup: one namespaced element per argument."""
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
        inner = _RESERVED_TAGS | {"item"}  # the reader would take `<item>` for a list
        return "".join(_write_element(name, child, inner) for name, child in value.items())
    if isinstance(value, Sequence) and value:
        return "".join(f"{NAMESPACE}<item>{_write_value(child)}{NAMESPACE}</item>" for child in value)
    return json.dumps(value, allow_nan=False)  # numbers, booleans, null, and empty containers


class _Members:
    """Named values, in the order in which they were read."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.by_name: dict[str, list[Any]] = {}

    def add(self, name: str, value: Any) -> None:
        self.values.append(value)
        self.by_name.setdefault(name, []).append(value)

    def fold(self, coercer: Coercer, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values as an object; the values of a repeated name become a list."""
        result: dict[str, Any] = {}
        for name, values in self.by_name.items():
            if len(values) == 1:
                result[name] = values[0]
                continue
            kind, simple = coercer.container(member(schema, name), "item")
            result[name] = [
                coercer.text(value, item(simple, index) if kind == "array" else None)
                if isinstance(value, str)
                else value
                for index, value in enumerate(values)
            ]
        return result


def read_arguments(body: str, coercer: Coercer, *, finished: bool) -> dict[str, Any]:
    """Read the parameters of an `<invoke>`.

    Args:
        body: The markup between the tags of the `<invoke>`.
        coercer: Converts the values by the tool's schema.
        finished: Whether the `<invoke>` was closed. If not, only closed parameters are returned.
    """
    if finished and (written := _as_json(body)) is not None:
        return written
    reader = _Reader(body, coercer, repair=False)
    if not reader.read() and finished:
        reader = _Reader(body, coercer, repair=True)
        reader.read()
    return reader.found.fold(coercer, coercer.root)


def read_plain_arguments(body: str, coercer: Coercer) -> dict[str, Any] | None:
    """Read parameters without namespace tokens: M2's form `<parameter name="x">`, or `<x>` if x is declared.

    A value ends at a closing tag only if another parameter or the end of the body follows. A value may
    therefore contain the text of such a tag.

    Returns:
        The arguments, or None unless the whole body was read and every parameter is closed.
    """
    if (written := _as_json(body)) is not None:
        return written
    found = _Members()
    rest = _read_plain(body, coercer, found)
    return None if rest.strip() else found.fold(coercer, coercer.root)


def ends_with_closing_tag(text: str, coercer: Coercer) -> bool:
    """Return whether `text` is blank, or ends with a parameter's closing tag without namespace token."""
    name, _ = _plain_closing(text, len(text))
    declared = properties(coercer.root)
    return not text.strip() or (bool(name) and (not declared or name == "parameter" or name in declared))


def _as_json(body: str) -> dict[str, Any] | None:
    """Return the arguments if the model wrote one JSON object instead of elements, else None."""
    text = body.strip()
    return json_object(text) if text.startswith("{") and NAMESPACE not in text else None


def _read_plain(body: str, coercer: Coercer, found: _Members, *, repair: bool = False) -> str:
    """Add the parameters at the start of `body` to `found`; return the rest of `body`.

    With `repair`, a parameter that is not closed ends where the next one begins.
    """
    known = properties(coercer.root)
    starts = "|".join([r"parameter\s+name\s*=", *(re.escape(name) + ">" for name in known)])
    position = 0
    never: set[str] = set()  # closing tags that do not occur again
    while opening := _PLAIN_OPEN.match(body, position):
        name, closer = _tag_name(opening[1] or opening[2])
        if opening[2] and known and name not in known:
            break
        closers = "|".join(map(re.escape, [closer, name] if name in known else [closer]))
        end = None
        if closers not in never:
            end = re.compile(rf"</(?:{closers})\s*>(?=\s*(?:<(?:{starts})|\Z))").search(body, opening.end())
        if end is None and repair:
            never.add(closers)
            end = re.compile(rf"(?=<(?:{starts}))|\Z").search(body, opening.end())
        if end is None:
            break
        found.add(name, coercer.text(body[opening.end() : end.start()], known.get(name)))
        position = end.end()
    return body[position:]


def _tag_name(tag: str) -> tuple[str, str]:
    """Return the argument name that a tag gives, and the name of its closing tag."""
    if named := _NAMED.fullmatch(tag):
        return html.unescape(named[1] or named[2] or named[3] or ""), "parameter"
    name = (tag.split() or [tag])[0]  # the rest are attributes that M3 invented
    return name, name


class _Outside(NamedTuple):
    """The elements around an element: their closing tags, and the names that are declared there."""

    closers: frozenset[str]
    names: frozenset[str]


class _Element:
    """An element that is being read: its schema, its members, and the text between them."""

    def __init__(self, tag: str, schema: object, coercer: Coercer, outside: _Outside) -> None:
        self.name, self.closer = _tag_name(tag)
        self.schema = schema
        self.outside = outside
        self.members = _Members()
        self.kind, self.container = coercer.container(schema, "")
        self._coercer = coercer
        self._texts: list[str] = []

    def add_text(self, loose: list[str]) -> None:
        """Add the text since the last member, as pieces that were split at namespace tokens."""
        self._texts.append(NAMESPACE.join(loose))

    def inside(self, first: str) -> _Outside:
        """Return the surroundings of this element's members; `first` is the first member's closing tag."""
        if not self.members.values:
            self.kind, self.container = self._coercer.container(self.schema, first)
        names = {"item"} if self.kind == "array" else properties(self.container).keys()
        return _Outside(self.outside.closers | {self.closer}, self.outside.names | names)

    def schema_of(self, name: str) -> object:
        """Return the schema of the next member, given its name."""
        if self.kind == "array":
            return item(self.container, len(self.members.values))
        return member(self.container, name)

    def belongs_outside(self, name: str) -> bool:
        """Return whether a tag with this name can only belong to an element after this one."""
        return name in self.outside.names and not self._coercer.takes(self.schema, name)

    def text_without_tags(self, text: str) -> str:
        """Remove closing tags without namespace token from the end of an unclosed element."""
        end = len(text)
        while True:
            name, start = _plain_closing(text, end)
            if name in (self.name, self.closer):
                return text[:start]
            if name not in self.outside.closers:
                return text[:end]
            end = start

    def value(self) -> Any:
        """Return the value that the text and the members make."""
        text = "".join(self._texts)
        if not self.members.values:
            return self._coercer.text(unescape(text), self.schema)
        if self.kind == "array":
            return self.members.values
        if text.strip():
            field = _MIXED_TEXT
            while field in self.members.by_name:
                field = "$" + field
            self.members.add(field, unescape(text))
        return self.members.fold(self._coercer, self.container)


class _UnclosedError(Exception):
    """An element is never closed."""


class _Reader:
    """Read a body that is split at its namespace tokens.

    Each piece after the first begins with a tag, or is text.
    """

    def __init__(self, body: str, coercer: Coercer, *, repair: bool) -> None:
        self.found = _Members()
        self._pieces = body.split(NAMESPACE)
        self._at = 1  # the next piece
        self._coercer = coercer
        self._repair = repair

    def read(self) -> bool:
        """Read all parameters into `found`, in order; return False if an unclosed parameter stopped it."""
        root = self._coercer.root
        outside = _Outside(frozenset(), frozenset(properties(root)))
        loose = [self._pieces[0]]  # text since the last parameter, split at namespace tokens
        try:
            while self._at < len(self._pieces):
                piece = self._pieces[self._at]
                if closing := _CLOSE.match(piece):
                    self._at += 1
                    if not self._take_elided(closing[1], loose, root, self.found):
                        self._take_plain(loose[0])
                    loose = [piece[closing.end() :]]
                elif opening := self._opening(piece, root, self.found):
                    self._take_plain(loose[0])
                    name = _tag_name(opening[1])[0]
                    value, tail = self._element(opening, member(root, name), outside, 1)
                    self.found.add(name, value)
                    loose = [tail]
                else:
                    loose.append(piece)
                    self._at += 1
            self._take_plain(loose[0])
        except _UnclosedError:
            return False
        return True

    def _take_plain(self, text: str) -> None:
        """Read parameters between the others that have no namespace tokens."""
        if _PLAIN_OPEN.match(text):
            rest = _read_plain(text, self._coercer, self.found, repair=self._repair)
            if not self._repair and _PLAIN_OPEN.match(rest):
                raise _UnclosedError

    def _take_elided(self, name: str, loose: list[str], schema: Mapping[str, Any], members: _Members) -> bool:
        """Read the value in `loose` if its opening tag is missing; return whether there was one."""
        value = NAMESPACE.join(loose[1:] if len(loose) > 1 else loose)
        if not (value.strip() or len(loose) > 1) or not self._may_be_elided(name, schema, members):
            return False
        members.add(name, self._coercer.text(unescape(value), member(schema, name)))
        return True

    @staticmethod
    def _may_be_elided(name: str, schema: Mapping[str, Any], members: _Members) -> bool:
        declared = properties(schema)
        return bool(name) and (name in declared or not declared) and name not in members.by_name

    def _opening(self, piece: str, schema: Mapping[str, Any], members: _Members) -> re.Match[str] | None:
        """Return the opening tag at the start of `piece`.

        Return None if the tag is rather the start of a value (for example HTML) that has no opening tag of
        its own.
        """
        opening = _OPEN.match(piece)
        declared = properties(schema)
        if opening is None or not declared or _tag_name(opening[1])[0] in declared:
            return opening
        following = self._pieces[self._at + 1] if self._at + 1 < len(self._pieces) else ""
        closing = _CLOSE.match(following)
        elided = closing and closing[1] in declared and self._may_be_elided(closing[1], schema, members)
        return None if elided else opening

    def _element(
        self, opening: re.Match[str], schema: object, outside: _Outside, depth: int
    ) -> tuple[Any, str]:
        """Return the value of the element that the current piece opens, and the text behind its closing tag."""
        text = self._pieces[self._at][opening.end() :]
        self._at += 1
        if opening[2]:  # `<x/>`
            return self._coercer.text("", schema), text
        element = _Element(opening[1], schema, self._coercer, outside)
        if depth > _MAX_DEPTH or self._coercer.is_text(schema):
            return self._string(element, text)
        loose = [text]
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            if closing := _CLOSE.match(piece):
                tail = piece[closing.end() :]
                if closing[1] == element.closer:
                    self._at += 1
                    element.add_text(loose)
                    return element.value(), tail
                if self._repair and closing[1] in outside.closers:
                    break
                self._at += 1
                # As at the top level, but only for declared names: any other tag is text of the value.
                if closing[1] in properties(element.container) and self._take_elided(
                    closing[1], loose, element.container, element.members
                ):
                    loose = [tail]
                elif self._repair:  # the tag closes no open element
                    element.add_text(loose)
                    loose = [tail]
                else:
                    loose.append(piece)
            elif inner := self._opening(piece, element.container, element.members):
                name, closer = _tag_name(inner[1])
                if self._repair and element.belongs_outside(name):
                    break
                element.add_text(loose)
                inside = element.inside(closer)
                value, tail = self._element(inner, element.schema_of(name), inside, depth + 1)
                element.members.add(name, value)
                loose = [tail]
            else:
                loose.append(piece)
                self._at += 1
        self._unclosed()
        loose[-1] = element.text_without_tags(loose[-1])
        element.add_text(loose)
        return element.value(), ""

    def _string(self, element: _Element, text: str) -> tuple[Any, str]:
        """Read a string: it ends at its own closing tag, and everything before that belongs to it."""
        start = self._at
        boundary: int | None = None  # where the string ends if no tag closes it
        for at in range(start, len(self._pieces)):
            piece = self._pieces[at]
            if closing := _CLOSE.match(piece):
                if closing[1] == element.closer:
                    self._at = at + 1
                    element.add_text([text, *self._pieces[start:at]])
                    return element.value(), piece[closing.end() :]
                if boundary is None and closing[1] in element.outside.closers:
                    boundary = at
            elif opening := _OPEN.match(piece):
                name, closer = _tag_name(opening[1])
                if boundary is None and (name in element.outside.names or closer == element.closer):
                    boundary = at
                if closer == element.closer:  # the next closing tag belongs to that element
                    break
        self._unclosed()
        self._at = len(self._pieces) if boundary is None else boundary
        pieces = [text, *self._pieces[start : self._at]]
        misspelt = _CLOSE.fullmatch(pieces[-1].rstrip()) if len(pieces) > 1 else None
        whole = NAMESPACE.join(pieces[:-1] if misspelt else pieces)
        element.add_text([element.text_without_tags(whole)])
        return element.value(), ""

    def _unclosed(self) -> None:
        if not self._repair:
            raise _UnclosedError


def _plain_closing(text: str, end: int) -> tuple[str, int]:
    """Return the name and start of the closing tag without namespace token that ends `text[:end]`.

    Return ("", end) if there is none; `end` is then before any trailing white space.
    """
    while end and text[end - 1].isspace():
        end -= 1
    start = text.rfind("</", 0, end)
    closing = _PLAIN_CLOSE.fullmatch(text, start, end) if start >= 0 else None
    return (closing[1], start) if closing else ("", end)
