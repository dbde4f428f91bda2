"""Mutate calls: swap, add or drop arguments, call a sibling function, add a wrapper."""

import ast

from m3agent.serving.embedded.operators.arithmetic import atom, numeric
from m3agent.serving.embedded.operators.base import (
    TABLES,
    Alternatives,
    Place,
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
    if is_stored(node):
        return
    if isinstance(node, ast.Name):
        prefix, name = "", node.id
        if name in place.names(node) or name in place.module.functions:
            return
    else:
        prefix, name = place.text(node.value) + ".", node.attr
    for family in SIBLINGS:
        for other in family if name in family else ():
            if other != name:
                yield prefix + other, "sibling function", 1.6


def arguments(place: Place, node: ast.Call) -> Alternatives:
    """Propose swapped, dropped or added arguments."""
    texts, keywords = place.texts(node.args), place.texts(node.keywords)
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    start = place.text(node.func)
    doubt = AS_NAMED if _is_as_named(place, name, node.args) else 0.0
    found = [(others + keywords, "arguments swapped", 1.6 + doubt) for others in swapped(texts)]
    if len(texts) == 3:
        one, two, three = texts
        for others in ([three, two, one], [two, three, one], [three, one, two]):
            found.append((others + keywords, "arguments swapped", 2.6 + doubt))
    dropped = 2.6 if len(texts + keywords) > 1 else 3.2
    found += [(rest, "argument dropped", dropped) for rest in shortened(texts + keywords)]
    yield from ((f"{start}({', '.join(others)})", kind, cost) for others, kind, cost in found)
    yield from _of_keywords(place, node)
    for others, cost in _known(place, node, name, texts, keywords):
        yield f"{start}({', '.join(others)})", "argument added", cost
    if name == "get" and len(texts) == 1 and isinstance(node.func, ast.Attribute):
        yield f"{place.text(node.func.value)}[{texts[0]}]", "lookup", 2.6
    for others, cost in _ranges(place, node, texts) if name == "range" else ():
        yield f"{start}({', '.join(others)})", "range bounds", cost
    for others, cost in _added(place, node, name, texts, keywords):
        yield f"{start}({', '.join(others)})", "argument added", cost


def _is_as_named(place: Place, name: str, given: list[ast.expr]) -> bool:
    """Return whether each argument has the name of its parameter in a known function: `f(a, line.b)` for `def f(a, b)`."""
    said = tuple(one.id if isinstance(one, ast.Name) else getattr(one, "attr", "") for one in given)
    return any(one[0] == name and one[1 : len(said) + 1] == said for one in place.hints.signatures)


def _of_keywords(place: Place, node: ast.Call) -> Alternatives:
    """Propose swapped values of keywords, and other units of time."""
    start, _ = place.source.span(node)
    text = place.text(node)
    for index, keyword in enumerate(node.keywords):
        for other in node.keywords[index + 1 :]:
            if keyword.arg and other.arg:
                (a, b), (c, d) = (place.source.span(one.value) for one in (keyword, other))
                pieces = (text[: a - start], text[c - start : d - start], text[b - start : c - start])
                yield (
                    "".join((*pieces, text[a - start : b - start], text[d - start :])),
                    "arguments swapped",
                    1.8,
                )
        at = place.source.span(keyword)[0] - start
        for unit in UNITS if keyword.arg in UNITS else ():
            if unit != keyword.arg:
                yield text[:at] + unit + text[at + len(keyword.arg or "") :], "unit", 2.4


_Arguments = list[tuple[list[str], float]]
"""Arguments of a call, with the cost."""


def _known(place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]) -> _Arguments:
    """Return arguments that are often missing in calls of well-known functions."""
    given = [*texts, *keywords]
    found: _Arguments = []
    if name in ("sorted", "sort") and not any(text.startswith("reverse") for text in keywords):
        found.append(([*given, "reverse=True"], 2.2))
    if name in ("sorted", "sort", "min", "max") and not any(text.startswith("key") for text in keywords):
        found += [([*given, f"key={key}"], 3.4) for key in TABLE["keys"]]
        attributes = place.module.all_attributes[:12]
        found += [([*given, f"key=lambda item: item.{attribute}"], 4.2) for attribute in attributes]
    if name in ("min", "max") and not keywords and len(texts) == 1:
        found += [([*texts, "default=0"], 3.0), ([*texts, "default=None"], 3.0)]
    if name == "get" and len(texts) == 1:
        found += [([*texts, default], 2.6) for default in TABLE["defaults"]]
    if name == "pop" and isinstance(node.func, ast.Attribute):
        found += [([*texts, "None"], 2.6)] if texts else [(["0"], 1.8), (["-1"], 2.8)]
    found += [([*given, value], 2.4) for value in TABLE["omitted"].get(name, ())]
    if name == "split" and len(texts) in (1, 2):
        found.append(([*texts, "1"], 2.4))
    return found


