"""Outline a source file: one line for each class, function and top-level name, without bodies.

It works with every grammar of tree-sitter-language-pack, because it uses what grammars have in common: the
words in node types (`function_definition`, `class_declaration`, `struct_item`) and the fields (`name`,
`body`). The library is an optional extra; without it there are no outlines.
"""

from __future__ import annotations

import importlib
import re
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from m3agent.agent.context.languages import grammar, word_set

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

OUTLINE_VERSION = 1
"""Increase it when the same text gives a different outline, so that stored outlines are made again."""

_LONGEST_TEXT = 768 * 1024
_MOST_LINES = 1000
_MOST_NODES = 300_000
_WIDTH = 160
_DEEPEST = 20
# Limits for parsing are counted, not timed, because the same text must give the same outline on every
# machine. The parser calls back after every hundred steps, and reads the text in small pieces. Of 8,700 code
# files, none longer than 3 kB took more than three steps per byte, and none longer than 100 kB took more than
# two.
_STEPS = 100
_FIRST_STEPS = 50_000
_STEPS_PER_BYTE = 2
_MOST_STEPS = 600_000
_READ = 512
_READS_PER_BYTE = 10


class _Part(Enum):
    """The role of a node in an outline."""

    FUNCTION = "shown, and nothing in it"
    GROUP = "shown with what is in it"
    NAME = "shown at the top, and nothing in it"
    AROUND = "not shown, but what is in it"
    OTHER = "neither shown nor looked into"


_FUNCTION = word_set(
    "constructor converter deinit destructor fn fun func function getter init iterator macro method modifier operator proc "
    "procedure rpc setter sub subprogram subroutine subscript task"
)
_GROUP = word_set(
    "actor architecture class companion concept contract entity enum extension foreign impl implementation instance "
    "interface intf library message mixin mod module namespace object package program protocol record section service "
    "struct structure trait union unit"
)
_NAME = word_set(
    "alias associatedtype assignment const constant data define delegate error event exception given input let lexical "
    "newtype property scalar schema static synonym table trigger type typealias typedef val value var variable view"
)
# Words that are sufficient alone; the others need one of the endings below.
_ALONE = word_set(
    "class companion constructor enum fun function instance macro message method module namespace object procedure rpc "
    "section service singleton struct subroutine trait union"
)
_ENDING = word_set(
    "binding decl declaration declarator def define definition defn directive item proto signature spec specification "
    "specifier statement"
)
_WITHIN = word_set(
    "access argument arguments attribute base call case comment default element enumerator export field heritage import "
    "include keyword label literal member option parameter parent pragma qualifier return storage super throws use user "
    "using visibility"
)
_WHOLE_NAMES = frozenset(
    {"atx_heading", "data_type", "newtype", "rule", "rule_set", "setext_heading", "type_alias"}
)
_EXPRESSION = word_set(
    "argument arguments array attribute call comment condition dictionary expr expression import include lambda list lit "
    "literal map operator pair parameter parameters params pattern set string token tuple"
)
_PLURAL = word_set("declaration declarations definitions items members statement statements")
_OPEN = word_set("library mod module namespace package program section unit")
_ANNOUNCING = frozenset({"decorated", "export", "template"})
_HEAD = frozenset({"ansi", "head", "header", "left", "nonansi"})
_BODY = frozenset({"block", "body", "compound", "members"})
_NAMED_BY = ("name", "declarator", "left", "pattern", "lhs", "path")
_HELD_BY = ("value", "right", "rhs", "declarator", "definition")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_IS_NAME = re.compile(
    r"(?:^|_)(?:alias|atom|constant|id|identifier|name|selectors?|symbol|sym|targets?|title|word)$"
)

_WITH_SCRIPTS = frozenset({"astro", "html", "svelte", "vue"})

# For languages in which a definition is a call or a list: Elixir, the Lisps
_SPOKEN = re.compile(rb"\(?(?:def[\w*+!-]*|ns|module)[\s(]+([^\s()]+)")
_SPOKEN_GROUP = re.compile(rb"\(?(?:defmodule|defprotocol|defimpl|module)\b")
_SPOKEN_TYPE = re.compile(r"call|list|list_lit|form|s?exp|defun")


@cache
def _words(kind: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(kind))


@cache
def _part(kind: str) -> _Part:
    """Return the role of a node type, from the words in it.

    A node that turns out to have no name becomes `AROUND`.
    """
    words = _words(kind)
    if not words:
        return _Part.OTHER
    last, found = words[-1], frozenset(words)
    if kind in _WHOLE_NAMES or ("assignment" in found and "augmented" not in found) or words[0] == "create":
        return _Part.NAME
    if last in _ENDING:
        return _announced(found - {last}, last)
    if words[0] in ("decl", "def"):
        return _announced(found - {words[0]}, "decl")
    if found <= _ALONE:
        return _Part.FUNCTION if last in _FUNCTION else _Part.GROUP
    return _Part.OTHER if found & _EXPRESSION and not found & _PLURAL else _Part.AROUND


