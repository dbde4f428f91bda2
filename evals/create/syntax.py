"""Compare code by meaning, to detect changes beyond layout, comments and docstrings.

Code is parsed, never run.

Files are compared by their statements. Statements with equal text are not examined further, which keeps the
comparison of files with thousands of lines fast. The order of statements, and the file that contains one, do
not matter.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from m3agent.sandbox.python_ast import parse

MOST_BYTES = 1 << 20
"""Largest file that is parsed. A larger file, and one that is not Python, counts as a single statement."""

_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _Statement:
    """A statement: its source lines, and its syntax tree (None if it was not parsed)."""

    text: bytes
    node: ast.stmt | None

    @property
    def meaning(self) -> str | bytes:
        """A key that is equal for statements that do the same."""
        if self.node is None:
            return self.text
        try:
            for node in ast.walk(self.node):
                if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:]
            return ast.dump(self.node)
        except RecursionError:
            return self.text

    @property
    def test_name(self) -> str | None:
        """Name of the test function that this statement defines; None if it defines none."""
        if isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and self.node.name.startswith(
            "test"
        ):
            return self.node.name
        return None


def same_meaning(old: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Return whether the files have the same statements, in any order and in any file."""
    gone, come = _difference(list(_all(old)), list(_all(new)))
    return Counter(one.meaning for one in gone) == Counter(one.meaning for one in come)


def added_tests(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[bool, frozenset[str]]:
    """Compare test files: did a test, or something that tests are made of, appear or change?

    All statements of a module and of its classes count, except imports and docstrings.

    Returns:
        Whether the new files contain a statement that the old ones lack; and the names of new test functions.
    """
    before, after = (list(_all(contents, within=True)) for contents in (old, new))
    gone, come = _difference(before, after)
    known = {one.meaning for one in gone}
    names = {one.test_name for one in come if one.test_name} - {one.test_name for one in before}
    return any(one.meaning not in known for one in come), frozenset(name for name in names if name)


def _difference(
    old: Sequence[_Statement], new: Sequence[_Statement]
) -> tuple[list[_Statement], list[_Statement]]:
    """Return the statements of each side whose text the other side lacks or has less often."""
    counts = Counter(one.text for one in old)
    counts.subtract(one.text for one in new)

    def surplus(side: Sequence[_Statement], sign: int) -> list[_Statement]:
        left = {text: sign * count for text, count in counts.items() if sign * count > 0}
        found = []
        for one in side:
            if left.get(one.text, 0) > 0:
                left[one.text] -= 1
                found.append(one)
        return found

    return surplus(old, 1), surplus(new, -1)


def _all(contents: Sequence[bytes], *, within: bool = False) -> Iterator[_Statement]:
    for content in contents:
        yield from _statements(content, within=within)


def _statements(content: bytes, *, within: bool) -> Iterator[_Statement]:
    """Yield a module's statements without its docstring.

    With `within`, the statements of classes replace the classes, and imports are left out.
    """
    module = _parsed(content)
    if module is None:
        yield _Statement(content, None)
        return
    lines = content.splitlines()
    bodies = [module.body[1:] if ast.get_docstring(module, clean=False) is not None else module.body]
    while bodies:
        for node in bodies.pop():
            if within and isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
                continue
            if within and isinstance(node, ast.ClassDef):
                bodies.append(
                    node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
                )
                continue
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            yield _Statement(b"\n".join(lines[first - 1 : node.end_lineno]), node)


def _parsed(content: bytes) -> ast.Module | None:
    """Return the syntax tree; None if this Python cannot parse the file."""
    if len(content) > MOST_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in other people's code
            return parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