def _ranges(place: Place, node: ast.Call, texts: list[str]) -> _Arguments:
    if len(texts) == 2:
        start, end = texts
        moved = [([f"{start} + 1", f"{end} + 1"], 2.8), ([f"{start} - 1", f"{end} - 1"], 3.0)]
        return [([end], 2.4), *moved]
    if len(texts) != 1:
        return []
    end = texts[0]
    found: _Arguments = [(["1", end], 1.8), (["1", f"{end} + 1"], 2.0)]
    for name in place.names(node):
        found += [([name, end], 3.0), ([f"{name} + 1", end], 3.2)]
    return [*found, ([f"{end} - 1", "-1", "-1"], 3.4)]


def _added(place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]) -> _Arguments:
    """Return the arguments with a variable of the scope more."""
    function = place.module.functions.get(name)
    found: _Arguments = []
    if function is not None:
        known = parameters(function)
        cost = 1.8 if len(texts) + len(keywords) < len(known) else 3.0
        given = {keyword.arg for keyword in node.keywords}
        for missing in known[len(texts) :]:
            if missing not in given and missing in place.names(node):
                found.append(([*texts, *keywords, f"{missing}={missing}"], cost))
    if name in ("range", "isinstance", "print"):
        return found
    base = 3.6 if function is not None or name in place.module.methods else 4.4
    if "TypeError" in place.hints.errors:
        base -= 1.2
    for value in place.names(node):
        if value not in texts:
            cost = base - place.unread(value, 1.0)
            found.append(([*texts, value, *keywords], cost))
            found += [([value, *texts, *keywords], cost + 0.4)] if texts else []
    return found


def wrappers(place: Place, node: ast.expr) -> Alternatives:
    """Propose a conversion, copy or method call around a value."""
    if isinstance(node, ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr | ast.Compare):
        return
    parent = place.parent(node)
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) or place.is_base(node):
        return
    if isinstance(parent, ast.Expr | ast.keyword | ast.Slice | ast.FormattedValue):
        return
    text = place.text(node)
    if "\n" in text:
        return
    number = numeric(place, node)
    outer = parent.func.id if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) else ""
    typing = -0.8 if place.hints.errors & {"TypeError", "AttributeError"} else 0.0
    for wrapper, usual in TABLE["wrappers"].items():
        senseless = number and wrapper in TABLE["of_collections"]
        if senseless or outer == wrapper or (number is False and wrapper in ("abs", "round")):
            continue
        cost = usual + typing
        yield f"{wrapper}({text})", "missing conversion", cost
        if wrapper == "round":
            yield f"round({text}, 2)", "missing conversion", cost + 0.2
    if number:
        return
    kinds = place.scope.kinds(node.id) if isinstance(node, ast.Name) else set()
    for kind, methods in TABLE["methods_of"].items():
        for method in methods if not kinds or kind in kinds else ():
            yield f"{atom(text)}.{method}", "missing method call", (3.2 if kinds else 4.0) + typing
    if isinstance(node, ast.Name) and not kinds & {"int", "float", "str", "bool"}:
        for attribute in place.module.attributes.get(node.id, []):
            yield f"{text}.{attribute}", "missing attribute", 3.6 + typing


def awaits(place: Place, node: ast.Call) -> Alternatives:
    """Propose a missing ``await``."""
    inside = isinstance(place.scope.function, ast.AsyncFunctionDef)
    if inside and not isinstance(place.parent(node), ast.Await):
        yield f"await {place.text(node)}", "missing await", 2.4


ON_EXPRESSIONS = (siblings, arguments, wrappers, awaits)
