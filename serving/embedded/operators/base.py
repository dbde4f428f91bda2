"""Input and output types of the operators."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from m3agent.serving.embedded.scope import Module, Scope
from m3agent.serving.embedded.source import Edit, SourceFile


@dataclass(frozen=True)
class Hints:
    """Facts from outside the code.

    Attributes:
        numbers: Numbers in the issue.
        strings: Texts that the issue quotes.
        words: Words of the issue that look like identifiers.
        errors: Exceptions that ended tests.
        expected: Exceptions that tests expected and did not get.
    """

    numbers: tuple[int | float, ...] = ()
    strings: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Alternative:
    """Another text for an expression.

    Attributes:
        text: The new text.
        operator: Name of the kind of change.
        cost: Smaller for a more ordinary mistake; about -log of its share.
    """

    text: str
    operator: str
    cost: float


@dataclass(frozen=True)
class Mutation:
    """One proposed change of a source.

    Attributes:
        edits: The changes of the text.
        line: The line that it changes.
        operator: Name of the kind of change.
        cost: Smaller for a more ordinary mistake.
    """

    edits: tuple[Edit, ...]
    line: int
    operator: str
    cost: float


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

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around `node`."""
        return self.source.parents.get(node)

    def names(self, node: ast.AST) -> list[str]:
        """Return the variables that can be read at `node`."""
        own = self.scope.comprehension_names(node)
        return own + [name for name in self.scope.before(self.statement.lineno) if name not in own]


Expression = Callable[[Place, ast.expr], Iterator[Alternative]]
"""An operator for one expression."""

Whole = Callable[[Place], Iterator[Mutation]]
"""An operator for one statement."""


def is_condition(place: Place, node: ast.expr) -> bool:
    """Tell whether `node` is the test of a branch, loop, filter or conditional expression."""
    parent = place.parent(node)
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is node
    return isinstance(parent, ast.comprehension) and any(node is test for test in parent.ifs)
