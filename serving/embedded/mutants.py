"""Generate all mutations of the suspected statements of a source: well-formed, and without repetitions."""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from m3agent.serving.embedded.operators import (
    arithmetic,
    calls,
    constants,
    containers,
    flow,
    logic,
    missing,
    moves,
    names,
)
from m3agent.serving.embedded.operators.base import Expression, Hints, Mutation, Place, Whole
from m3agent.serving.embedded.scope import Kinds, Module, Scope
from m3agent.serving.embedded.source import (
    ATOM,
    FUNCTIONS,
    Edit,
    Function,
    SourceFile,
    bound,
    first_line,
    last_line,
    splice,
)
from m3agent.util.python_ast import parse

ON_EXPRESSIONS: tuple[Expression, ...] = (
    *logic.ON_EXPRESSIONS,
    *arithmetic.ON_EXPRESSIONS,
    *constants.ON_EXPRESSIONS,
    *names.ON_EXPRESSIONS,
    *calls.ON_EXPRESSIONS,
    *containers.ON_EXPRESSIONS,
)

ON_STATEMENTS: tuple[Whole, ...] = (
    *flow.ON_STATEMENTS,
    *moves.ON_STATEMENTS,
    *missing.ON_STATEMENTS,
    *containers.ON_STATEMENTS,
)

TOKEN = re.compile(r"[A-Za-z_]\w+|[<>=!]=|[<>]")
CHEAPEST = 0.6
MENTIONED = 0.8
"""Reduction of the cost of a change that adds only names and comparisons that the issue mentions."""

NEUTRAL: Mapping[str, tuple[type[ast.operator | ast.boolop], ...]] = {
    "0": (ast.Add, ast.Sub),
    "1": (ast.Mult, ast.Pow),
    "False": (ast.Or,),
    "True": (ast.And,),
}
"""The operators for which a constant has no effect."""

PAIR_PARTS = 14
PAIR_COST = 2.4
SUSPICION = 3.0
"""Weight of the suspicion beside the cost of a change.

It is the difference in rank between the most suspected line and an unsuspected one.
"""


def propose(
    path: str, text: str, suspects: Mapping[int, float], kinds: Kinds, hints: Hints, most: int | None = None
) -> list[tuple[float, Mutation]]:
    """Return ``(suspicion, mutation)`` for the best distinct, well-formed mutations, best first.

    The best have the smallest `rank`. If two operators propose the same change, the lower cost counts.
    A statement without a line in `suspects` of its own is not changed; `most` limits the number.
    """
    source = SourceFile(path, text)
    checked = Checker(source)
    proposed = (
        (score, _preferred(source, mutation, hints), statement, inside)
        for score, mutation, statement, inside in _proposed(source, suspects, kinds, hints)
    )
    found = (
        (score, mutation)
        for score, mutation, statement, inside in sorted(proposed, key=lambda one: rank(one[1].cost, one[0]))
        if (checked.accepts_inside if inside else checked.accepts)(mutation, statement)
    )
    return list(itertools.islice(found, most))


def _preferred(source: SourceFile, mutation: Mutation, hints: Hints) -> Mutation:
    """Reduce the cost of a mutation that adds what the issue writes as code."""
    if not hints.words:
        return mutation
    for edit in mutation.edits:
        new = set(TOKEN.findall(edit.text)).difference(TOKEN.findall(source.text[edit.start : edit.end]))
        if new and new <= hints.words:
            return replace(mutation, cost=max(CHEAPEST, mutation.cost - MENTIONED))
    return mutation


def rank(cost: float, suspicion: float) -> float:
    """Return the rank for trial of a change, by its cost and its line's suspicion; smaller is earlier."""
    return cost + SUSPICION * (1 - suspicion)


def _proposed(
    source: SourceFile, suspects: Mapping[int, float], kinds: Kinds, hints: Hints
) -> Iterator[tuple[float, Mutation, ast.stmt, bool]]:
    """Yield suspicion, mutation, its statement, and whether only expressions of that statement change."""
    module = Module(source)
    scopes: dict[Function | None, Scope] = {}
    for statement in source.statements():
        first, last = source.header(statement)
        score = max((suspects.get(line, 0.0) for line in range(first, last + 1)), default=0.0)
        if score <= 0:
            continue
        function = statement if isinstance(statement, FUNCTIONS) else source.function(statement)
        if function not in scopes:
            scopes[function] = Scope(module, function, kinds)
        place = Place(source, module, scopes[function], statement, hints)
        inside = list(_of_expressions(place))
        yield from ((score, mutation, statement, True) for mutation in (*inside, *_pairs(inside)))
        whole = itertools.chain.from_iterable(operator(place) for operator in ON_STATEMENTS)
        yield from ((score, mutation, statement, False) for mutation in whole)


def _of_expressions(place: Place) -> Iterator[Mutation]:
    for node in place.source.expressions(place.statement):
        for operator in ON_EXPRESSIONS:
            takes = isinstance(node, operator.__annotations__["node"])
            for text, kind, cost in operator(place, node) if takes else ():
                yield place.change(kind, cost, _edit(place, node, text), line=node.lineno)


