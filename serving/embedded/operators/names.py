"""Replace variables, attributes and fragments that were confused with another one."""

import ast
import builtins
import re

from m3agent.serving.embedded.operators.base import Alternatives, Place, is_stored
from m3agent.serving.embedded.source import names_in

BUILTINS = frozenset(dir(builtins))
FRAGMENTS = 24
"""Most expressions that are proposed for one place."""


def words(name: str) -> set[str]:
    """Return the words of a name in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)}


def close(one: str, other: str) -> bool:
    """Tell whether two names are easily confused."""
    return bool(words(one) & words(other)) or (len(one) <= 2 and len(other) <= 2)


def variables(place: Place, node: ast.Name) -> Alternatives:
    """Propose another variable of the scope, or an attribute of ``self``, for a variable."""
    if isinstance(node.ctx, ast.Del) or node.id in ("self", "cls", "super"):
        return
    if place.is_called(node):
        yield from _callees(place, node)
        return
    scope, module, store = place.scope, place.module, is_stored(node)
    if store and isinstance(place.parent(node), ast.comprehension | ast.For | ast.NamedExpr):
        return
    known = {*scope.variables, *module.variables, *module.imports, *place.names(node), *module.functions}
    bound = node.id in known or node.id in BUILTINS
    for name in place.names(node):
        if name != node.id:
            alike = scope.alike(node.id, name)
            cost = 2.2 + (0 if alike else 0.4 if alike is None else 2.4) - 0.4 * close(node.id, name)
            cost -= place.unread(name, 0.8)
            cost -= 0 if bound else 1.5
            yield name, "variable", cost + (1.2 if store else 0)
    for attribute in scope.own_attributes:
        near = 0.4 * close(attribute, node.id)
        same = 1.4 if attribute.strip("_") == node.id.strip("_") else near
        yield f"self.{attribute}", "variable for attribute", 3.4 - same - (0 if bound else 1.0)
    outer = [(name, 3.4) for name in module.variables if name != node.id]
    if not bound:
        outer += [(name, 3.0) for name in (*module.functions, *module.classes, *module.imports)]
    for name, cost in outer if not store else ():
        yield name, "variable", cost - (0.8 if close(name, node.id) else 0)


def _callees(place: Place, node: ast.Name) -> Alternatives:
    module = place.module
    if node.id in module.functions or node.id not in BUILTINS:
        others = [(name, 2.8) for name in module.functions]
        others += [(name, 3.6) for name in (*module.classes, *module.imports)]
        for name, cost in others:
            if name != node.id:
                yield name, "function", cost - (0.8 if close(name, node.id) else 0)
        for name in sorted(module.methods) if place.scope.is_method else ():
            yield f"self.{name}", "missing self", 1.2 if name == node.id else 3.4


def attributes(place: Place, node: ast.Attribute) -> Alternatives:
    """Propose another attribute of the same object, the object itself, or a variable of that name."""
    called, base, module = place.is_called(node), place.text(node.value), place.module
    on_self = base in ("self", "cls")
    if called:
        same = sorted(module.methods) if on_self else []
    else:
        same = place.scope.self_attributes if on_self else module.attributes.get(base, [])
    for name in dict.fromkeys([*same, *(() if called else module.all_attributes)]):
        if name != node.attr:
            cost = (2.0 if name in same else 3.4) - (0.4 if close(name, node.attr) else 0)
            yield f"{base}.{name}", "attribute", cost
    if called or is_stored(node):
        return
    if not on_self:
        yield base, "attribute dropped", 3.0
        for name in place.names(node):
            if name != base:
                yield f"{name}.{node.attr}", "variable", 2.8 if place.scope.alike(base, name) else 3.6
    for name in place.names(node):
        yield name, "variable", 1.8 if name.strip("_") == node.attr.strip("_") else 3.6
    if node.attr in module.methods:
        yield f"{place.text(node)}()", "missing call", 2.0


def fragments(place: Place, node: ast.expr) -> Alternatives:
    """Propose an expression from elsewhere in the function, preferably of the same shape."""
    function, module, store = place.scope.function, place.module, is_stored(node)
    if function is None or isinstance(node, ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr):
        return
    if place.is_base(node):
        return
    text, mine = place.text(node), names_in(node)
    visible = {*place.names(node), "self", "cls", *module.functions, *module.variables}
    visible |= {*module.classes, *module.imports} | BUILTINS
    kinds = ast.Subscript | ast.Attribute if store else ast.Subscript | ast.Attribute | ast.Call | ast.BinOp
    found: dict[str, float] = {}
    for other in ast.walk(function):
        if isinstance(other, kinds) and not place.is_called(other):
            copied, names = place.text(other), names_in(other)
            short = copied != text and len(copied) <= 50 and "\n" not in copied
            if short and copied not in found and names <= visible:
                shared = 0.6 if names & mine else 0.0
                found[copied] = 4.4 - shared - (0.4 if type(other) is type(node) else 0.0)
    for copied, cost in sorted(found.items(), key=lambda item: item[1])[:FRAGMENTS]:
        yield copied, "fragment", cost


def unwrapped(place: Place, node: ast.expr) -> Alternatives:
    """Propose a variable of the scope, or a part of the expression, for the whole expression."""
    if isinstance(node, ast.Call):
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if not isinstance(argument, ast.Starred):
                yield place.text(argument), "call dropped", 2.8
        if isinstance(node.func, ast.Attribute):
            yield place.text(node.func.value), "call dropped", 2.8
        if isinstance(place.parent(node), ast.Expr):
            return
        for name in place.names(node):
            yield name, "call for variable", 3.8 - place.unread(name, 0.8)
    if isinstance(node, ast.Subscript) and not is_stored(node):
        yield place.text(node.value), "index dropped", 2.8
        for name in place.names(node):
            yield name, "index for variable", 4.2
    if isinstance(node, ast.IfExp):
        test, body, other = place.texts((node.test, node.body, node.orelse))
        yield f"{other} if {test} else {body}", "branches swapped", 1.6
        yield body, "branch dropped", 3.0
        yield other, "branch dropped", 3.0
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare) and isinstance(place.parent(node), ast.Return):
        for name in place.names(node):
            yield name, "return value", 4.4


def self_missing(place: Place, node: ast.Name) -> Alternatives:
    """Propose ``self.`` before a name that is stored but never read: probably an attribute."""
    assigned = isinstance(place.statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    stored = assigned and place.scope.is_method and is_stored(node)
    if stored and node.id in place.scope.unread:
        yield f"self.{node.id}", "missing self", 1.6


ON_EXPRESSIONS = (variables, attributes, self_missing, unwrapped, fragments)
