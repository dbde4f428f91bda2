"""Delete, repeat or move statements, or change their indentation."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Mutation, Place
from m3agent.serving.embedded.operators.layout import (
    first_line,
    has_long_strings,
    last_line,
    lines_text,
    own_lines,
    reindented,
    siblings_of,
)
from m3agent.serving.embedded.source import BLOCKS, FUNCTIONS, Edit


def _movable(statement: ast.stmt) -> bool:
    return not isinstance(
        statement, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
    )


def _docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def deletions(place: Place) -> Iterator[Mutation]:
    """Propose to delete or repeat the statement."""
    source, statement = place.source, place.statement
    span = own_lines(source, statement)
    if span is None or not _movable(statement) or _docstring(statement) or isinstance(statement, ast.Pass):
        return
    if len(siblings_of(source, statement)) == 1:
        start, end = source.span(statement)
        yield Mutation((Edit(start, end, "pass"),), statement.lineno, "statement deleted", 3.8)
    else:
        yield Mutation((Edit(*span, ""),), statement.lineno, "statement deleted", 3.4)
    if isinstance(statement, ast.If | ast.While | ast.With) and not has_long_strings(statement):
        orelse = getattr(statement, "orelse", [])
        if not orelse and own_lines(source, statement.body[0]) is not None:
            start = source.line_start(first_line(statement.body[0]))
            body = lines_text(source, start, span[1])
            text = reindented(
                source, body, source.indent(statement.body[0].lineno), source.indent(statement.lineno)
            )
            yield Mutation((Edit(*span, text),), statement.lineno, "condition removed", 4.2)
    if not isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
        text = lines_text(source, *span)
        yield Mutation((Edit(span[1], span[1], text),), statement.lineno, "statement repeated", 4.8)


def moves(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement before or after its neighbours."""
    source, statement = place.source, place.statement
    block = siblings_of(source, statement)
    index = next((at for at, other in enumerate(block) if other is statement), 0)
    mine = own_lines(source, statement)
    if mine is None or not _movable(statement) or _docstring(statement):
        return
    for distance, cost in ((1, 2.2), (2, 3.2), (3, 3.6)):
        for target in (index - distance, index + distance):
            if not 0 <= target < len(block) or _docstring(block[target]) or not _movable(block[target]):
                continue
            if distance == 1 and target < index:
                continue  # same as moving the neighbour down
            theirs = own_lines(source, block[target])
            if theirs is None:
                continue
            text = lines_text(source, *mine)
            at = theirs[0] if target < index else theirs[1]
            yield Mutation((Edit(*mine, ""), Edit(at, at, text)), statement.lineno, "statement moved", cost)


def dedents(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement, and those after it in its block, out of the block that they end."""
    source, statement = place.source, place.statement
    parent = source.parents.get(statement)
    while isinstance(parent, ast.excepthandler):
        parent = source.parents.get(parent)
    block = siblings_of(source, statement)
    if (
        not isinstance(parent, ast.stmt)
        or isinstance(parent, (*FUNCTIONS, ast.ClassDef))
        or block[0] is statement
    ) and not (
        isinstance(parent, ast.If | ast.For | ast.While) and block[0] is statement and len(block) == 1
    ):
        return
    if last_line(parent) != last_line(block[-1]) or has_long_strings(statement) or not _movable(statement):
        return
    mine = own_lines(source, statement)
    if mine is None:
        return
    end = source.line_start(last_line(parent) + 1)
    old, new = source.indent(first_line(statement)), source.indent(parent.lineno)
    text = reindented(source, lines_text(source, mine[0], end), old, new)
    if block[0] is statement:
        text = f"{old}pass{source.newline}{text}"
    yield Mutation((Edit(mine[0], end, text),), statement.lineno, "dedent", 1.8)
    # Further out, if a second block ends here too.
    outer = source.parents.get(parent)
    if isinstance(outer, ast.For | ast.While | ast.If | ast.With) and last_line(outer) == last_line(parent):
        text = reindented(source, lines_text(source, mine[0], end), old, source.indent(outer.lineno))
        if block[0] is not statement:
            yield Mutation((Edit(mine[0], end, text),), statement.lineno, "dedent", 2.6)


def indents(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement into the block that ends directly before it."""
    source, statement = place.source, place.statement
    block = siblings_of(source, statement)
    index = next((at for at, other in enumerate(block) if other is statement), 0)
    mine = own_lines(source, statement)
    if index == 0 or mine is None or not _movable(statement) or has_long_strings(statement):
        return
    before: ast.stmt | None = block[index - 1]
    cost = 2.0
    while isinstance(before, ast.For | ast.While | ast.If | ast.With | ast.Try):
        inner = _last_block(before)
        if own_lines(source, inner[-1]) is None:
            return
        old, new = source.indent(first_line(statement)), source.indent(first_line(inner[-1]))
        text = reindented(source, lines_text(source, *mine), old, new)
        if index + 1 < len(block) or not isinstance(statement, ast.Return):
            yield Mutation((Edit(*mine, text),), statement.lineno, "indent", cost)
        else:
            yield Mutation((Edit(*mine, text),), statement.lineno, "indent", cost + 1.4)
        if index + 2 == len(block) and own_lines(source, block[-1]) and not has_long_strings(block[-1]):
            end = source.line_start(last_line(block[-1]) + 1)
            both = reindented(source, lines_text(source, mine[0], end), old, new)
            yield Mutation((Edit(mine[0], end, both),), statement.lineno, "indent", cost + 1.0)
        before = inner[-1]
        cost += 0.8


def _last_block(statement: ast.stmt) -> list[ast.stmt]:
    for name in reversed(BLOCKS):
        block = getattr(statement, name, None)
        if block:
            return list(block)
    return [statement]
