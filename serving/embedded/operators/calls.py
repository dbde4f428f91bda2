"""Mutate calls: swap, add or drop arguments, call a sibling function, add a wrapper."""

import ast
import itertools

from m3agent.serving.embedded.operators.arithmetic import atom, numeric
from m3agent.serving.embedded.operators.base import (
    TABLES,
    Alternatives,
    Place,
    is_read,
    is_stored,
    shortened,
    swapped,
)
from m3agent.serving.embedded.source import parameters

TABLE = TABLES["calls"]
SIBLINGS = [family.split() for family in TABLE["siblings"].strip().split("\n")]
UNITS: list[str] = TABLE["units"]
AS_NAMED = 2.0
"""Cost of another order of arguments if each one has the name of its parameter."""


def siblings(place: Place, node: ast.Name | ast.Attribute) -> Alternatives:
    """Propose a function or method of the same family."""
    match node:
        case ast.Name(id=name) if name not in (*place.names(node), *place.module.functions):
            prefix = ""
        case ast.Attribute(attr=name):
            prefix = place.text(node.value) + "."
        case _:
            return
    if not is_stored(node):
        families = (family for family in SIBLINGS if name in family)
        others = (other for family in families for other in family if other != name)
        yield from ((prefix + other, "sibling function", 1.6) for other in others)


def arguments(place: Place, node: ast.Call) -> Alternatives:
    """Propose swapped, dropped or added arguments."""
    texts, keywords = place.texts(node.args), place.texts(node.keywords)
    name = _name(node.func)
    doubt = AS_NAMED if _is_as_named(place, name, node.args) else 0.0
    rows = [(others + keywords, "arguments swapped", 1.6 + doubt) for others in swapped(texts)]
    if len(texts) == 3:
        first, second, third = texts
        orders = ([third, second, first], [second, third, first], [third, first, second])
        rows += [(others + keywords, "arguments swapped", 2.6 + doubt) for others in orders]
    dropped = 2.6 if len(texts + keywords) > 1 else 3.2
    rows += [(rest, "argument dropped", dropped) for rest in shortened(texts + keywords)]
    rows += [(others, "argument added", cost) for others, cost in _known(place, node, name, texts, keywords)]
    if name == "range":
        rows += [(others, "range bounds", cost) for others, cost in _ranges(place, node, texts)]
    rows += [(others, "argument added", cost) for others, cost in _added(place, node, name, texts, keywords)]
    start = place.text(node.func)
    yield from ((f"{start}({', '.join(others)})", kind, cost) for others, kind, cost in rows)
    match node:
        case ast.Call(func=ast.Attribute(attr="get", value=mapping), args=[key]):
            yield f"{place.text(mapping)}[{place.text(key)}]", "lookup", 2.6