def _announced(found: frozenset[str], ending: str) -> _Part:
    """Return the role of a node type that ends like a definition, from the other words in it."""
    if found & _WITHIN:
        if found & {"export", "default"} or ending == "statement":
            return _Part.AROUND
        return _Part.NAME if "field" in found else _Part.OTHER
    if found & _FUNCTION:
        return _Part.FUNCTION
    if found & _GROUP:
        return _Part.GROUP
    if found & _NAME or (not found and ending in ("declaration", "definition", "signature", "decl")):
        return _Part.NAME
    return _Part.AROUND


def outline(path: str, text: str) -> str | None:
    """Return one line for each definition in `text`: line number, tab, and signature, indented by nesting.

    The same text gives the same outline on every machine.

    Returns:
        None if there is no outline: no grammar for the language, text too long or too unusual to parse, no
            definitions, or the library is not installed.
    """
    language = grammar(path)
    if language in _WITH_SCRIPTS:
        language, text = "typescript", _scripts(text)
    data = text.encode("utf-8", "replace")
    if language is None or not data or len(data) > _LONGEST_TEXT:
        return None
    tree = _parse(language, data)
    lines = _Walk(data).lines(tree.root_node) if tree else []
    return "\n".join(lines) or None


def available() -> bool:
    """Return whether the library is installed."""
    return _grammars() is not None


def _parse(language: str, data: bytes) -> Tree | None:
    parser = _parser(language)
    if parser is None:
        return None
    text = memoryview(data)
    steps, to_read = 0, len(data) * _READS_PER_BYTE + _LONGEST_TEXT

    def read(offset: int, _point: object) -> memoryview | None:
        nonlocal to_read
        to_read -= _READ
        return text[offset : offset + _READ] if to_read >= 0 else None

    def is_over(offset: int, _error: bool) -> bool:
        nonlocal steps
        steps += _STEPS
        return to_read < 0 or steps > min(_MOST_STEPS, _FIRST_STEPS + _STEPS_PER_BYTE * offset)

    try:
        tree = parser.parse(read, progress_callback=is_over)
    except ValueError:  # the library raises it when the callback stops it
        return None
    return tree if to_read >= 0 else None


def _parser(language: str) -> Parser | None:
    grammars = _grammars()
    if grammars is None:
        return None
    try:
        parser: Parser = grammars.get_parser(language)
    except LookupError:  # this version of the pack lacks the grammar
        return None
    return parser


@cache
def _grammars() -> Any:
    try:
        return importlib.import_module("tree_sitter_language_pack")
    except ImportError:
        return None


def _scripts(text: str) -> str:
    """Return the scripts in a page or component.

    Other lines become empty, so that line numbers do not change.
    """
    lower = text.lower()
    if len(lower) != len(text):  # a letter changes its length in lower case
        return ""
    found: list[str] = []
    end = 0
    while (tag := lower.find("<script", end)) >= 0:
        start = lower.find(">", tag) + 1
        stop = lower.find("</script", start)
        if not start or stop < 0:
            break
        found += "\n" * text.count("\n", end, start), text[start:stop]
        end = stop
    return "".join(found)


