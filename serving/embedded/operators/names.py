"""Replace variables, attributes and fragments that were confused with another one."""

import ast
import builtins
import math
import re

from m3agent.serving.embedded.operators.base import Alternatives, Place, is_stored
from m3agent.serving.embedded.source import names_in

BUILTINS = frozenset(dir(builtins))
FRAGMENTS = 24
"""Most expressions that are proposed for one place."""
STORABLE = ast.Subscript | ast.Attribute
COPIED = STORABLE | ast.Call | ast.BinOp
"""Expressions that are proposed elsewhere."""
UNLIKE = {True: 0.0, None: 0.4, False: 2.4}
"""What a variable costs more, by whether it had values of the same types; None if that is unknown."""


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
    unbound = node.id not in known | BUILTINS
    for name in place.others(node):
        cost = 2.2 + UNLIKE[scope.alike(node.id, name)] - 0.4 * close(node.id, name)
        yield name, "variable", cost - place.unread(name, 0.8) - 1.5 * unbound + 1.2 * store
    for attribute in scope.own_attributes:
        same = attribute.strip("_") == node.id.strip("_")
        near = 1.4 if same else 0.4 * close(attribute, node.id)
        yield f"self.{attribute}", "variable for attribute", 3.4 - near - unbound
    if store:
        return
    outer = [(name, 3.4) for name in module.variables if name != node.id]
    if unbound:
        outer += [(name, 3.0) for name in (*module.functions, *module.classes, *module.imports)]
    for name, cost in outer:
        yield name, "variable", cost - 0.8 * close(name, node.id)


def _callees(place: Place, node: ast.Name) -> Alternatives:
    module = place.module
    if node.id in BUILTINS and node.id not in module.functions:
        return
    others = dict.fromkeys((*module.classes, *module.imports), 3.6) | dict.fromkeys(module.functions, 2.8)
    others.pop(node.id, None)
    for name, cost in others.items():
        yield name, "function", cost - 0.8 * close(name, node.id)
    for name in sorted(module.methods) if place.scope.is_method else ():
        yield f"self.{name}", "missing self", 1.2 if name == node.id else 3.4


def attributes(place: Place, node: ast.Attribute) -> Alternatives:
    """Propose another attribute of the same object."""
    base, module = place.text(node.value), place.module
    on_self = base in ("self", "cls")
    others: dict[str, float] = {}
    if place.is_called(node):
        same = sorted(module.methods) if on_self else []
    else:
        same = place.scope.self_attributes if on_self else module.attributes.get(base, [])
        others = dict.fromkeys(module.all_attributes, 3.4)
    others |= dict.fromkeys(same, 2.0)
    others.pop(node.attr, None)
    for name, cost in others.items():
        yield f"{base}.{name}", "attribute", cost - 0.4 * close(name, node.attr)


def owners(place: Place, node: ast.Attribute) -> Alternatives:
    """Propose the object itself, another object, a variable with the attribute's name, or a call."""
    if place.is_called(node) or is_stored(node):
        return
    base, names = place.text(node.value), place.names(node)
    if base not in ("self", "cls"):
        yield base, "attribute dropped", 3.0
        for name in place.others(node.value):
            yield f"{name}.{node.attr}", "variable", 2.8 if place.scope.alike(base, name) else 3.6
    for name in names:
        yield name, "variable", 1.8 if name.strip("_") == node.attr.strip("_") else 3.6
    if node.attr in place.module.methods:
        yield f"{place.text(node)}()", "missing call", 2.0


def fragments(place: Place, node: ast.expr) -> Alternatives:
    """Propose an expression from elsewhere in the function, preferably of the same shape."""
    function, module = place.scope.function, place.module
    fixed = isinstance(node, ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr) or place.is_base(node)
    if function is None or fixed:
        return
    mine = names_in(node)
    visible = {*place.names(node), "self", "cls", *module.functions, *module.variables}
    visible |= {*module.classes, *module.imports} | BUILTINS
    costs = {place.text(node): math.inf}
    for other in ast.walk(function):
        if isinstance(other, STORABLE if is_stored(node) else COPIED) and not place.is_called(other):
            copied, names = place.text(other), names_in(other)
            if len(copied) <= 50 and "\n" not in copied and names <= visible:
                alike = 0.6 * bool(names & mine) + 0.4 * (type(other) is type(node))
                costs.setdefault(copied, 4.4 - alike)
    for copied, cost in sorted(costs.items(), key=lambda item: item[1])[:FRAGMENTS]:
        if cost < math.inf:
            yield copied, "fragment", cost


def calls(place: Place, node: ast.Call) -> Alternatives:
    """Propose an argument, the object of a method, or a variable for a call."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    parts = [argument for argument in given if not isinstance(argument, ast.Starred)]
    if isinstance(node.func, ast.Attribute):
        parts.append(node.func.value)
    yield from ((text, "call dropped", 2.8) for text in place.texts(parts))
    if not isinstance(place.parent(node), ast.Expr):
        for name in place.names(node):
            yield name, "call for variable", 3.8 - place.unread(name, 0.8)


def elements(place: Place, node: ast.Subscript) -> Alternatives:
    """Propose the whole container, or a variable, for an element."""
    if not is_stored(node):
        yield place.text(node.value), "index dropped", 2.8
        yield from ((name, "index for variable", 4.2) for name in place.names(node))


def branches(place: Place, node: ast.IfExp) -> Alternatives:
    """Propose swapped branches of a conditional expression, or one of them."""
    test, body, other = place.texts((node.test, node.body, node.orelse))
    yield f"{other} if {test} else {body}", "branches swapped", 1.6
    yield body, "branch dropped", 3.0
    yield other, "branch dropped", 3.0


def results(place: Place, node: ast.BinOp | ast.BoolOp | ast.Compare) -> Alternatives:
    """Propose a variable for a computed result."""
    if isinstance(place.parent(node), ast.Return):
        yield from ((name, "return value", 4.4) for name in place.names(node))


def self_missing(place: Place, node: ast.Name) -> Alternatives:
    """Propose ``self.`` before a name that is stored but never read: probably an attribute."""
    assigned = isinstance(place.statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    stored = assigned and place.scope.is_method and is_stored(node)
    if stored and node.id in place.scope.unread:
        yield f"self.{node.id}", "missing self", 1.6


ON_EXPRESSIONS = (
    *(variables, attributes, owners, self_missing),
    *(calls, elements, branches, results, fragments),
)
