"""Handle whole statements as lines of text: find, move, insert and replace them."""

import ast

from m3agent.serving.embedded.operators.base import Mutation, Place
from m3agent.serving.embedded.source import BLOCKS, Edit, SourceFile


def siblings_of(source: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    """Return the block that contains `statement`."""
    parent = source.parents.get(statement)
    for name in BLOCKS:
        block = getattr(parent, name, None)
        if isinstance(block, list) and any(statement is other for other in block):
            return block
    return [statement]


def first_line(statement: ast.stmt) -> int:
    """Return the line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(statement: ast.stmt) -> int:
    """Return the line on which a statement ends."""
    return statement.end_lineno or statement.lineno


def own_lines(source: SourceFile, statement: ast.stmt) -> tuple[int, int] | None:
    """Return the offsets of the lines of `statement`; None if it shares them with other code."""
    start, end = source.line_start(first_line(statement)), source.line_start(last_line(statement) + 1)
    begin = source.offset(first_line(statement), 0) + len(source.indent(first_line(statement)))
    if source.span(statement)[0] > begin and not getattr(statement, "decorator_list", []):
        return None
    if source.text.startswith("elif", begin):
        return None  # a branch of the statement above, which cannot be moved or preceded by a statement
    rest = source.text[source.span(statement)[1] : end].strip()
    if rest and not rest.startswith("#"):
        return None
    return start, end


def lines_text(source: SourceFile, start: int, end: int) -> str:
    """Return the lines of a span, always with a line ending at the end."""
    text = source.text[start:end]
    return text if text.endswith("\n") else text + source.newline


def reindented(source: SourceFile, text: str, old: str, new: str) -> str:
    """Return `text` with the indentation `old` of its lines replaced by `new`."""
    lines = text.splitlines(keepends=True)
    return "".join(
        new + line[len(old) :] if line.startswith(old) and line.strip() else line for line in lines
    )


def has_long_strings(statement: ast.stmt) -> bool:
    """Tell whether a string in `statement` spans several lines, so that moving the lines would change it."""
    return any(
        isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno
        for node in ast.walk(statement)
    )


def insertion(place: Place, code: str, cost: float, operator: str, after: bool = False) -> Mutation | None:
    """Insert the statement `code` (lines separated by newlines) before or after the place's statement."""
    source, statement = place.source, place.statement
    span = own_lines(source, statement)
    if span is None:
        return None
    indent = source.indent(first_line(statement))
    text = "".join(f"{indent}{line}{source.newline}" for line in code.replace("\t", source.unit).split("\n"))
    at = span[1] if after else span[0]
    if after and at == len(source.text) and not source.text.endswith("\n"):
        text = source.newline + text
    return Mutation((Edit(at, at, text),), statement.lineno, operator, cost)


def replacement(place: Place, code: str, cost: float, operator: str) -> Mutation:
    """Replace the whole statement with `code`."""
    start, end = place.source.span(place.statement)
    return Mutation((Edit(start, end, code),), place.statement.lineno, operator, cost)
