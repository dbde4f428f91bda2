"""Delete, repeat or move statements, or change their indentation."""

import ast
from collections.abc import Iterator, Sequence

from m3agent.serving.embedded.operators.base import LEAVING, Mutation, Place, is_text
from m3agent.serving.embedded.source import BLOCKS, FUNCTIONS, Edit, SourceFile, first_line, last_line

FIXED = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
"""Statements that stay where they are."""


def lines_text(source: SourceFile, start: int, end: int) -> str:
    """Return the lines of a span, always with a line ending at the end."""
    text = source.text[start:end]
    return text if text.endswith("\n") else text + source.newline


def reindented(text: str, old: str, new: str) -> str:
    """Return `text` with the indentation `old` of its lines replaced by `new`."""
    lines = text.splitlines(keepends=True)
    return "".join(
        new + line[len(old) :] if line.startswith(old) and line.strip() else line for line in lines
    )


def has_long_strings(statement: ast.stmt) -> bool:
    """Tell whether a string in `statement` spans several lines, so that moving the lines would change it."""
    strings = (node for node in ast.walk(statement) if isinstance(node, ast.Constant | ast.JoinedStr))
    return any(node.end_lineno != node.lineno for node in strings)


def deletions(place: Place) -> Iterator[Mutation]:
    """Propose to delete or repeat the statement."""
    source, statement = place.source, place.statement
    span = source.own_lines(statement)
    if span is None or isinstance(statement, (*FIXED, ast.Pass)) or is_text(statement):
        return
    if len(source.position(statement)[0]) == 1:
        yield place.replaced("pass", "statement deleted", 3.8)
    else:
        yield place.change("statement deleted", 3.4, Edit(*span, ""))
    if isinstance(statement, ast.If | ast.While | ast.With) and not has_long_strings(statement):
        inner = statement.body[0]
        if not getattr(statement, "orelse", []) and source.own_lines(inner) is not None:
            body = lines_text(source, source.line_start(first_line(inner)), span[1])
            text = reindented(body, source.indent(inner.lineno), source.indent(statement.lineno))
            yield place.change("condition removed", 4.2, Edit(*span, text))
    if not isinstance(statement, LEAVING):
        yield place.change("statement repeated", 4.8, Edit(span[1], span[1], lines_text(source, *span)))


def moves(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement before or after its neighbours."""
    source, statement = place.source, place.statement
    block, index = source.position(statement)
    mine = source.own_lines(statement)
    if mine is None or isinstance(statement, FIXED) or is_text(statement):
        return
    # Moving it up by one is the same as moving the neighbour down.
    for distance, cost in ((1, 2.2), (-2, 3.2), (2, 3.2), (-3, 3.6), (3, 3.6)):
        target = index + distance
        if 0 <= target < len(block) and not is_text(block[target]) and not isinstance(block[target], FIXED):
            theirs = source.own_lines(block[target])
            if theirs is not None:
                at = theirs[distance > 0]
                moved = Edit(at, at, lines_text(source, *mine))
                yield place.change("statement moved", cost, Edit(*mine, ""), moved)


def dedents(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement, and those after it in its block, out of the block that they end."""
    source, statement = place.source, place.statement
    parent = place.parent(statement)
    while isinstance(parent, ast.excepthandler):
        parent = place.parent(parent)
    block, index = source.position(statement)
    mine = source.own_lines(statement)
    if mine is None or not isinstance(parent, ast.stmt) or not _may_leave(statement, parent, block):
        return
    end = source.line_start(last_line(parent) + 1)
    lines, old = lines_text(source, mine[0], end), source.indent(first_line(statement))
    left = "" if index else f"{old}pass{source.newline}"
    targets = [(parent, 1.8)]
    # Further out, if a second block ends here too.
    outer = place.parent(parent) if index else None
    if isinstance(outer, ast.For | ast.While | ast.If | ast.With) and last_line(outer) == last_line(parent):
        targets.append((outer, 2.6))
    for target, cost in targets:
        text = left + reindented(lines, old, source.indent(target.lineno))
        yield place.change("dedent", cost, Edit(mine[0], end, text))


def _may_leave(statement: ast.stmt, parent: ast.stmt, block: Sequence[ast.stmt]) -> bool:
    """Return whether a statement of a block may stand behind the statement that has the block, and ends with it."""
    if (
        isinstance(parent, (*FUNCTIONS, ast.ClassDef))
        or isinstance(statement, FIXED)
        or has_long_strings(statement)
    ):
        return False
    stays = block[0] is not statement or (
        isinstance(parent, ast.If | ast.For | ast.While) and len(block) == 1
    )
    return stays and last_line(parent) == last_line(block[-1])


def indents(place: Place) -> Iterator[Mutation]:
    """Propose to move the statement into the block that ends directly before it."""
    source, statement = place.source, place.statement
    block, index = source.position(statement)
    mine = source.own_lines(statement)
    if index == 0 or mine is None or isinstance(statement, FIXED) or has_long_strings(statement):
        return
    before: ast.stmt | None = block[index - 1]
    old = source.indent(first_line(statement))
    cost = 2.0
    while isinstance(before, ast.For | ast.While | ast.If | ast.With | ast.Try):
        inner = _last_block(before)
        if source.own_lines(inner[-1]) is None:
            return
        new = source.indent(first_line(inner[-1]))
        leaves = index + 1 == len(block) and isinstance(statement, ast.Return)
        text = reindented(lines_text(source, *mine), old, new)
        yield place.change("indent", cost + (1.4 if leaves else 0), Edit(*mine, text))
        if index + 2 == len(block) and source.own_lines(block[-1]) and not has_long_strings(block[-1]):
            end = source.line_start(last_line(block[-1]) + 1)
            both = reindented(lines_text(source, mine[0], end), old, new)
            yield place.change("indent", cost + 1.0, Edit(mine[0], end, both))
        before = inner[-1]
        cost += 0.8


def _last_block(statement: ast.stmt) -> list[ast.stmt]:
    blocks = (getattr(statement, name, None) for name in reversed(BLOCKS))
    return next((list(block) for block in blocks if block), [statement])


ON_STATEMENTS = (deletions, moves, dedents, indents)