def _name(node: ast.expr) -> str:
    """Return the name of a variable or an attribute; empty for any other expression."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _is_as_named(place: Place, name: str, given: list[ast.expr]) -> bool:
    """Return whether each argument has the name of its parameter in a known function: `f(a, line.b)` for `def f(a, b)`."""
    call = (name, *map(_name, given))
    return any(signature[: len(call)] == call for signature in place.hints.signatures)


def keywords(place: Place, node: ast.Call) -> Alternatives:
    """Propose swapped values of keywords."""
    start, _ = place.source.span(node)
    text = place.text(node)
    named = [keyword.value for keyword in node.keywords if keyword.arg]
    for value, other in itertools.combinations(named, 2):
        (a, b), (c, d) = ((x - start, y - start) for x, y in map(place.source.span, (value, other)))
        yield text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:], "arguments swapped", 1.8


def units(place: Place, node: ast.Call) -> Alternatives:
    """Propose another unit of time as the name of a keyword."""
    start, _ = place.source.span(node)
    text = place.text(node)
    for keyword in node.keywords:
        if keyword.arg in UNITS:
            at = place.source.span(keyword)[0] - start
            others = (unit for unit in UNITS if unit != keyword.arg)
            yield from ((text[:at] + unit + text[at + len(keyword.arg) :], "unit", 2.4) for unit in others)


_Arguments = list[tuple[list[str], float]]
"""Arguments of a call, with the cost."""


def _known(place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]) -> _Arguments:
    """Return arguments that are often missing in calls of well-known functions."""
    given = [*texts, *keywords]
    has = {keyword.arg for keyword in node.keywords}
    rows: _Arguments = [([*given, value], 2.4) for value in TABLE["omitted"].get(name, ())]
    if name in ("sorted", "sort", "min", "max") and "key" not in has:
        rows += [([*given, f"key={key}"], 3.4) for key in TABLE["keys"]]
        attributes = place.module.all_attributes[:12]
        rows += [([*given, f"key=lambda item: item.{attribute}"], 4.2) for attribute in attributes]
    match name, len(texts):
        case "sorted" | "sort", _ if "reverse" not in has:
            rows.append(([*given, "reverse=True"], 2.2))
        case "min" | "max", 1 if not keywords:
            rows += [([*texts, "default=0"], 3.0), ([*texts, "default=None"], 3.0)]
        case "get", 1:
            rows += [([*texts, default], 2.6) for default in TABLE["defaults"]]
        case "pop", 0 if isinstance(node.func, ast.Attribute):
            rows += [(["0"], 1.8), (["-1"], 2.8)]
        case "pop", _ if isinstance(node.func, ast.Attribute):
            rows.append(([*texts, "None"], 2.6))
        case "split", 1 | 2:
            rows.append(([*texts, "1"], 2.4))
    return rows


def _ranges(place: Place, node: ast.Call, texts: list[str]) -> _Arguments:
    match texts:
        case [start, end]:
            return [
                ([end], 2.4),
                ([f"{start} + 1", f"{end} + 1"], 2.8),
                ([f"{start} - 1", f"{end} - 1"], 3.0),
            ]
        case [end]:
            rows = [(["1", end], 1.8), (["1", f"{end} + 1"], 2.0), ([f"{end} - 1", "-1", "-1"], 3.4)]
            for name in place.names(node):
                rows += [([name, end], 3.0), ([f"{name} + 1", end], 3.2)]
            return rows
        case _:
            return []


def _added(place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]) -> _Arguments:
    """Return the arguments with a variable of the scope more."""
    function, names = place.module.functions.get(name), place.names(node)
    rows: _Arguments = []
    if function is not None:
        known = parameters(function)
        cost = 1.8 if len(texts) + len(keywords) < len(known) else 3.0
        missing = set(names) - {keyword.arg for keyword in node.keywords}
        left = (parameter for parameter in known[len(texts) :] if parameter in missing)
        rows += [([*texts, *keywords, f"{name}={name}"], cost) for name in left]
    if name in ("range", "isinstance", "print"):
        return rows
    base = 4.4 if function is None and name not in place.module.methods else 3.6
    base -= 1.2 * ("TypeError" in place.hints.errors)
    for value in (value for value in names if value not in texts):
        cost = base - place.unread(value, 1.0)
        rows.append(([*texts, value, *keywords], cost))
        if texts:
            rows.append(([value, *texts, *keywords], cost + 0.4))
    return rows


SENSELESS: dict[bool | None, list[str]] = {True: TABLE["of_collections"], False: ["abs", "round"], None: []}
"""Functions that nobody calls with a value, by whether it is a number; None if that is unknown."""
UNWRAPPED = ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr | ast.Compare
"""Expressions around which no call is put."""
CLOSED = ast.Expr | ast.keyword | ast.Slice | ast.FormattedValue
"""Nodes in which no call is put around an expression."""


def _is_wrappable(place: Place, node: ast.expr) -> bool:
    """Tell whether a call may be put around a value, or behind it."""
    closed = isinstance(node, UNWRAPPED) or isinstance(place.parent(node), CLOSED)
    return not closed and is_read(node) and not place.is_base(node) and "\n" not in place.text(node)


def wrappers(place: Place, node: ast.expr) -> Alternatives:
    """Propose a conversion or copy around a value."""
    if not _is_wrappable(place, node):
        return
    text, number, parent = place.text(node), numeric(place, node), place.parent(node)
    senseless = (
        {parent.func.id} if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) else set()
    )
    senseless.update(SENSELESS[number])
    costs = {name: cost for name, cost in TABLE["wrappers"].items() if name not in senseless}
    for wrapper, usual in costs.items():
        yield f"{wrapper}({text})", "missing conversion", usual + _of_types(place)
    if "round" in costs:
        yield f"round({text}, 2)", "missing conversion", costs["round"] + _of_types(place) + 0.2


def methods(place: Place, node: ast.expr) -> Alternatives:
    """Propose a missing method call or attribute of a value."""
    if not _is_wrappable(place, node) or numeric(place, node):
        return
    text, typing = place.text(node), _of_types(place)
    kinds = place.scope.kinds(node.id) if isinstance(node, ast.Name) else set[str]()
    cost = (3.2 if kinds else 4.0) + typing
    for kind, methods in TABLE["methods_of"].items():
        for method in methods if not kinds or kind in kinds else ():
            yield f"{atom(text)}.{method}", "missing method call", cost
    if not kinds & {"int", "float", "str", "bool"}:
        for attribute in place.module.attributes.get(text, []) if isinstance(node, ast.Name) else ():
            yield f"{text}.{attribute}", "missing attribute", 3.6 + typing


def _of_types(place: Place) -> float:
    """Return what a change of a type saves if a test failed with an error about types."""
    return -0.8 if place.hints.errors & {"TypeError", "AttributeError"} else 0.0


def awaits(place: Place, node: ast.Call) -> Alternatives:
    """Propose a missing ``await``."""
    inside = isinstance(place.scope.function, ast.AsyncFunctionDef)
    if inside and not isinstance(place.parent(node), ast.Await):
        yield f"await {place.text(node)}", "missing await", 2.4


ON_EXPRESSIONS = (siblings, arguments, keywords, units, wrappers, methods, awaits)
