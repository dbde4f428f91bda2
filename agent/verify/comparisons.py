"""Recognise comparison methods whose result never depends on the value to compare with.

With an object of such a class, `assert f(x) == 5` passes whatever `f` computes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

COMPARISONS = {"__eq__": True, "__ne__": False, "__instancecheck__": True, "__subclasscheck__": True}
"""Methods that decide comparisons, with the result that lets a test pass."""


def always_the_same(name: str, node: Function) -> bool:
    """Return whether a comparison never depends on the other value."""
    if name not in COMPARISONS:
        return False
    parameters = [*node.args.posonlyargs, *node.args.args, *filter(None, [node.args.vararg])]
    other = parameters[1].arg if len(parameters) > 1 else parameters[-1].arg if parameters else ""
    inside = list(own_nodes(node))
    returned = [each.value for each in inside if isinstance(each, ast.Return) and each.value is not None]
    if isinstance(node, ast.Lambda):
        returned = [node.body]
    useful = [each for each in returned if not (isinstance(each, ast.Name) and each.id == "NotImplemented")]
    if not useful:
        return False
    truths = {_truth(each) for each in useful}
    if len(useful) == len(returned) and truths == {COMPARISONS[name]}:
        return True
    if truths <= {not COMPARISONS[name]}:
        return False
    return not any(isinstance(each, ast.Name) and each.id == other for each in inside)


def _truth(node: ast.expr) -> bool | None:
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=value):
            truth = _truth(value)
            return None if truth is None else not truth
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]) if ast.dump(
            left
        ) == ast.dump(right):
            return True
        case ast.BoolOp(op=ast.Or(), values=values) if any(_truth(each) for each in values):
            return True
        case ast.Call(func=ast.Name(id="bool"), args=[value]):
            return _truth(value)
    return None


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a function, without those in functions in it."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(each)
