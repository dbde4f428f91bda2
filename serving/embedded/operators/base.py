"""Input and output types of the operators, and how they handle whole statements as lines of text."""

import ast
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.serving.embedded.scope import Module, Scope
from m3agent.serving.embedded.source import Edit, SourceFile, first_line
from m3agent.util.python_ast import parse

TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))
"""What the operators propose, with the costs; the file explains its rows."""

INSTEAD: dict[str, dict[str, float]] = TABLES["python"]["instead"]
"""Other operators for each of Python's operators."""

LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
"""Statements after which their block ends."""

Alternatives = Iterator[tuple[str, str, float]]
"""Other texts for an expression, each with the kind of change and its cost (see `Mutation`)."""


@dataclass(frozen=True)
class Hints:
    """Facts from outside the code."""

    numbers: tuple[int | float, ...] = ()
    """Numbers in the issue."""
    strings: tuple[str, ...] = ()
    """Texts that the issue quotes."""
    words: frozenset[str] = frozenset()
    """Words of the issue that look like identifiers."""
    errors: frozenset[str] = frozenset()
    """Exceptions that ended tests."""
    expected: frozenset[str] = frozenset()
    """Exceptions that tests expected and did not get."""
    signatures: frozenset[tuple[str, ...]] = frozenset()
    """Functions and classes of the suspected files: each one's name, then the parameters of its call."""


@dataclass(frozen=True)
class Mutation:
    """One proposed change of a source."""

    edits: tuple[Edit, ...]
    line: int
    """The line that it changes."""
    operator: str
    """Name of the kind of change."""
    cost: float
    """Smaller for a more ordinary mistake; about -log of its share."""


@dataclass(frozen=True)
class Place:
    """A statement and its context."""

    source: SourceFile
    module: Module
    scope: Scope
    statement: ast.stmt
    hints: Hints = field(default_factory=Hints)

    def text(self, node: ast.AST) -> str:
        """Return the text of `node`."""
        return self.source.segment(node)

    def texts(self, nodes: Iterable[ast.AST]) -> list[str]:
        """Return the texts of `nodes`."""
        return [self.source.segment(node) for node in nodes]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around `node`."""
        return self.source.parents.get(node)

    def is_called(self, node: ast.AST) -> bool:
        """Return whether `node` is the function of a call."""
        return getattr(self.parent(node), "func", None) is node

    def is_base(self, node: ast.AST) -> bool:
        """Return whether `node` is called, or an attribute or element of it is taken."""
        parent = self.parent(node)
        taken = isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is node
        return taken or self.is_called(node)

    def names(self, node: ast.AST) -> list[str]:
        """Return the variables that can be read at `node`."""
        own = self.scope.comprehension_names(node)
        return own + [name for name in self.scope.before(self.statement.lineno) if name not in own]

    def others(self, node: ast.AST) -> list[str]:
        """Return the variables that can be read at `node`, without `node` itself."""
        text = self.text(node)
        return [name for name in self.names(node) if name != text]

    def names_of(self, node: ast.AST, *kinds: str, unknown: bool = True) -> list[str]:
        """Return the variables of these types that can be read at `node`, with `unknown` also those of unknown type."""
        usual = set(kinds) if unknown else set[str]()
        return [name for name in self.names(node) if (self.scope.kinds(name) or usual).intersection(kinds)]

    def unread(self, name: str, bonus: float) -> float:
        """Return what a variable saves: `bonus` if no code reads it, so that it may be the missing one."""
        return bonus if name in self.scope.unread else 0.0

    def change(self, operator: str, cost: float, *edits: Edit, line: int = 0) -> Mutation:
        """Return a mutation of the statement, or of another line."""
        return Mutation(edits, line or self.statement.lineno, operator, cost)

    def replaced(self, code: str, operator: str, cost: float) -> Mutation:
        """Return the mutation that replaces the whole statement with `code`."""
        return self.change(operator, cost, Edit(*self.source.span(self.statement), code))

    def inserted(self, code: str, operator: str, cost: float, *, after: bool = False) -> Iterator[Mutation]:
        """Insert `code`, which tabs indent, before or after the statement, if that is possible."""
        source = self.source
        span = source.own_lines(self.statement)
        if span is None:
            return
        indent = source.indent(first_line(self.statement))
        lines = code.replace("\t", source.unit).split("\n")
        text = "".join(f"{indent}{line}{source.newline}" for line in lines)
        at = span[after]
        if after and at == len(source.text) and not source.text.endswith("\n"):
            text = source.newline + text
        yield self.change(operator, cost, Edit(at, at, text))


Expression = Callable[[Place, Any], Alternatives]
"""An operator for one expression of the types that its annotation of `node` names."""

Whole = Callable[[Place], Iterator[Mutation]]
"""An operator for one statement."""


def is_condition(place: Place, node: ast.expr) -> bool:
    """Tell whether `node` is the test of a branch, loop, filter or conditional expression."""
    parent = place.parent(node)
    if isinstance(parent, ast.comprehension):
        return any(node is test for test in parent.ifs)
    return isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert) and parent.test is node


def is_stored(node: ast.AST) -> bool:
    """Tell whether `node` is the target of an assignment."""
    return isinstance(getattr(node, "ctx", None), ast.Store)


def is_read(node: ast.AST) -> bool:
    """Tell whether `node` is neither the target of an assignment nor deleted."""
    return not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is only a constant, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def swapped(items: list[str]) -> Iterator[list[str]]:
    """Yield the items with each two neighbours in the other order."""
    for at in range(len(items) - 1):
        yield [*items[:at], items[at + 1], items[at], *items[at + 2 :]]


def shortened(items: list[str]) -> Iterator[list[str]]:
    """Yield the items without each of them."""
    for at in range(len(items)):
        yield items[:at] + items[at + 1 :]


def operator_of(example: str) -> type[Any]:
    """Return the type of the operator or comparison in an example, such as `a + b`."""
    match parse(example, mode="eval").body:
        case ast.BinOp(op=sign) | ast.Compare(ops=[sign]):
            return type(sign)
        case _:
            raise ValueError(example)
