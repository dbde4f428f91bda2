"""What an operator sees and what it proposes."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from m3agent.serving.embedded.scope import Module, Scope
from m3agent.serving.embedded.source import Edit, Source


@dataclass(frozen=True)
class Hints:
    """What is known beside the code.

    numbers, strings, words: of the issue: numbers, quoted texts, and what looks like an identifier.
    errors: the exceptions that tests ended in; expected: those that tests wanted and did not get.
    """

    numbers: tuple[int | float, ...] = ()
    strings: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Alternative:
    """Another text for an expression. `cost` is smaller the more ordinary the mistake; about -log of its share."""

    text: str
    operator: str
    cost: float


@dataclass(frozen=True)
class Mutation:
    """One proposed change of a source: edits, the line it is about, the operator's name and its cost."""

    edits: tuple[Edit, ...]
    line: int
    operator: str
    cost: float


@dataclass(frozen=True)
class Place:
    """A statement and what surrounds it."""

    source: Source
    module: Module
    scope: Scope
    statement: ast.stmt
    hints: Hints = field(default_factory=Hints)

    def text(self, node: ast.AST) -> str:
        """Return the text of `node`."""
        return self.source.segment(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around `node`."""
        return self.source.parents.get(node)

    def names(self, node: ast.AST) -> list[str]:
        """Return the variables that can be read in the place of `node`."""
        own = self.scope.comprehension_names(node)
        return own + [name for name in self.scope.before(self.statement.lineno) if name not in own]


Expression = Callable[[Place, ast.expr], Iterator[Alternative]]
"""An operator on one expression."""

Whole = Callable[[Place], Iterator[Mutation]]
"""An operator on one statement."""


def is_condition(place: Place, node: ast.expr) -> bool:
    """Tell whether `node` decides something: the test of a branch, loop, filter or conditional expression."""
    parent = place.parent(node)
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is node
    return isinstance(parent, ast.comprehension) and any(node is test for test in parent.ifs)
