"""Compare two versions of a test: is it gone, may it be skipped, or does it say less?"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator

from m3agent.sandbox.python_ast import parse
from m3agent.tools.runners.suites import without_suite

SKIPS = frozenset({"skip", "skipif", "skipIf", "skipUnless", "skipTest", "xfail", "importorskip"})
"""Names in pytest and unittest that skip a test or let it fail."""


def weakened(
    ident: str, base: bytes | None, earlier: bytes | None, later: bytes | None, *, shows_fix: bool = False
) -> str:
    """Return how a patch weakened a test that an earlier verdict named red; empty if it did not.

    A test counts as weakened if it is gone, if something new may skip it, or if one of its assertions is gone. A test
    that the base tree has in the same words never counts: verification restores it. A test that shows the fix may have
    other values in its assertions: the earlier ones may have been wrong.

    Args:
        ident: Id of the test or of its file.
        base: Content of the test's file in the base tree; None if it does not exist there.
        earlier: Content in the tree in which the test was named red.
        later: Content in the tree of the patch.
        shows_fix: Whether the test is red without the patch and green with it.
    """
    if earlier is None or earlier == later:
        return ""
    if base is not None and test_in(parsed(base), ident) is not None:
        return ""
    if later is None:
        return "deleted"
    was, now = parsed(earlier), parsed(later)
    old, new = test_in(was, ident), test_in(now, ident)
    if old is None:
        return ""  # the earlier file could not be parsed, or the test is made at run time
    if new is None:
        return "deleted"
    if skips_in(now) - skips_in(was):
        return "skipped"
    return (
        "weakened"
        if assertions_in(old, any_value=shows_fix) - assertions_in(new, any_value=shows_fix)
        else ""
    )


def parsed(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is no Python."""
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def test_in(module: ast.Module | None, ident: str) -> ast.AST | None:
    """Return the function or class of a module that a test id names, or the whole module for the id of a file."""
    found: ast.AST | None = module
    for name in without_suite(ident).partition("[")[0].split("::")[1:]:
        found = next(
            (
                node
                for node in getattr(found, "body", ())
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == name
            ),
            None,
        )
    return found


def skips_in(tree: ast.AST | None) -> Counter[str]:
    """Return the names in a tree that skip tests or let them fail."""
    return Counter(name for node in _nodes(tree) if (name := _name(node)) in SKIPS)


def assertions_in(tree: ast.AST | None, *, any_value: bool) -> Counter[str]:
    """Return the assertions in a test: `assert`, unittest's methods, and `pytest.raises` and its like.

    Args:
        tree: The test.
        any_value: Whether assertions that differ in literal values only count as equal.
    """
    checks = ("assert", "raises", "warns", "fail")
    return Counter(
        ast.dump(_WithoutValues().visit(copy.deepcopy(node)) if any_value else node)
        for node in _nodes(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and _name(node.func).startswith(checks))
    )


class _WithoutValues(ast.NodeTransformer):
    """Replaces each literal value by the name of its type."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(type(node.value).__name__)


def _nodes(tree: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(tree) if tree is not None else iter(())


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
