"""A Python source text with its syntax tree, exact spans, and the surroundings of each node."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from m3agent.util.python_ast import parse

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "orelse", "finalbody")
NESTED = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes that stand below a statement, not in it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Edit:
    """Replace the characters from ``start`` to ``end`` of a source with ``text``."""

    start: int
    end: int
    text: str


def splice(text: str, edits: tuple[Edit, ...]) -> str:
    """Return `text` with `edits` applied; they must not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


OR, AND, NOT, COMPARISON, BIT_OR, UNARY, POWER, ATOM = 1, 2, 3, 4, 5, 11, 12, 14
"""How tightly an expression binds (as in the language reference); 0 is ``lambda`` and conditional expressions."""

BINDING: dict[type[ast.operator], int] = {
    ast.BitOr: BIT_OR,
    ast.BitXor: 6,
    ast.BitAnd: 7,
    **dict.fromkeys((ast.LShift, ast.RShift), 8),
    **dict.fromkeys((ast.Add, ast.Sub), 9),
    **dict.fromkeys((ast.Mult, ast.MatMult, ast.Div, ast.FloorDiv, ast.Mod), 10),
    ast.Pow: POWER,
}


@lru_cache(maxsize=50_000)
def binding(text: str) -> int:
    """Return how tightly the expression `text` binds; -1 if it is not an expression."""
    try:
        node = parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return -1
    match node:
        case ast.BinOp():
            return BINDING[type(node.op)]
        case ast.BoolOp():
            return OR if isinstance(node.op, ast.Or) else AND
        case ast.UnaryOp():
            return NOT if isinstance(node.op, ast.Not) else UNARY
        case ast.Compare():
            return COMPARISON
        case ast.Await():
            return ATOM - 1
        case ast.IfExp() | ast.Lambda() | ast.NamedExpr() | ast.Yield() | ast.YieldFrom() | ast.Starred():
            return 0
        case ast.Tuple() | ast.GeneratorExp():
            return ATOM if text.startswith("(") else 0
        case ast.Constant():
            return ATOM - 1 if text[:1].isdigit() else ATOM
        case _:
            return ATOM


def bound(text: str, least: int) -> str:
    """Return `text`, in parentheses if it binds less tightly than `least`."""
    return text if binding(text) >= least else f"({text})"


