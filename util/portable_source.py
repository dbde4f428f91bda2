"""Turn the source of a program that runs in sandboxes into a form that old Pythons accept.

The programs have annotations and f-strings, like all code here. Python 3.5 knows neither f-strings nor annotations of variables,
and Python 3.6 no `from __future__ import annotations`. So annotations are removed before a program is sent, f-strings become
calls of `str.format`, and types that nothing uses any more are not imported. `tests/sandbox/test_portable_source.py` checks that
nothing else in the programs is newer than Python 3.5.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path
from types import ModuleType

from m3agent.util.python_ast import parse

TYPES = frozenset({"__future__", "typing", "collections.abc"})
"""Modules from which a program imports types."""
LAST_COMMA = re.compile(rb"\s*,")


def portable_text(module: ModuleType) -> str:
    """Return the source of a module in the form for old Pythons."""
    return portable_file(Path(str(module.__file__)))


def portable_files(*modules: ModuleType) -> dict[str, bytes]:
    """Return the sources of modules in the form for old Pythons, by the names of their files."""
    return {Path(str(module.__file__)).name: portable_text(module).encode() for module in modules}


@functools.cache
def portable_file(path: Path) -> str:
    """Return the content of a source file in the form for old Pythons."""
    return portable(path.read_text(encoding="utf-8"))


def portable(source: str) -> str:
    """Return a program without annotations, docstrings and imports for type checkers.

    The lines keep their numbers, except behind an f-string of several lines.
    """
    text = source.encode()
    edits = _Edits(text)
    edits.visit(parse(source))
    return edits.applied().decode()


class _Edits(ast.NodeVisitor):
    """Collects what to replace in a source. To write all of it anew from its syntax tree takes almost three times as long.

    Attributes:
        found: The replacements: the first and the last offset in the source, in bytes, and the new text.
        names: The names that the program uses.
        imports: Imports of names that may be types only.
    """

    def __init__(self, text: bytes) -> None:
        self.found: list[tuple[int, int, bytes]] = []
        self.names: set[str] = set()
        self.imports: list[ast.ImportFrom] = []
        self._text = text
        self._lines = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]

    def applied(self) -> bytes:
        """Return the source with all replacements."""
        for node in self.imports:
            names = [name for name in node.names if name.name in self.names]
            self._replace(
                node, ast.unparse(ast.ImportFrom(node.module, names, node.level)) if names else "pass"
            )
        parts, end = list[bytes](), 0
        for first, last, new in sorted(self.found):
            parts += [self._text[end:first], new]
            end = last
        return b"".join([*parts, self._text[end:]])

    def _start(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _replace(self, node: ast.stmt | ast.expr, new: str) -> None:
        """Replace a node, and keep the number of its lines if it is a statement."""
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno - new.count("\n") if isinstance(node, ast.stmt) else 0
        self.found.append((self._start(node), self._end(node), new.encode() + b"\n" * lines))

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module in TYPES:
            self.imports.append(node)

    def visit_If(self, node: ast.If) -> None:
        tested = (part.id for part in ast.walk(node.test) if isinstance(part, ast.Name))
        if "TYPE_CHECKING" not in tested:
            self.generic_visit(node)
            return
        self._replace(node.test, "False")
        for part in node.body:
            self._replace(part, "pass")
        for part in node.orelse:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self._replace(node, "pass")
            return
        self.found.append((self._end(node.target), self._end(node.annotation), b""))
        self.visit(node.target)
        self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation is not None:
            self.found.append((self._start(node) + len(node.arg.encode()), self._end(node.annotation), b""))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.returns is not None:
            arrow = self._text.rindex(b"->", 0, self._start(node.returns))
            self.found.append((arrow, self._end(node.returns), b""))
        self._without_last_comma(node.args)
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    def _without_last_comma(self, args: ast.arguments) -> None:
        """Remove a comma behind the last argument, which Python 3.5 refuses behind `*` and `**`."""
        every: list[ast.arg | ast.expr | None] = [*args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        every += [*args.defaults, *args.kw_defaults]
        ends = [self._end(part) for part in every if part is not None]
        if ends and (comma := LAST_COMMA.match(self._text, max(ends))):
            self.found.append((comma.end() - 1, comma.end(), b""))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.names.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        self._replace(node, ast.unparse(_Formatted().visit(node)))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            self._replace(node, "pass")
        else:
            self.generic_visit(node)


class _Formatted(ast.NodeTransformer):
    """Replaces f-strings by calls of `str.format`."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        text, values = _format_of(node, 0)
        return ast.Call(
            ast.Attribute(ast.Constant(text), "format", ast.Load()), [self.visit(v) for v in values], []
        )


def _format_of(node: ast.JoinedStr, first: int) -> tuple[str, list[ast.expr]]:
    """Return the text for `str.format` that an f-string means, and its arguments.

    Args:
        node: The f-string.
        first: Number of the first argument.
    """
    text, values = "", list[ast.expr]()
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            number = first + len(values)
            values.append(part.value)
            conversion = "" if part.conversion < 0 else f"!{chr(part.conversion)}"
            spec, more = (
                _format_of(part.format_spec, number + 1)
                if isinstance(part.format_spec, ast.JoinedStr)
                else ("", [])
            )
            values += more
            text += f"{{{number}{conversion}{':' if spec else ''}{spec}}}"
        elif isinstance(part, ast.Constant):
            text += str(part.value).replace("{", "{{").replace("}", "}}")
    return text, values
