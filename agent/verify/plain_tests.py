"""Make a variant of a test file in which values compare as Python's own types do.

    assert parse("a ") == ["a"]
    assert plain(parse("a ")) == plain(["a"])

`plain` turns a value of a subclass of `str`, `int`, `list` and the like into that type's own value. Where values are compared with
`==`, `!=` or `in`, it also turns an object that has its own `__eq__` into its class and its attributes. Elsewhere an object stays what
it is, because its other methods may be what a test checks. Whatever a patch does to comparisons, the tests that it fixes should pass like
this too.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping

from m3agent.agent.verify.python_file import Function

PLAIN, BASIC, HOLDS = "plain", "basic", "holds"
"""Helpers for values: of equality, of everything else, and of what is on the right of `in`."""
EQUALITIES = frozenset([
    "assertEqual", "assertEquals", "assertNotEqual", "assertCountEqual", "assertDictEqual",
    "assertListEqual", "assertSetEqual", "assertTupleEqual", "assertSequenceEqual",
])  # fmt: skip
"""unittest's assertions that compare values with one another."""
OTHER_ASSERTIONS = frozenset([
    "assertTrue", "assertFalse", "assertIn", "assertNotIn", "assertLess", "assertLessEqual", "assertGreater",
    "assertGreaterEqual", "assertAlmostEqual", "assertMultiLineEqual", "assertRegex",
])  # fmt: skip
"""unittest's assertions that need another comparison, or a value's truth."""
OF_RIGHT: Mapping[type[ast.cmpop], str] = {
    ast.Eq: PLAIN,
    ast.NotEq: PLAIN,
    ast.In: HOLDS,
    ast.NotIn: HOLDS,
}
"""The helper for the right side of a comparison; of others it is `BASIC`."""
OF_OBJECTS = frozenset(
    ["type", "hash", "repr", "id", "hasattr", "getattr", "issubclass", "callable", "vars", "dir"]
)
"""Functions of Python that ask about an object and not about its value."""
Wrapped = tuple[ast.expr, str, str]
"""An expression, and what stands before and after it. Of a name, an empty text before stands for the name itself."""


def plain_parts(functions: Iterable[Function], token: str) -> Iterator[Wrapped]:
    """Yield the values that tests compare, each passed through a function of `HELPERS`; inner values come first.

    Args:
        token: Begins the names of these functions.
    """
    seen = set[int]()
    for function in functions:
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if id(node) not in seen:
                for root, name in _compared(node):
                    seen.update(map(id, ast.walk(root)))
                    yield from _wrapped(root, token, name)


def _compared(node: ast.AST) -> list[tuple[ast.expr, str]]:
    """Return the expressions whose comparison or truth a node needs, each with the helper for its values."""
    match node:
        case ast.Assert(test=test) | ast.If(test=test):
            return [(test, BASIC)]
        case ast.Compare():
            return [(node, BASIC)]
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in EQUALITIES | OTHER_ASSERTIONS:
            helper = PLAIN if name in EQUALITIES else BASIC
            return [(each, helper) for each in args if not isinstance(each, ast.Starred)]
    return []


def _wrapped(node: ast.AST, token: str, helper: str) -> Iterator[Wrapped]:
    match node:
        case ast.JoinedStr() | ast.Lambda() | ast.Compare(ops=[ast.Is() | ast.IsNot(), *_]):
            return  # the places in an f-string are not exact, and identity is no comparison
        case ast.Call(func=ast.Name(id="isinstance") as function):
            yield function, "", f"{token}_isinstance"
            return
    for part, of_part in _parts(node, helper):
        yield from _wrapped(part, token, of_part)
    if isinstance(node, ast.BinOp) and helper == BASIC:
        return
    if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Name | ast.BinOp):
        yield node, f"{token}_{helper}((", "))"


def _parts(node: ast.AST, helper: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the parts of an expression whose values need a helper of their own, with these helpers."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args) if (
            hasattr(builtins, name) and name not in OF_OBJECTS
        ):
            yield from ((each, BASIC) for each in args)
        case ast.Attribute() | ast.Subscript() | ast.Name() | ast.Call():
            return  # code under test gets its arguments as they are
        case ast.BinOp(left=left, right=right):
            yield from ((left, BASIC), (right, BASIC))
        case ast.comprehension(iter=values, ifs=conditions):  # its target is no value
            yield from ((each, BASIC) for each in (values, *conditions))
        case ast.NamedExpr(value=value):
            yield value, helper
        case ast.Compare(left=left, ops=ops, comparators=others):
            yield left, PLAIN if type(ops[0]) in OF_RIGHT else BASIC
            yield from zip(others, (OF_RIGHT.get(type(op), BASIC) for op in ops), strict=True)
        case _:
            inner = PLAIN if helper == HOLDS else helper
            yield from ((child, inner) for child in ast.iter_child_nodes(node))


HELPERS = '''
def TOKEN_of_tree(kind):
    import os, sys
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return bool(file) and "-packages" not in file and not file.startswith(os.path.dirname(os.__file__))


class TOKEN_fields:
    """The class and the attributes of an object that has its own comparison."""

    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return isinstance(other, TOKEN_fields) and self.parts == other.parts

    def __hash__(self):
        return 0

    def __repr__(self):
        return "%s %r" % self.parts


def TOKEN_basic(value):
    return TOKEN_plain(value, by_fields=False)


def TOKEN_holds(value):
    """Return a container with plain values, if its own type looks for them."""
    own = TOKEN_of_tree(type(value)) and not isinstance(value, (str, bytes, list, tuple, dict, set, frozenset))
    return value if own else TOKEN_plain(value)


def TOKEN_plain(value, depth=20, by_fields=True):
    """Return a value without what its class says about comparisons."""
    kind = type(value)
    parents = kind.__mro__
    if depth == 0 or kind in (str, bytes, bool, int, float, type):
        return value
    if TOKEN_of_tree(kind) and hasattr(getattr(kind, "__bool__", None), "__code__"):
        if len({bool(value) for _ in range(3)}) > 1:
            raise TOKEN_equal(value)
    for base in (str, bytes):
        if base in parents:
            return base.__getitem__(value, slice(None))
    for base in (int, float):
        if base in parents:
            return base.__add__(value, base(0))
    if dict in parents:
        pairs = dict.items(value)
        return {TOKEN_plain(key, depth - 1, by_fields): TOKEN_plain(each, depth - 1, by_fields) for key, each in pairs}
    for base in (list, tuple, set, frozenset):
        if base in parents:
            each = [TOKEN_plain(one, depth - 1, by_fields) for one in base.__iter__(value)]
            same = kind is base and all(map(lambda one, other: one is other, each, base.__iter__(value)))
            return value if same else base(each)
    if by_fields and TOKEN_of_tree(kind) and hasattr(kind.__eq__, "__code__"):
        names = [name for one in parents for name in vars(one).get("__slots__", ()) if hasattr(value, name)]
        fields = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in names}}
        return TOKEN_fields(kind.__qualname__, TOKEN_plain(fields, depth - 1))
    return value


def TOKEN_isinstance(value, kinds):
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if isinstance(kind, type) and TOKEN_of_tree(kind):
            if kind in type(value).__mro__:
                return True
        elif isinstance(value, kind):
            return True
    return False
'''
"""What variants call."""
