"""Recognise code that decides how values compare.

With an object whose comparison never depends on the other value, `assert f(x) == 5` passes whatever `f` computes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.python_file import Function, own_nodes, parsed

COMPARISONS = {"__eq__": True, "__ne__": False, "__instancecheck__": True, "__subclasscheck__": True}
"""Methods that decide comparisons, with the result that lets a test pass."""
MAKERS = frozenset({"type", "new_class", "make_dataclass", "ABCMeta", "EnumMeta", "EnumType", "ANY"})
"""Names of what makes classes, or values that compare in their own way."""
CHANGERS = frozenset([
    "setattr", "delattr", "update_wrapper", "vars", "globals", "eval", "exec", "eq", "cmp", "compare",
    "register",
])  # fmt: skip
"""Names of what changes classes, and options of decorators that make comparison methods."""
HARMLESS = frozenset({"__init__", "__name__", "__doc__"})
"""Special attributes that change no comparison."""
CLASS = "class "
"""Start of what `_deciding` says of a class."""
TEXTS = frozenset({".md", ".rst", ".txt"})
"""Files without code."""


def may_change_comparisons(changes: Contents, *, classes: bool = True) -> bool:
    """Return whether a patch may change how values compare: it adds a class, or changes a comparison method.

    Args:
        classes: Count each new class. Otherwise only those whose code has something that decides a comparison.
    """
    return any(
        after is not None
        and any(
            classes or not (isinstance(name, str) and name.startswith(CLASS))
            for name in _deciding(path, after) - _deciding(path, before or b"")
        )
        for path, (before, after) in changes.items()
    )


def _deciding(path: str, source: bytes) -> Counter[str | bytes]:
    """Return what decides comparisons in a file, with its number; the whole file if it cannot be read as Python."""
    suffix = PurePosixPath(path).suffix
    if suffix in TEXTS or not source:
        return Counter()
    module = parsed(source) if suffix == ".py" else None
    try:
        return Counter([source]) if module is None else Counter(_deciding_in(module))
    except RecursionError:
        return Counter([source])


def _deciding_in(module: ast.Module) -> Iterator[str]:
    """Yield what decides comparisons in a module. Raises RecursionError if it nests too deeply."""
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(name=name):
                yield f"{CLASS}{name}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in COMPARISONS:
                yield ast.dump(node)
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.keyword(arg=str(name))
                | ast.alias(name=name)
            ):
                special = name.startswith("__") and name not in HARMLESS
                if special or name in MAKERS or name in CHANGERS:
                    yield name
            case ast.Constant(value=str(text)) if "__" in text:
                yield text


def always_the_same(name: str, node: Function | ast.Lambda) -> bool:
    """Return whether a comparison never depends on the other value."""
    if name not in COMPARISONS:
        return False
    parameters = [*node.args.posonlyargs, *node.args.args, *filter(None, [node.args.vararg])]
    other = parameters[1].arg if len(parameters) > 1 else parameters[-1].arg if parameters else ""
    inside = list(own_nodes(node))
    returned = _returned(node, inside)
    useful = [each for each in returned if not (isinstance(each, ast.Name) and each.id == "NotImplemented")]
    if not useful:
        return False
    truths = {truth_of(each) for each in useful}
    if len(useful) == len(returned) and truths == {COMPARISONS[name]}:
        return True
    if truths <= {not COMPARISONS[name]}:
        return False
    return not any(isinstance(each, ast.Name) and each.id == other for each in inside)


def _returned(node: Function | ast.Lambda, inside: Iterable[ast.AST]) -> list[ast.expr]:
    """Return the values that a function returns, given the nodes in it."""
    if isinstance(node, ast.Lambda):
        return [node.body]
    return [each.value for each in inside if isinstance(each, ast.Return) and each.value is not None]


def truth_of(node: ast.expr) -> bool | None:
    """Return whether an expression is true or false whatever its names stand for; None if that depends on them."""
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=value):
            truth = truth_of(value)
            return None if truth is None else not truth
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]) if ast.dump(
            left
        ) == ast.dump(right):
            return True
        case ast.BoolOp(op=ast.Or(), values=values) if any(truth_of(each) for each in values):
            return True
        case ast.Call(func=ast.Name(id="bool"), args=[value]):
            return truth_of(value)
    return None
