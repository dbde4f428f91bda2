"""All mutations of the suspected statements of a source: proposed by the operators, checked, free of repeats."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping

from m3agent.serving.embedded.operators import (
    arithmetic,
    calls,
    constants,
    flow,
    indexing,
    logic,
    missing,
    moves,
    names,
)
from m3agent.serving.embedded.operators.base import Expression, Hints, Mutation, Place, Whole
from m3agent.serving.embedded.operators.layout import first_line
from m3agent.serving.embedded.scope import Kinds, Module, Scope
from m3agent.serving.embedded.source import FUNCTIONS, Edit, Function, Source, splice

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
    flow.tuples,
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
    missing.updates,
    missing.returns,
    missing.attributes,
    missing.definitions,
)

PAIR_PARTS = 14
PAIR_COST = 2.4


def propose(
    source: Source, suspects: Mapping[int, float], kinds: Kinds, hints: Hints
) -> list[tuple[float, Mutation]]:
    """Return ``(suspicion, mutation)`` for every distinct, well-formed mutation, single edits before pairs.

    `suspects` maps lines to suspicion; statements none of whose own lines is in it are left alone.
    """
    module = Module(source)
    scopes: dict[Function | None, Scope] = {}
    found: list[tuple[float, Mutation]] = []
    checked = Checker(source)
    single: list[tuple[float, list[Mutation]]] = []
    for statement in source.statements():
        first, last = source.header(statement)
        score = max((suspects.get(line, 0.0) for line in range(first, last + 1)), default=0.0)
        if score <= 0:
            continue
        function = statement if isinstance(statement, FUNCTIONS) else source.function(statement)
        if function not in scopes:
            scopes[function] = Scope(module, function, kinds)
        place = Place(source, module, scopes[function], statement, hints)
        # Where two operators propose the same, it is as ordinary as the more ordinary of the two.
        ranked = sorted(_of_statement(place), key=lambda mutation: mutation.cost)
        kept = [mutation for mutation in ranked if checked.accepts(mutation)]
        found += [(score, mutation) for mutation in kept]
        single.append((score, kept))
    for score, kept in single:
        pairs = _pairs(kept)
        found += [(score, mutation) for mutation in pairs if checked.accepts(mutation)]
    return found


def _of_statement(place: Place) -> Iterator[Mutation]:
    for node in place.source.expressions(place.statement):
        start, end = place.source.span(node)
        for operator in ON_EXPRESSIONS:
            for other in operator(place, node):
                text = place.source.parenthesised(node, other.text)
                yield Mutation((Edit(start, end, text),), node.lineno, other.operator, other.cost)
    for whole in ON_STATEMENTS:
        yield from whole(place)


def _pairs(mutations: Iterable[Mutation]) -> Iterator[Mutation]:
    """Yield pairs of the most ordinary changes of one statement."""
    ranked = sorted((m for m in mutations if len(m.edits) == 1), key=lambda mutation: mutation.cost)[
        :PAIR_PARTS
    ]
    for one, other in itertools.combinations(ranked, 2):
        first, second = sorted((one.edits[0], other.edits[0]))
        if first.end <= second.start and first.end > first.start:
            cost = one.cost + other.cost + PAIR_COST
            yield Mutation((first, second), one.line, f"{one.operator} and {other.operator}", cost)


class Checker:
    """Refuses mutations that do not parse, change nothing, or repeat another."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: set[tuple[int, str]] = set()
        self._before: dict[int, str] = {}
        tops = source.tree.body
        self._bounds = [
            (source.line_start(first_line(node)), source.line_start((node.end_lineno or 1) + 1))
            for node in tops
        ]

    def accepts(self, mutation: Mutation) -> bool:
        """Tell whether `mutation` is a new, well-formed change."""
        low = min(edit.start for edit in mutation.edits)
        high = max(edit.end for edit in mutation.edits)
        inside = [index for index, (start, end) in enumerate(self._bounds) if start <= high and low <= end]
        start, end = self._bounds[inside[0]][0], self._bounds[inside[-1]][1]
        start, end = self._narrow(start, end, low, high)
        moved = tuple(Edit(edit.start - start, edit.end - start, edit.text) for edit in mutation.edits)
        text = splice(self._source.text[start:end], moved)
        changed = _dump(text)
        if changed is None:
            return False
        if start not in self._before:
            self._before[start] = _dump(self._source.text[start:end]) or ""
        if changed == self._before[start] or (start, changed) in self._seen:
            return False
        self._seen.add((start, changed))
        return True

    def _narrow(self, start: int, end: int, low: int, high: int) -> tuple[int, int]:
        """Return the bounds of the method around the edit when a class holds it, to parse less."""
        for node in self._source.tree.body:
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    begin = self._source.line_start(first_line(item))
                    stop = self._source.line_start((item.end_lineno or 1) + 1)
                    if begin < low and high < stop and isinstance(item, FUNCTIONS):
                        return begin, stop
        return start, end


def _dump(text: str) -> str | None:
    indented = text[:1] in " \t"
    try:
        return ast.dump(ast.parse(f"if 1:\n{text}" if indented else text))
    except (SyntaxError, ValueError, RecursionError):
        return None
