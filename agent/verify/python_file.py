"""Read Python files: their syntax trees, and what several readers look for in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def definitions_in(module: ast.AST | None) -> list[Definition]:
    """Return the functions and classes directly in a module, a class or a function; none if there is none."""
    return [node for node in getattr(module, "body", ()) if isinstance(node, Definition)]


def nodes_in(tree: ast.AST | None) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree; none if there is no tree."""
    return iter(()) if tree is None else ast.walk(tree)


def functions_in(tree: ast.AST | None) -> Iterator[Function]:
    """Yield all functions of a syntax tree, also those in functions and classes."""
    return (node for node in nodes_in(tree) if isinstance(node, Function))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a function, without those in functions in it."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, Definition | ast.Lambda):
            waiting += ast.iter_child_nodes(each)


def returned_in(nodes: Iterable[ast.AST]) -> list[ast.expr]:
    """Return the values that the `return` statements among nodes return."""
    return [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]


def inner_statements(node: ast.AST) -> list[ast.stmt]:
    """Return the statements directly in a node, those of its handlers and cases last."""
    blocks = (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ()))
    return [each for block in blocks for each in ast.iter_child_nodes(block) if isinstance(each, ast.stmt)]


def parameters(function: Function) -> set[str]:
    """Return the names of a function's parameters, without those that take any number of arguments."""
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def last_name(node: ast.AST | None) -> str:
    """Return the name of a variable, or the last name of an attribute; empty for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_fixture(node: ast.AST) -> bool:
    """Return whether a definition has a decorator that makes it a fixture of pytest."""
    return any("fixture" in ast.dump(each) for each in getattr(node, "decorator_list", ()))


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int, str, str]]:
    """Yield what each import binds: the name in the file, the level of a relative import, the module, and the name in it.

    For `import a.b`, the module is `a.b` and the name in it is empty.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, 0, each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, node.level, node.module or "", each.name


def lines_of(source: bytes) -> list[str]:
    """Return the lines of a source file, as Python counts them."""
    return re.split(r"\r\n|\r|\n", source.decode("utf-8", errors="replace"))
