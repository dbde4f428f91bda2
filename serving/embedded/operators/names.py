"""Replace variables, attributes and fragments that were confused with another one."""

import ast
import builtins
import re
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Place

BUILTINS = frozenset(dir(builtins))
FRAGMENTS = 24
"""Most expressions that are proposed for one place."""


def words(name: str) -> set[str]:
    """Return the words of a name in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)}


def close(one: str, other: str) -> bool:
    """Tell whether two names are easily confused."""
    return bool(words(one) & words(other)) or (len(one) <= 2 and len(other) <= 2)


def variables(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another variable of the scope, or an attribute of ``self``, for a variable."""
    if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Del) or node.id in ("self", "cls", "super"):
        return
    parent = place.parent(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        yield from _callees(place, node)
        return
    scope = place.scope
    store = isinstance(node.ctx, ast.Store)
    if store and isinstance(parent, ast.comprehension | ast.For | ast.NamedExpr):
        return
    known = set(scope.variables) | set(place.module.variables) | set(place.module.imports) | BUILTINS
    bound = node.id in known or node.id in place.names(node) or node.id in place.module.functions
    for name in place.names(node):
        if name == node.id:
            continue
        alike = scope.alike(node.id, name)
        cost = 2.2 + (0 if alike else 0.4 if alike is None else 2.4) - (0.4 if close(node.id, name) else 0)
        cost -= 0.8 if name in scope.unread else 0
        cost -= 0 if bound else 1.5
        yield Alternative(name, "variable", cost + (1.2 if store else 0))
    if scope.is_method:
        for attribute in scope.self_attributes:
            same = (
                1.4 if attribute.strip("_") == node.id.strip("_") else 0.4 if close(attribute, node.id) else 0
            )
            yield Alternative(
                f"self.{attribute}", "variable for attribute", 3.4 - same - (0 if bound else 1.0)
            )
    if not store:
        for name in place.module.variables:
            if name != node.id:
                yield Alternative(name, "variable", 3.4 - (0.8 if close(name, node.id) else 0))
        if not bound:
            for name in (*place.module.functions, *place.module.classes, *place.module.imports):
                yield Alternative(name, "variable", 3.0 - (0.8 if close(name, node.id) else 0))


def _callees(place: Place, node: ast.Name) -> Iterator[Alternative]:
    if node.id in place.module.functions or node.id not in BUILTINS:
        for name in place.module.functions:
            if name != node.id:
                yield Alternative(name, "function", 2.8 - (0.8 if close(name, node.id) else 0))
        for name in (*place.module.classes, *place.module.imports):
            if name != node.id:
                yield Alternative(name, "function", 3.6 - (0.8 if close(name, node.id) else 0))
        for name in place.module.methods if place.scope.is_method else ():
            cost = 1.2 if name == node.id else 3.4
            yield Alternative(f"self.{name}", "missing self", cost)


def attributes(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another attribute of the same object, the object itself, or a variable of that name."""
    if not isinstance(node, ast.Attribute):
        return
    parent = place.parent(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    base = place.text(node.value)
    on_self = base in ("self", "cls")
    if called:
        others = sorted(place.module.methods) if on_self else []
        same = list(others)
    else:
        same = place.scope.self_attributes if on_self else place.module.attributes.get(base, [])
        others = [*same, *place.module.all_attributes]
    for name in dict.fromkeys(others):
        if name != node.attr:
            cost = (2.0 if name in same else 3.4) - (0.4 if close(name, node.attr) else 0)
            yield Alternative(f"{base}.{name}", "attribute", cost)
    if called:
        return
    if not isinstance(node.ctx, ast.Store):
        if not on_self:
            yield Alternative(base, "attribute dropped", 3.0)
            for name in place.names(node):
                alike = place.scope.alike(base, name)
                if name != base:
                    yield Alternative(f"{name}.{node.attr}", "variable", 2.8 if alike else 3.6)
        for name in place.names(node):
            same_name = name.strip("_") == node.attr.strip("_")
            yield Alternative(name, "variable", 1.8 if same_name else 3.6)
        if node.attr in place.module.methods:
            yield Alternative(f"{place.text(node)}()", "missing call", 2.0)


def fragments(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose an expression from elsewhere in the function, preferably of the same shape."""
    function = place.scope.function
    if function is None or isinstance(node, ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr):
        return
    parent = place.parent(node)
    store = isinstance(getattr(node, "ctx", None), ast.Store)
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Subscript) and parent.value is node):
        return
    text = place.text(node)
    mine = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    visible = {*place.names(node), "self", "cls", *place.module.functions, *place.module.variables}
    visible |= {*place.module.classes, *place.module.imports} | BUILTINS
    found: dict[str, float] = {}
    for other in ast.walk(function):
        if not isinstance(other, ast.Subscript | ast.Attribute | ast.Call | ast.BinOp):
            continue
        copied = place.text(other)
        if copied == text or len(copied) > 50 or "\n" in copied or copied in found:
            continue
        outer = place.parent(other)
        if isinstance(outer, ast.Call) and outer.func is other:
            continue
        names = {inner.id for inner in ast.walk(other) if isinstance(inner, ast.Name)}
        if not names <= visible or (store and not isinstance(other, ast.Subscript | ast.Attribute)):
            continue
        shared = 0.6 if names & mine else 0.0
        shape = 0.4 if type(other) is type(node) else 0.0
        found[copied] = 4.4 - shared - shape
    for copied, cost in sorted(found.items(), key=lambda item: item[1])[:FRAGMENTS]:
        yield Alternative(copied, "fragment", cost)


def unwrapped(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a variable of the scope, or a part of the expression, for the whole expression."""
    if isinstance(node, ast.Call):
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if not isinstance(argument, ast.Starred):
                yield Alternative(place.text(argument), "call dropped", 2.8)
        if isinstance(node.func, ast.Attribute):
            yield Alternative(place.text(node.func.value), "call dropped", 2.8)
        if isinstance(place.parent(node), ast.Expr):
            return
        for name in place.names(node):
            yield Alternative(name, "call for variable", 3.8 - (0.8 if name in place.scope.unread else 0))
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Store):
        yield Alternative(place.text(node.value), "index dropped", 2.8)
        for name in place.names(node):
            yield Alternative(name, "index for variable", 4.2)
    if isinstance(node, ast.IfExp):
        test, body, other = (place.text(part) for part in (node.test, node.body, node.orelse))
        yield Alternative(f"{other} if {test} else {body}", "branches swapped", 1.6)
        yield Alternative(body, "branch dropped", 3.0)
        yield Alternative(other, "branch dropped", 3.0)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare) and isinstance(place.parent(node), ast.Return):
        for name in place.names(node):
            yield Alternative(name, "return value", 4.4)


def self_missing(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose ``self.`` before a name that is stored but never read: probably an attribute."""
    assigned = (
        isinstance(place.statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and place.scope.is_method
    )
    if assigned and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        if node.id not in place.scope.unread:
            return
        yield Alternative(f"self.{node.id}", "missing self", 1.6)
