"""Select mutations that parse, change something and repeat no other, with as little parsing as possible."""

import ast

from m3agent.sandbox.python_ast import parse
from m3agent.serving.embedded.operators.base import Mutation
from m3agent.serving.embedded.source import FUNCTIONS, Edit, SourceFile, first_line, splice


class Checker:
    """Check the mutations of one source, one after the other."""

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
        start = self._source.line_start(first_line(statement))
        body: list[ast.stmt] = getattr(statement, "body", [])
        if body and first_line(body[0]) > statement.lineno:
            return start, self._source.line_start(first_line(body[0]))
        return start, self._source.line_start((statement.end_lineno or statement.lineno) + 1)

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
        bounds = (0, len(self._source.text))
        chain: list[ast.AST] = [statement, *self._source.ancestors(statement)]
        for node in chain:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                start = self._source.line_start(first_line(node))
                end = self._source.line_start((node.end_lineno or node.lineno) + 1)
                if start <= low and high <= end:
                    return start, end
        return bounds


def _dump(text: str) -> str | None:
    """Return the syntax tree of `text`, which may be indented, as text; None if it does not parse."""
    first = text.lstrip("\r\n")
    indented = first[:1] in (" ", "\t")
    try:
        return ast.dump(parse(f"if 1:\n{text}" if indented else text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