def _edit(place: Place, node: ast.expr, text: str) -> Edit:
    """Return the edit that replaces an expression by a text. An operand without effect, as in `n - 0`, is left out."""
    source, parent = place.source, place.parent(node)
    other = _without(node, text, parent)
    if other is None or not isinstance(parent, ast.expr):
        start, end = source.span(node)
        return Edit(start, end, source.parenthesised(node, text))
    start, end = source.span(parent)
    rest = place.text(other)
    before, after = source.text[:start], source.text[end:]
    if bound(rest, ATOM) == rest and re.search(r"(?<![\w)\]])\($", before) and after.startswith(")"):
        return Edit(start - 1, end + 1, rest)  # its parentheses would be idle too
    return Edit(start, end, source.parenthesised(parent, rest))


def _without(node: ast.expr, text: str, parent: ast.AST | None) -> ast.expr | None:
    """Return the other operand if an operation gives just that once `text` is in the place of the constant `node`."""
    if not isinstance(node, ast.Constant) or not isinstance(parent, ast.BinOp | ast.BoolOp):
        return None
    operands = [parent.left, parent.right] if isinstance(parent, ast.BinOp) else parent.values
    if len(operands) != 2 or not isinstance(parent.op, NEUTRAL.get(text, ())):
        return None
    if operands[1] is node:
        return operands[0]
    return None if isinstance(parent.op, ast.Sub | ast.Pow) else operands[1]


def _pairs(mutations: Iterable[Mutation]) -> Iterator[Mutation]:
    """Yield pairs of the cheapest changes of one statement."""
    distinct: dict[Edit, Mutation] = {}
    for mutation in sorted(mutations, key=lambda mutation: mutation.cost):
        distinct.setdefault(mutation.edits[0], mutation)
    for one, other in itertools.combinations(list(distinct.values())[:PAIR_PARTS], 2):
        first, second = sorted((one.edits[0], other.edits[0]))
        if first.end <= second.start and first.end > first.start:
            cost = one.cost + other.cost + PAIR_COST
            yield Mutation((first, second), one.line, f"{one.operator} and {other.operator}", cost)


class Checker:
    """Select mutations that parse, change something and repeat no other, with as little parsing as possible."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._seen: set[tuple[int, int, str]] = set()
        self._inserted: dict[str, bool] = {}
        self._headers: dict[ast.stmt, tuple[int, int] | None] = {}

    def accepts_inside(self, mutation: Mutation, statement: ast.stmt) -> bool:
        """Tell whether `mutation`, which changes expressions of `statement`, is new and well-formed."""
        if statement not in self._headers:
            self._headers[statement] = self._header(statement)
        bounds = self._headers[statement]
        if bounds is None:
            return self.accepts(mutation, statement)
        return self._accepts_within(mutation, *bounds, statement)

    def accepts(self, mutation: Mutation, statement: ast.stmt) -> bool:
        """Tell whether `mutation` is new and well-formed; it may change the order or nesting of statements."""
        if all(edit.start == edit.end and self._stands_alone(edit.text) for edit in mutation.edits):
            # Statements are inserted between others, with the same indentation.
            return self._is_new((mutation.edits[0].start, -1, repr(mutation.edits)))
        low = min(edit.start for edit in mutation.edits)
        high = max(edit.end for edit in mutation.edits)
        return self._accepts_within(mutation, *self._around(statement, low, high), None)

    def _stands_alone(self, text: str) -> bool:
        if text not in self._inserted:
            self._inserted[text] = _dump(text) is not None
        return self._inserted[text]

    def _accepts_within(self, mutation: Mutation, start: int, end: int, header: ast.stmt | None) -> bool:
        moved = tuple(Edit(edit.start - start, edit.end - start, edit.text) for edit in mutation.edits)
        before = self._source.text[start:end]
        if (start, end, "") not in self._seen:
            self._seen |= {(start, end, ""), (start, end, _dump(self._completed(before, header)) or "")}
        changed = _dump(self._completed(splice(before, moved), header))
        return changed is not None and self._is_new((start, end, changed))

    def _is_new(self, key: tuple[int, int, str]) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _header(self, statement: ast.stmt) -> tuple[int, int] | None:
        """Return the span of the statement's own lines, or None if they are not a statement by themselves."""
        if isinstance(statement, ast.Match | ast.Try | ast.TryStar):
            return None
        body: list[ast.stmt] = getattr(statement, "body", [])
        below = bool(body) and first_line(body[0]) > statement.lineno
        last = first_line(body[0]) if below else last_line(statement) + 1
        return self._source.line_start(first_line(statement)), self._source.line_start(last)

    def _completed(self, text: str, header: ast.stmt | None) -> str:
        """Complete the lines of a header so that they parse by themselves."""
        if header is None:
            return text
        indent = text[: len(text) - len(text.lstrip(" \t"))]
        if text.startswith("elif", len(indent)):
            text = indent + text[len(indent) + 2 :]
        body: list[ast.stmt] = getattr(header, "body", [])
        if body and first_line(body[0]) > header.lineno:
            text += f"{indent}{self._source.unit}pass\n"
        return text

    def _around(self, statement: ast.stmt, low: int, high: int) -> tuple[int, int]:
        """Return the bounds of the innermost function or class around the edit, or of the whole file."""
        chain: list[ast.AST] = [statement, *self._source.ancestors(statement)]
        for node in chain:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                start = self._source.line_start(first_line(node))
                end = self._source.line_start(last_line(node) + 1)
                if start <= low and high <= end:
                    return start, end
        return 0, len(self._source.text)


def _dump(text: str) -> str | None:
    """Return the syntax tree of `text`, which may be indented, as text; None if it does not parse."""
    first = text.lstrip("\r\n")
    indented = first[:1] in (" ", "\t")
    try:
        return ast.dump(parse(f"if 1:\n{text}" if indented else text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
