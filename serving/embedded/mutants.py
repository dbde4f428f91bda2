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
    indexing,
    logic,
    missing,
    moves,
    names,
)
from m3agent.serving.embedded.operators.base import Expression, Hints, Mutation, Place, Whole
from m3agent.serving.embedded.scope import Kinds, Module, Scope
from m3agent.serving.embedded.source import ATOM, FUNCTIONS, Edit, Function, SourceFile, bound
from m3agent.serving.embedded.wellformed import Checker

ON_EXPRESSIONS: tuple[Expression, ...] = (
    logic.comparisons,
    logic.booleans,
    logic.conditions,
    arithmetic.operators,
    arithmetic.signs,
    arithmetic.offsets,
    constants.literals,
    constants.formats,
    names.variables,
    names.attributes,
    names.self_missing,
    names.unwrapped,
    names.fragments,
    calls.siblings,
    calls.arguments,
    calls.wrappers,
    calls.awaits,
    indexing.indices,
    indexing.slices,
    containers.order,
    containers.shared,
)

ON_STATEMENTS: tuple[Whole, ...] = (
    flow.assignments,
    flow.jumps,
    flow.branches,
    flow.exceptions,
    moves.deletions,
    moves.moves,
    moves.dedents,
    moves.indents,
    missing.guards,
    missing.refusals,
    missing.updates,
    missing.returns,
    missing.attributes,
    missing.definitions,
    containers.entries,
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

    Args:
        path: Path of the module.
        text: Its text.
        suspects: Lines and their suspicion; a statement without such a line of its own is not changed.
        kinds: Types of values seen at run time.
        hints: Facts from the issue and the tests.
        most: Number of mutations to return; None for all.
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
            for text, kind, cost in operator(place, node):
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
