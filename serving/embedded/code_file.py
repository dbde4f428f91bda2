"""A parsed Go, JavaScript or TypeScript file with what its operators look up: names, literals, calls and statements."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from m3agent.serving.embedded.operators.base import Hints
from m3agent.serving.embedded.syntax import (
    FUNCTIONS,
    NAMES,
    SyntaxTree,
    before_dot,
    field,
    function_of,
    is_condition,
    is_field,
    line_of,
    types,
)

if TYPE_CHECKING:
    from tree_sitter import Node

NUMBERS = frozenset({"number", "int_literal", "float_literal"})
STRINGS = frozenset({"string", "interpreted_string_literal", "raw_string_literal"})
FIELDS = frozenset({"property_identifier", "field_identifier"})
STATEMENTS = types(
    "expression_statement assignment_statement inc_statement dec_statement return_statement "
    "continue_statement break_statement"
)
MOST_NAMES = 8
"""Most other names that are tried in place of one."""

Change = tuple[int, int, str, str, float]
"""Start and end in the text, new text, kind of change, cost."""

BUILT_IN_GO = ("len", "string", "int")
BUILT_IN_JAVASCRIPT = ("Boolean", "String", "Number")


def logical_sign(node: Node) -> str:
    """Return `&&` or `||` if a binary expression has it; else an empty text."""
    sign = field(node, "operator")
    return sign.type if sign is not None and sign.type in ("&&", "||") else ""


def operands_of(node: Node, sign: str) -> list[Node]:
    """Return the operands of a chain of `&&` or of `||`, in order."""
    if node.type != "binary_expression" or logical_sign(node) != sign:
        return [node]
    sides = (field(node, "left"), field(node, "right"))
    return [operand for side in sides if side is not None for operand in operands_of(side, sign)]


def takes_one(node: Node) -> bool:
    """Return whether a node is a function with one parameter."""
    parameters = field(node, "parameters")
    if node.type not in FUNCTIONS or parameters is None:
        return node.type == "arrow_function" and field(node, "parameter") is not None
    return len(parameters.named_children) == 1


def call_of(node: Node) -> tuple[Node | None, list[Node]]:
    """Return the function that a node calls, and the arguments; None and nothing if it is no call."""
    function, given = field(node, "function"), field(node, "arguments")
    if node.type != "call_expression" or given is None:
        return None, []
    return function, given.named_children


def most_frequent(seen: Mapping[str, list[str]]) -> dict[str, frozenset[str]]:
    """Return the short names with what was seen with each, those with most of it first."""
    short = [name for name in seen if len(name) <= 40 and "\n" not in name]
    return {name: frozenset(seen[name]) for name in sorted(short, key=lambda name: -len(seen[name]))}


def identifiers(text: str) -> list[str]:
    """Return the names in a piece of code that do not stand behind a dot, in order."""
    return re.findall(r"(?<![\w$.])[A-Za-z_$][\w$]*", text)


class File:
    """A parsed file with the names and literals in it, collected once."""

    def __init__(self, tree: SyntaxTree, hints: Hints) -> None:
        self.tree = tree
        self.hints = hints
        self.nil = "nil" if tree.is_go else "null"

    @cached_property
    def _names(self) -> dict[int, dict[str, int]]:
        """The variables that each function uses, by the function's first byte: the name, and its first line."""
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for node in self.tree.nodes():
            if node.type in NAMES and not is_field(node, "function", "constructor"):
                function = function_of(node)
                while function is not None:
                    found[function.start_byte].setdefault(self.tree.text_of(node), line_of(node))
                    function = function_of(function)
        return found

    def names(self, node: Node) -> list[str]:
        """Return the variables of the function around a node, those whose first use is nearest first."""
        function = function_of(node)
        known = self._names.get(function.start_byte, {}) if function is not None else {}
        return sorted(known, key=lambda name: (abs(known[name] - line_of(node)), name))

    @cached_property
    def outer_names(self) -> frozenset[str]:
        """The variables outside of functions, and the packages of Go, which each function can use."""
        found = set[str]()
        for node in self.tree.nodes():
            if node.type == "import_spec":
                found.add(re.sub(r".*/|\W", "", self.tree.text_of(node)))
            elif node.type in NAMES and function_of(node) is None:
                found.add(self.tree.text_of(node))
        return frozenset(found)

    def known(self, node: Node) -> frozenset[str]:
        """Return the variables that code at a node can use."""
        return frozenset(self.names(node)) | self.outer_names

    @cached_property
    def statements(self) -> list[tuple[int, str, frozenset[str]]]:
        """The short statements of the file: the line, the text, and the names in it."""
        found = list[tuple[int, str, frozenset[str]]]()
        for node in self.tree.nodes():
            if node.type in STATEMENTS and not is_field(node, "initializer", "update", "increment"):
                text = self.tree.text_of(node)
                if len(text) <= 80 and "\n" not in text:
                    found.append((line_of(node), text, frozenset(identifiers(text))))
        return found

    def statements_near(self, line: int) -> list[tuple[int, str, frozenset[str]]]:
        """Return the short statements, those that are frequent and near to a line first."""
        often = Counter(text for _, text, _ in self.statements)
        return sorted(self.statements, key=lambda one: abs(one[0] - line) / often[one[1]])

    @cached_property
    def partners(self) -> dict[str, Counter[tuple[str, str]]]:
        """The operands that stand beside an operand of `&&` or `||`, each with this sign, by the operand's text."""
        found = defaultdict[str, Counter[tuple[str, str]]](Counter)
        for node in self.tree.nodes():
            if node.type == "binary_expression" and (sign := logical_sign(node)):
                operands = [self.tree.text_of(one) for one in operands_of(node, sign)]
                for one in operands:
                    found[one].update((other, sign) for other in operands if other != one)
        return found

    @cached_property
    def functions_of_one(self) -> dict[str, frozenset[str]]:
        """The functions that are called with one argument, the most frequent first, with these arguments."""
        built_in = BUILT_IN_GO if self.tree.is_go else BUILT_IN_JAVASCRIPT
        seen = defaultdict[str, list[str]](list, {name: [] for name in built_in})
        for node in self.tree.nodes():
            name, (function, arguments) = field(node, "name"), call_of(node)
            if name is not None and takes_one(field(node, "value") or node):
                seen[self.tree.text_of(name)] += ()
            if function is not None and len(arguments) == 1:
                seen[self.tree.text_of(function)].append(self.tree.text_of(arguments[0]))
        return most_frequent(seen)

    @cached_property
    def methods_of_none(self) -> dict[str, frozenset[str]]:
        """The methods that are called without arguments, the most frequent first, with the values before the dot."""
        seen = defaultdict[str, list[str]](list)
        for function, arguments in map(call_of, self.tree.nodes()):
            if function is None or arguments:
                continue
            before, method = before_dot(function), field(function, "property") or field(function, "field")
            if before is not None and method is not None:
                seen[self.tree.text_of(method)].append(self.tree.text_of(before))
        return most_frequent(seen)

    @cached_property
    def ends_of_texts(self) -> list[str]:
        """The last characters of the file's texts, the most frequent first."""
        last = Counter(text[-2] for text in self.strings if len(text) > 2)
        return [character for character, _ in last.most_common() if character not in "\\\"'`"]

    @cached_property
    def conditions(self) -> dict[str, frozenset[str]]:
        """The short conditions of the file without `&&` and `||`, with the names in each."""
        nodes = (
            node for node in self.tree.nodes() if node.is_named and node.type != "parenthesized_expression"
        )
        texts = (self.tree.text_of(node) for node in nodes if is_condition(node))
        short = (text for text in texts if len(text) <= 60 and not re.search(r"&&|\|\||\n", text))
        return {text: frozenset(re.findall(r"[A-Za-z_$][\w$]*", text)) for text in short}

    def conditions_like(self, node: Node) -> list[str]:
        """Return other conditions of the file whose names occur around a condition, those with most names first."""
        text = self.tree.text_of(node)
        words = set(re.findall(r"[A-Za-z_$][\w$]*", text))
        known = {*words, *self.names(node)}
        shared = {
            other: len(words & names)
            for other, names in self.conditions.items()
            if other not in text and words & names and not names & self.all_names - known
        }
        return sorted(shared, key=lambda other: (-shared[other], len(other), other))[:MOST_NAMES]

    @cached_property
    def all_names(self) -> frozenset[str]:
        """The variables of all functions."""
        return frozenset(name for names in self._names.values() for name in names)

    @cached_property
    def called(self) -> list[str]:
        """The names of called functions, the most frequent first."""
        calls = (field(node, "function") for node in self.tree.nodes() if node.type == "call_expression")
        names = (self.tree.text_of(name) for name in calls if name is not None and name.type == "identifier")
        return [name for name, _ in Counter(names).most_common()]

    @cached_property
    def fields(self) -> dict[str, list[str]]:
        """The names behind a dot by the text before it, and all of them by an empty text."""
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for node in self.tree.nodes():
            if node.type in FIELDS and node.parent is not None:
                before = before_dot(node.parent)
                if before is not None:
                    found[self.tree.text_of(before)][self.tree.text_of(node)] = None
                    found[""][self.tree.text_of(node)] = None
        return {before: list(names) for before, names in found.items()}

    @cached_property
    def strings(self) -> list[str]:
        """The texts of the file's short string literals, in order."""
        texts = (self.tree.text_of(node) for node in self.tree.nodes() if node.type in STRINGS)
        return list(dict.fromkeys(text for text in texts if len(text) <= 40))


Rewrite = tuple[frozenset[str], Callable[[File, "Node"], Iterator[Change]]]
"""Types of nodes (none: all), and an operator for one node of these types."""
