"""Put the docstrings of one version of a Python file into another, because pytest can run the examples in them as tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from m3agent.util.python_ast import parse

EXAMPLE = ">>>"
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def with_docstrings(code: bytes, tests: bytes) -> bytes:
    """Return a Python file with the docstrings of another version, where one of both has examples.

    Args:
        tests: The version whose docstrings count.

    Raises:
        ValueError: They cannot be separated: a file is no Python, or a docstring with examples is in one of the versions only.
    """
    try:
        new, old = dict(_documented(parse(code), "")), dict(_documented(parse(tests), ""))
    except (SyntaxError, RecursionError) as error:
        raise ValueError(str(error)) from None
    lines, old_lines = code.splitlines(keepends=True), tests.splitlines(keepends=True)
    for name, node in sorted(new.items(), key=lambda item: -_docstring(item[1])[0].lineno):
        (docstring, text), (wanted, wanted_text) = _docstring(node), _docstring(old.get(name, node))
        if text != wanted_text and EXAMPLE in f"{text}{wanted_text}":
            first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
            before = lines[first][: docstring.col_offset]
            after = lines[last - 1][docstring.end_col_offset or 0 :]
            lines[first:last] = [before + _source(old_lines, wanted) + after]
    only_one = new.keys() ^ old.keys()
    if any(EXAMPLE in _docstring({**old, **new}[name])[1] for name in only_one & old.keys()):
        raise ValueError("a docstring with examples is in one version only")
    return b"".join(lines)


def _documented(node: Documented, prefix: str) -> Iterator[tuple[str, Documented]]:
    if ast.get_docstring(node, clean=False) is not None:
        yield prefix, node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(inner, f"{prefix}.{inner.name}")


def _docstring(node: Documented) -> tuple[ast.expr, str]:
    statement = node.body[0]
    assert isinstance(statement, ast.Expr)
    return statement.value, ast.get_docstring(node, clean=False) or ""


def _source(lines: list[bytes], node: ast.expr) -> bytes:
    """Return the text of a node."""
    part = lines[node.lineno - 1 : node.end_lineno]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset :]
    return b"".join(part)
