"""Turn the source of a program that runs in sandboxes into a form that old Pythons accept.

The programs have annotations and f-strings, like all code here. Python 3.5 knows neither f-strings nor annotations of variables,
and Python 3.6 no `from __future__ import annotations`. So annotations are removed before a program is sent, f-strings become
calls of `str.format`, and types that nothing uses any more are not imported. `tests/sandbox/test_portable_source.py` checks that
nothing else in the programs is newer than Python 3.5.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from types import ModuleType

TYPES = frozenset({"__future__", "typing", "collections.abc"})
"""Modules from which a program imports types."""


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
    """Return a program without annotations, docstrings, comments and imports for type checkers."""
    tree = _Remover().visit(ast.parse(source))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in TYPES:
            node.names = [name for name in node.names if name.name in used]
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom) or node.names]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Remover(ast.NodeTransformer):
    """Removes annotations, docstrings and blocks for type checkers."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        for_checkers = any(
            isinstance(part, ast.Name) and part.id == "TYPE_CHECKING" for part in ast.walk(node.test)
        )
        return node.orelse if for_checkers else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign([node.target], node.value)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        text, values = _format_of(node, 0)
        return ast.Call(
            ast.Attribute(ast.Constant(text), "format", ast.Load()), [self.visit(v) for v in values], []
        )

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


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