class _Walk:
    """Walk through a tree without recursion: hostile text can be nested as deep as it is long."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._before = ""

    def lines(self, root: Node) -> list[str]:
        found: list[str] = []
        # node, indentation, whether names are shown here, outer node with which its line begins
        waiting: list[tuple[Node, int, bool, Node | None]]
        waiting = [(child, 0, True, None) for child in reversed(root.named_children)]
        visited = 0
        while waiting and len(found) < _MOST_LINES and visited < _MOST_NODES:
            node, depth, at_top, around = waiting.pop()
            visited += 1
            part = self._part(node)
            if part is _Part.OTHER or (part is _Part.NAME and not at_top):
                continue
            name = self._shown_name(node, part)
            if name is not None:
                self._add(found, node, around, name, depth, part)
                if part is not _Part.GROUP:
                    continue
                around, depth = None, depth + 1
                at_top = at_top and not _OPEN.isdisjoint(_words(node.type))
            elif part is not _Part.AROUND or _announces(node):
                around = around or node
            waiting += ((child, depth, at_top, around) for child in reversed(node.named_children))
        return found

    def _shown_name(self, node: Node, part: _Part) -> str | None:
        """Return the name with which a node has a line, which may be empty; None if it has no line."""
        name = "" if part is _Part.AROUND else _name(node, self._data)
        nameless = part is _Part.FUNCTION or (part is not _Part.AROUND and node.type.startswith("create_"))
        return name if name or nameless else None

    def _part(self, node: Node) -> _Part:
        part = _part(node.type)
        if part is _Part.NAME and _holds_function(node):
            return _Part.FUNCTION
        if part in (_Part.OTHER, _Part.AROUND):
            for field in ("rhs", "right", "value"):
                held = node.child_by_field_name(field)
                if held is not None and "function" in _words(held.type):
                    return _Part.NAME
            if node.type == "block" and _is_labelled(node):
                return _Part.GROUP
            if _SPOKEN_TYPE.fullmatch(node.type):
                if _SPOKEN_GROUP.match(self._data, node.start_byte):
                    return _Part.GROUP
                if _SPOKEN.match(self._data, node.start_byte):
                    return _Part.FUNCTION
        return part

    def _add(
        self, found: list[str], node: Node, around: Node | None, name: str, depth: int, part: _Part
    ) -> None:
        equation = node.type in ("function", "signature")  # in Haskell a function is a series of equations
        if equation and name and name == self._before:
            return
        self._before = name if equation else ""
        body = _body(node)
        start = around if around and _leads(around, node) else node
        first = node.end_byte if body is None else body.start_byte
        text = self._data[start.start_byte : first]
        if body is None:
            text = _opening(text)
            if part is _Part.GROUP:
                text = text.partition(b"{")[0]
        line = " ".join(text.decode("utf-8", "replace").split()).rstrip(" {:=")
        if name and name not in line:
            line = f"{line} … {name}"
        if len(line) > _WIDTH:
            line = f"{line[: _WIDTH - 1]}…"
        if line:
            found.append(f"{node.start_point[0] + 1}\t{'  ' * min(depth, _DEEPEST)}{line}")


def _opening(text: bytes) -> bytes:
    """Return the first line, or more lines if its parentheses are not closed."""
    lines = text.split(b"\n", 9)[:9]
    opening = lines[0]
    for line in lines[1:]:
        if opening.count(b"(", 1) <= opening.count(b")"):
            break
        opening += b"\n" + line
    return opening


def _announces(node: Node) -> bool:
    """Return whether a node contains a definition and a prefix: a decorator, `export`, `template <...>`."""
    words = _words(node.type)
    return words[0] in _ANNOUNCING and words[-1] in _ENDING


def _leads(around: Node, node: Node) -> bool:
    """Return whether the line of a definition should begin with its outer node."""
    return around.start_point[0] == node.start_point[0] or _announces(around)


def _is_labelled(node: Node) -> bool:
    """Return whether a block is a labelled block of HCL: `resource "type" "name" {`."""
    if node.named_child_count < 2:
        return False
    first, second = node.named_children[:2]
    return first.type == "identifier" and second.type.startswith("string")


def _name(node: Node, data: bytes) -> str:
    """Return the first line of a definition's name; empty if it has none."""
    for field in _NAMED_BY:
        found = node.child_by_field_name(field)
        if found is not None:
            while inner := found.child_by_field_name("declarator") or found.child_by_field_name("name"):
                found = inner
            return _text(found, data)
    if _words(node.type)[0] == "impl":
        return "impl"
    if _SPOKEN_TYPE.fullmatch(node.type) and (spoken := _SPOKEN.match(data, node.start_byte)):
        return spoken[1].decode("utf-8", "replace")
    children = node.named_children[:6]
    for child in children:
        if _IS_NAME.search(child.type) or child.type == "inline":
            return _text(child, data)
    for child in children:
        if not _HEAD.isdisjoint(_words(child.type)):
            return next(
                (_text(inner, data) for inner in child.named_children[:6] if _IS_NAME.search(inner.type)), ""
            )
    return ""


def _text(node: Node, data: bytes) -> str:
    text = data[node.start_byte : min(node.end_byte, node.start_byte + _WIDTH)]
    return " ".join(text.decode("utf-8", "replace").split())


def _holds_function(node: Node) -> bool:
    """Return whether a C declaration declares a function."""
    found = node.child_by_field_name("declarator")
    for _ in range(8):
        if found is None:
            return False
        if found.type == "function_declarator":
            return True
        found = found.child_by_field_name("declarator")
    return False


def _body(node: Node) -> Node | None:
    """Return the part of a definition that is left out, or None if nothing is left out."""
    for _ in range(4):
        for field in ("body", "block", "members", "consequence", "arguments_body"):
            found = node.child_by_field_name(field)
            if found is not None:
                return found
        for child in node.named_children[-3:]:
            if not _BODY.isdisjoint(_words(child.type)) or child.type.endswith("declaration_list"):
                return child
        inner = None
        for field in _HELD_BY:
            inner = inner or node.child_by_field_name(field)
        if inner is None:
            return None
        node = inner
    return None
