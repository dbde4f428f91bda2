"""Go, JavaScript and TypeScript sources as trees of tree-sitter, which is an optional extra (`outlines`)."""

from __future__ import annotations

import importlib
import importlib.util
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

LIBRARY = "tree_sitter_language_pack"


def types(text: str) -> frozenset[str]:
    """Return the types of nodes that a text lists."""
    return frozenset(text.split())


GRAMMARS = {
    "go": "go",
    **dict.fromkeys(("js", "jsx", "cjs", "mjs"), "javascript"),
    **dict.fromkeys(("ts", "cts", "mts"), "typescript"),
    "tsx": "tsx",
}
"""Grammars by suffix."""
LONGEST = 512 * 1024
"""Most bytes of a file that is parsed."""
FUNCTIONS = types(
    "function_declaration method_declaration func_literal method_definition arrow_function "
    "function_expression generator_function_declaration generator_function"
)
NAMED_BLOCKS = frozenset(
    {"function_declaration", "method_declaration", "method_definition", "variable_declarator"}
)
NAMES = frozenset({"identifier", "shorthand_property_identifier"})


def available() -> bool:
    """Return whether the library is installed."""
    return importlib.util.find_spec(LIBRARY) is not None


@dataclass(frozen=True)
class PlainSource:
    """The text of a file that is parsed only when changes of it are proposed."""

    path: str
    text: str


class SyntaxTree:
    """A parsed file. The library counts in bytes, this class in characters.

    Raises:
        SyntaxError: The file is too long, or its language has no grammar here.
    """

    def __init__(self, path: str, text: str) -> None:
        grammar = GRAMMARS.get(path.rpartition(".")[2])
        self._data = text.encode()
        if grammar is None or len(self._data) > LONGEST:
            raise SyntaxError("a file without a grammar, or a file that is too long")
        pack: Any = importlib.import_module(LIBRARY)
        self.text = text
        self.is_go = grammar == "go"
        self._tree: Tree = pack.get_parser(grammar).parse(self._data)

    @cached_property
    def _starts(self) -> list[int] | None:
        """The offset in bytes of each character; None if all characters have one byte."""
        if len(self._data) == len(self.text):
            return None
        return [at for at, byte in enumerate(self._data) if byte & 0xC0 != 0x80]

    def offset(self, byte: int) -> int:
        """Return the number of characters before a byte."""
        return byte if self._starts is None else bisect_right(self._starts, byte - 1)

    def span(self, node: Node) -> tuple[int, int]:
        """Return the start and end of a node, in characters."""
        return self.offset(node.start_byte), self.offset(node.end_byte)

    def text_of(self, node: Node) -> str:
        """Return the text of a node."""
        return self._data[node.start_byte : node.end_byte].decode()

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, in the order of the text. It does not recurse: hostile text can be nested deeply."""
        waiting = [self._tree.root_node]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def functions(self) -> dict[str, list[tuple[int, int]]]:
        """Return the first and last lines (from 1) of functions, methods and variables by name."""
        found: dict[str, list[tuple[int, int]]] = {}
        for node in self.nodes():
            name = node.child_by_field_name("name") if node.type in NAMED_BLOCKS else None
            if name is not None:
                lines = (node.start_point[0] + 1, node.end_point[0] + 1)
                found.setdefault(self.text_of(name), []).append(lines)
        return found


@lru_cache(maxsize=32)
def go_bodies(path: str, text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the start and end of the body of each Go function that is not inside another one, and its result type."""
    tree = SyntaxTree(path, text)
    found = []
    for node in tree.nodes():
        body = field(node, "body") if node.type in ("function_declaration", "method_declaration") else None
        if body is not None:
            result = field(node, "result")
            found.append((*tree.span(body), "" if result is None else tree.text_of(result)))
    return tuple(found)


def before_dot(node: Node) -> Node | None:
    """Return the value whose field or method a node is."""
    return field(node, "object") or field(node, "operand")


def line_of(node: Node) -> int:
    """Return the first line of a node, from 1."""
    return node.start_point[0] + 1


def function_of(node: Node) -> Node | None:
    """Return the innermost function around a node."""
    above = node.parent
    while above is not None and above.type not in FUNCTIONS:
        above = above.parent
    return above


def field(node: Node, name: str) -> Node | None:
    """Return the child with a role."""
    return node.child_by_field_name(name)


def is_field(node: Node, *names: str) -> bool:
    """Return whether a node has one of these roles in the node around it."""
    around = node.parent
    return around is not None and any(field(around, name) == node for name in names)


def is_condition(node: Node) -> bool:
    """Return whether a node decides a branch or a loop, or is an operand of such a condition."""
    above = node.parent
    while above is not None and above.type == "parenthesized_expression":
        node, above = above, above.parent
    if above is None:
        return False
    if above.type == "binary_expression":
        sign = above.child_by_field_name("operator")
        return sign is not None and sign.type in ("&&", "||")
    return is_field(node, "condition") or (above.type == "unary_expression" and above.children[0].type == "!")