def first_line(statement: ast.stmt) -> int:
    """Return the line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(statement: ast.stmt) -> int:
    """Return the line on which a statement ends."""
    return statement.end_lineno or statement.lineno


class SourceFile:
    """A parsed source text.

    Raises:
        SyntaxError: The text is not Python, or uses bare carriage returns.
        ValueError: The text contains null bytes.
    """

    def __init__(self, path: str, text: str) -> None:
        if "\r" in text.replace("\r\n", ""):
            raise SyntaxError("bare carriage returns")
        self.path = path
        self.text = text
        self.tree = parse(text)
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.parents: dict[ast.AST, ast.AST] = {
            child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)
        }

    def offset(self, line: int, column: int) -> int:
        """Return the character offset of a line (from 1) and a column in UTF-8 bytes, as in syntax trees."""
        text = self._lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the start and end offsets of a statement or expression."""
        assert isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword | ast.alias | ast.excepthandler)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.AST) -> str:
        """Return the text of `node`."""
        start, end = self.span(node)
        return self.text[start:end]

    def line_start(self, line: int) -> int:
        """Return the offset at which `line` begins (from 1; one past the last line: the end of the text)."""
        return min(self._starts[line - 1], len(self.text))

    def indent(self, line: int) -> str:
        """Return the white space at the beginning of `line`."""
        text = self._lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    @cached_property
    def newline(self) -> str:
        """The line ending of this file."""
        return "\r\n" if "\r\n" in self.text else "\n"

    @cached_property
    def unit(self) -> str:
        """One level of indentation in this file."""
        for node in ast.walk(self.tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.If, ast.For)):
                outer, inner = self.indent(node.lineno), self.indent(node.body[0].lineno)
                if inner.startswith(outer) and len(inner) > len(outer):
                    return inner[len(outer) :]
        return "    "

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        """Return the innermost function that contains `node` in its body, not in its header."""
        below = node
        for above in self.ancestors(node):
            if isinstance(above, FUNCTIONS) and any(below is statement for statement in above.body):
                return above
            below = above
        return None

    def functions(self, node: ast.AST) -> list[Function]:
        """Return the functions around `node`, innermost first."""
        current = self.function(node)
        return [] if current is None else [current, *self.functions(current)]

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class that contains `node`."""
        return next((above for above in self.ancestors(node) if isinstance(above, ast.ClassDef)), None)

    def statements(self) -> Iterator[ast.stmt]:
        """Yield every statement, in the order of the text."""
        unordered = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        yield from sorted(unordered, key=lambda node: (node.lineno, node.col_offset))

    def position(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """Return the block that contains `statement`, and its index in that."""
        parent = self.parents.get(statement)
        for name in BLOCKS:
            block = getattr(parent, name, None)
            for index, other in enumerate(block if isinstance(block, list) else ()):
                if statement is other:
                    return block or [], index
        return [statement], 0

    def own_lines(self, statement: ast.stmt) -> tuple[int, int] | None:
        """Return the offsets of the lines of `statement`; None if it shares them with other code."""
        first = first_line(statement)
        start, end = self.line_start(first), self.line_start(last_line(statement) + 1)
        begin = self.offset(first, 0) + len(self.indent(first))
        if self.span(statement)[0] > begin and first == statement.lineno:
            return None
        if self.text.startswith("elif", begin):
            return None  # a branch of the statement above, which cannot be moved or preceded by a statement
        rest = self.text[self.span(statement)[1] : end].strip()
        return None if rest and not rest.startswith("#") else (start, end)

    def header(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the first and last line of the statement itself, without nested blocks."""
        body: list[ast.stmt] = getattr(statement, "body", [])
        last = max(statement.lineno, first_line(body[0]) - 1) if body else last_line(statement)
        return first_line(statement), last

    def expressions(self, statement: ast.stmt) -> list[ast.expr]:
        """Return the expressions of the statement itself, without those of nested statements."""
        pending: list[ast.AST] = [statement]
        for node in pending:  # it grows
            pending += (child for child in ast.iter_child_nodes(node) if not isinstance(child, NESTED))
        return [node for node in pending if isinstance(node, ast.expr)]

    def needed(self, node: ast.AST) -> int:
        """Return how tightly an expression must bind to replace `node` without parentheses."""
        parent = self.parents.get(node)
        match parent:
            case ast.BinOp(op=ast.Pow()):
                return POWER + 1 if parent.left is node else UNARY
            case ast.BinOp():
                return BINDING[type(parent.op)] + (parent.right is node)
            case ast.UnaryOp():
                return NOT if isinstance(parent.op, ast.Not) else UNARY
            case ast.BoolOp():
                return OR + 1 if isinstance(parent.op, ast.Or) else AND + 1
            case ast.Compare() | ast.Starred():
                return BIT_OR
            case (
                ast.Attribute(value=base)
                | ast.Await(value=base)
                | ast.Subscript(value=base)
                | ast.Call(func=base)
            ):
                return ATOM if base is node else 0
            case ast.IfExp():
                return 0 if parent.orelse is node else OR
            case ast.comprehension():
                return OR
            case _:
                return 0

    def parenthesised(self, node: ast.AST, text: str) -> str:
        """Return `text`, in parentheses if it would otherwise change its meaning at `node`."""
        start, end = self.span(node)
        if self.text[start - 1 : start] == "(" and self.text[end : end + 1] == ")":
            return text
        return bound(text, self.needed(node))


def names_in(node: ast.AST) -> set[str]:
    """Return the identifiers `node` reads or writes."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of nested functions."""
    pending = list(ast.iter_child_nodes(function))
    for node in pending:  # it grows
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, in order."""
    given = function.args
    every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
    return [argument.arg for argument in every if argument is not None]


def own_parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters without ``self`` and ``cls``, in order."""
    return [name for name in parameters(function) if name not in ("self", "cls")]


@lru_cache(maxsize=256)
def signatures(text: str) -> frozenset[tuple[str, ...]]:
    """Return the name of each function and class of a source, and the parameters of its call in order."""
    calls: set[tuple[str, ...]] = set()
    for node in ast.walk(parse(text)):
        if isinstance(node, FUNCTIONS):
            calls.add((node.name, *own_parameters(node)))
        elif isinstance(node, ast.ClassDef):
            fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
            calls.add((node.name, *(target.id for target in fields if isinstance(target, ast.Name))))
            starts = (part for part in node.body if isinstance(part, FUNCTIONS) and part.name == "__init__")
            calls.update((node.name, *own_parameters(part)) for part in starts)
    return frozenset(calls)
