"""Recognise code that decides how values compare.

With an object whose comparison never depends on the other value, `assert f(x) == 5` passes whatever `f` computes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

from m3agent.agent.verify.patched_files import Contents
from m3agent.agent.verify.python_file import Function, last_name, own_nodes, returned_in
from m3agent.util.python_ast import parsed

COMPARISONS = {
    "__eq__": True,
    "__ne__": False,
    "__instancecheck__": True,
    "__subclasscheck__": True,
    "__subclasshook__": True,
}
"""Methods that decide comparisons, with the result that lets a test pass."""
CHANGERS = frozenset([
    "type", "new_class", "make_dataclass", "ABCMeta", "EnumMeta", "EnumType", "ANY",
    "setattr", "delattr", "update_wrapper", "vars", "globals", "eval", "exec", "eq", "cmp", "compare",
    "register", "import_module", "modules", "run_path", "run_module", "pickle", "marshal", "exec_module", "load_module",
])  # fmt: skip
"""Names of what makes or changes classes, of values that compare in their own way, and of options of decorators that make comparison
methods."""
HARMLESS = frozenset([
    "__init__", "__name__", "__doc__", "__all__", "__slots__", "__version__", "__author__", "__file__", "__main__", "__module__",
    "__qualname__", "__annotations__", "__traceback__", "__cause__", "__context__", "__pycache__", "__future__",
])  # fmt: skip
"""Special names that change no comparison, whatever they are set to."""
READ = HARMLESS | frozenset([
    "__abs__", "__add__", "__and__", "__bool__", "__bytes__", "__call__", "__delete__", "__delitem__", "__enter__", "__exit__",
    "__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__float__", "__format__", "__get__", "__getitem__", "__hash__",
    "__html__", "__index__", "__int__", "__iter__", "__len__", "__mod__", "__mul__", "__neg__", "__new__", "__next__", "__notes__",
    "__post_init__", "__radd__", "__replace__", "__repr__", "__reversed__", "__round__", "__set__", "__setitem__", "__str__",
    "__sub__", "__suppress_context__", "__truediv__", "__wrapped__",
])  # fmt: skip
"""Special attributes through which no program gets at a class or changes a comparison, as long as it only reads them."""
FALLBACK = re.compile(
    "unknown|default|other|none|null|un(set|def|spec|supp)|invalid|missing|any", re.IGNORECASE
)
"""Names of members that stand for all values without a member."""
SPECIAL = re.compile(r"__\w+__")
CLASS = "class "
"""Start of what `_deciding` says of a class."""
TEXTS = frozenset({".md", ".rst", ".txt", ".pyi"})
"""Files without code: nothing runs a stub."""
OTHER_CODE = frozenset([
    ".pyx", ".pxd", ".pxi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".rs", ".so", ".pyd", ".pyc", ".pth", ".zip", ".whl", ".egg",
    ".sh",
])  # fmt: skip
"""Files of code that is not Python, so that all of it counts."""
IN_DATA = re.compile(rb"__|!!|\bANY\b")
"""What stands in lines of other files from which an unsafe reader, or a program that executes them, could make a comparison."""


def comparison_changes(changes: Contents) -> frozenset[Literal["class", "code"]]:
    """Return by what a patch may change how values compare: a class that it adds, other code that decides comparisons, or both."""
    return frozenset(
        "class" if isinstance(name, str) and name.startswith(CLASS) else "code"
        for path, (before, after) in changes.items()
        if after is not None
        for name in _deciding(path, after) - _deciding(path, before or b"")
    )


def _deciding(path: str, source: bytes) -> Counter[str | bytes]:
    """Return what decides comparisons in a file, with its number; the whole file if it is other code than Python, or cannot be read."""
    suffix = PurePosixPath(path).suffix
    if suffix in TEXTS:
        return Counter()
    is_code = suffix in OTHER_CODE or source.startswith(b"#!") or b"\0" in source
    if suffix != ".py" and not is_code:
        return Counter(line for line in source.splitlines() if IN_DATA.search(line))
    module = parsed(source) if suffix == ".py" else None
    try:
        return Counter([source] if source else []) if module is None else Counter(_deciding_in(module))
    except RecursionError:
        return Counter([source])


def _deciding_in(module: ast.Module) -> Iterator[str]:
    """Yield what decides comparisons in a module. Raises RecursionError if it nests too deeply."""
    nodes = list(ast.walk(module))
    with_builtins = any(map(_names_builtins, nodes))
    harmless = {id(part) for node in nodes for part in _harmless_in(node, with_builtins=with_builtins)}
    for node in nodes:
        if id(node) in harmless:
            continue
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
                is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
                special = name.startswith("__") and name not in (READ if is_read else HARMLESS)
                if special or name in CHANGERS:
                    yield name
            case ast.Constant(value=str(text)) if "__" in SPECIAL.sub(
                lambda word: "" if word[0] in HARMLESS else "__", text
            ):
                yield text


def _harmless_in(node: ast.AST, *, with_builtins: bool) -> Iterator[ast.AST]:
    """Yield the parts of a node that look as if they made or changed a class, and do not.

    These are docstrings, the class of a value that is only compared or named, and options and attributes that are called `type`.

    Args:
        with_builtins: The module names the module `builtins`, so that an attribute `type` may be Python's own.
    """
    match node:
        case ast.Expr(value=ast.Constant() as text):
            yield text
        case ast.Attribute(
            value=value, attr="__name__" | "__qualname__" | "__module__" | "__doc__", ctx=ast.Load()
        ):
            yield from _class_of(value)
        case ast.Compare(left=left, comparators=others):
            for value in (left, *others):
                yield from _class_of(value)
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            yield from (each for each in (kinds, *getattr(kinds, "elts", ())) if isinstance(each, ast.Name))
        case ast.keyword(arg="type"):
            yield node
        case ast.Attribute(attr="type") if not with_builtins:
            yield node


def _class_of(node: ast.expr) -> Iterator[ast.AST]:
    """Yield what gets the class of a value in `type(value)` and `value.__class__`."""
    match node:
        case ast.Call(func=ast.Name(id="type") as function, args=[value], keywords=[]) if not isinstance(
            value, ast.Starred
        ):
            yield function
        case ast.Attribute(attr="__class__", ctx=ast.Load()):
            yield node


def _names_builtins(node: ast.AST) -> bool:
    match node:
        case ast.alias(name=text) | ast.Constant(value=str(text)):
            return "builtins" in text
    return False


def always_the_same(name: str, node: Function | ast.Lambda) -> bool:
    """Return whether a comparison never depends on the other value."""
    if name not in COMPARISONS:
        return False
    parameters = [*node.args.posonlyargs, *node.args.args, *filter(None, [node.args.vararg])]
    other = parameters[1].arg if len(parameters) > 1 else parameters[-1].arg if parameters else ""
    inside = list(own_nodes(node))
    returned = [node.body] if isinstance(node, ast.Lambda) else returned_in(inside)
    useful = [each for each in returned if not (isinstance(each, ast.Name) and each.id == "NotImplemented")]
    if not useful:
        return False
    truths = {truth_of(each) for each in useful}
    if len(useful) == len(returned) and truths == {COMPARISONS[name]}:
        return True
    if truths <= {not COMPARISONS[name]}:
        return False
    return not any(isinstance(each, ast.Name) and each.id == other for each in inside)


def ignores_question(node: ast.AST, around: ast.AST) -> bool:
    """Return whether a hook for missing members or names gives an answer without looking what is missing.

    Args:
        around: The class or the module that it stands in.
    """
    hook = {ast.ClassDef: "_missing_", ast.Module: "__getattr__"}.get(type(around))
    if not isinstance(node, ast.FunctionDef) or node.name != hook:
        return False
    inside = list(own_nodes(node))
    names = [*map(last_name, returned_in(inside))]
    used = {each.id for each in inside if isinstance(each, ast.Name)}
    asked = {each.arg for each in node.args.args[-1:]}
    return bool(names) and used.isdisjoint(asked) and not any(map(FALLBACK.search, names))


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
