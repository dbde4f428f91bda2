"""Mutate comparisons, boolean operators, negation, and conditions that are too strong or too weak."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import (
    INSTEAD,
    Alternatives,
    Place,
    is_condition,
    operator_of,
    shortened,
)
from m3agent.serving.embedded.source import AND, BIT_OR, NOT, OR, bound, names_in

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in")
SIGNS = {operator_of(f"a {sign} b"): sign for sign in COMPARISONS}


def comparisons(place: Place, node: ast.Compare) -> Alternatives:
    """Propose another comparison, also with a numeric bound moved by one."""
    texts = [bound(text, BIT_OR) for text in place.texts((node.left, *node.comparators))]
    signs = [SIGNS[type(sign)] for sign in node.ops]
    for index, (sign, limit) in enumerate(zip(signs, node.comparators, strict=True)):
        number = limit.value if isinstance(limit, ast.Constant) and type(limit.value) is int else None
        for other, cost in INSTEAD[sign].items():
            changed = [*signs[:index], other, *signs[index + 1 :]]
            yield _compared(texts, changed), "comparison", cost
            for moved in (number + 1, number - 1) if number is not None and "in" not in other else ():
                parts = [*texts[: index + 1], str(moved), *texts[index + 2 :]]
                yield _compared(parts, changed), "comparison and bound", cost + 1.8
    match signs, texts:
        case ["in" | "not in" | "is" | "is not"], _:
            yield _compared(texts[::-1], signs), "comparison sides", 2.8
        case ["==" | "!="], [left, "None" | "True" | "False"]:
            yield left, "comparison dropped", 2.6
            yield negated(left), "comparison dropped", 2.6


def _compared(parts: list[str], signs: list[str]) -> str:
    """Return a comparison of parts with the signs between them."""
    return parts[0] + "".join(f" {sign} {part}" for sign, part in zip(signs, parts[1:], strict=True))


def both(one: str, word: str, other: str) -> str:
    """Join two conditions with ``and`` or ``or``, with the necessary parentheses."""
    level = OR if word == "or" else AND
    return f"{bound(one, level)} {word} {bound(other, level)}"


def negated(text: str) -> str:
    """Return ``not text``, with the necessary parentheses."""
    return f"not {bound(text, NOT)}"


def is_none(text: str, word: str = "is") -> str:
    """Return a test of `text` for None; `word` is ``is`` or ``is not``."""
    return f"{bound(text, BIT_OR)} {word} None"


def booleans(place: Place, node: ast.expr) -> Alternatives:
    """Propose an added negation, and a test for None in place of a test for truth."""
    parent, text = place.parent(node), place.text(node)
    returned = isinstance(parent, ast.Return)
    decides = is_condition(place, node) or isinstance(parent, ast.BoolOp)
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript() if returned and not decides:
            yield negated(text), "not added", 2.6
        case ast.UnaryOp(op=ast.Not()):
            pass
        case ast.Compare(ops=[_]):
            pass
        case ast.Compare() if decides or returned:
            yield negated(text), "not added", 2.4
        case _ if decides or (returned and isinstance(node, ast.BoolOp | ast.Call)):
            yield negated(text), "not added", 1.8
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
                yield is_none(text, "is not"), "truth of None", 2.2
                yield is_none(text), "truth of None", 3.0


def joined_conditions(place: Place, node: ast.BoolOp) -> Alternatives:
    """Propose ``and`` for ``or``, a dropped operand, or another grouping."""
    own, word = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    own_level, level = (AND, OR) if own == "and" else (OR, AND)
    texts = place.texts(node.values)
    yield f" {word} ".join(bound(text, level) for text in texts), "boolean operator", 1.2
    if len(texts) == 3:
        yield both(texts[0], own, both(texts[1], word, texts[2])), "boolean operator", 2.4
        yield both(both(texts[0], word, texts[1]), own, texts[2]), "boolean operator", 2.4
    for rest in shortened(texts):
        yield f" {own} ".join(bound(text, own_level) for text in rest), "operand dropped", 2.4
    for value, outer in zip(node.values, shortened(texts), strict=True):
        if isinstance(value, ast.BoolOp) and own == "or":
            first, *inner = place.texts(value.values)
            yield f"({' or '.join([*outer, first])}) and {' and '.join(inner)}", "grouping", 2.8
    if own == "or" and len(texts) == 2:
        one, other = bound(texts[0], OR), texts[1]
        yield f"{one} if {is_none(texts[0], 'is not')} else {other}", "truth of None", 2.4


def negations(place: Place, node: ast.UnaryOp) -> Alternatives:
    """Propose a removed or moved negation."""
    if not isinstance(node.op, ast.Not):
        return
    text = place.text(node.operand)
    yield text, "not removed", 1.2
    yield is_none(text), "truth of None", 2.2
    if isinstance(node.operand, ast.BoolOp):
        word, level = ("and", AND) if isinstance(node.operand.op, ast.And) else ("or", OR)
        first, *rest = place.texts(node.operand.values)
        parts = [negated(first), *(bound(other, level) for other in rest)]
        yield f" {word} ".join(parts), "not moved", 2.4


def conditions(place: Place, node: ast.expr) -> Alternatives:
    """Propose a condition that a test from the scope strengthens, weakens or replaces."""
    returned = isinstance(place.parent(node), ast.Return) and isinstance(node, ast.Compare | ast.BoolOp)
    if not is_condition(place, node) and not returned:
        return
    text = place.text(node)
    if isinstance(node, ast.Constant):
        for name in place.names(node):
            yield name, "condition", 3.0
            yield f"not {name}", "condition", 3.6
        return
    for atom, cost in atoms(place, node):
        if atom.endswith("is None"):
            yield both(atom, "or", text), "condition weakened", cost
        elif atom.endswith("is not None"):
            yield both(atom, "and", text), "condition strengthened", cost
        else:
            yield both(text, "and", atom), "condition strengthened", cost
            yield both(text, "or", atom), "condition weakened", cost
            if cost < 4.6:
                yield atom, "condition", cost + 0.4


def atoms(place: Place, node: ast.expr) -> Iterator[tuple[str, float]]:
    """Yield conditions that may be missing beside `node`, with their costs."""
    parts = (inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute | ast.Subscript))
    bases = dict.fromkeys(place.text(part.value) for part in parts if not isinstance(part.value, ast.Call))
    bases.pop("self", None)
    none_cost = 2.2 if place.hints.errors & {"AttributeError", "TypeError"} else 3.6
    for base in bases:
        yield is_none(base), none_cost
        yield is_none(base, "is not"), none_cost
    for name in place.names(node):
        yield from _tests_of(place, name, name in bases)
    for attribute in place.scope.own_attributes:
        yield f"self.{attribute}", 5.0
        yield f"not self.{attribute}", 5.0
    yield from copied_tests(place, node)


def _tests_of(place: Place, name: str, is_tested: bool) -> Iterator[tuple[str, float]]:
    """Yield conditions about a variable, with their costs; `is_tested` means that those for None are known."""
    kinds = place.scope.kinds(name)
    near = 0.0 if name in names_in(place.statement) else 0.6
    cost = 4.2 + near - place.unread(name, 1.0)
    yield name, cost
    yield f"not {name}", cost
    if not is_tested and not (kinds and kinds <= {"int", "float", "bool"}):
        yield f"{name} is None", 4.8 + near
        yield f"{name} is not None", 4.8 + near
    if not kinds or kinds & {"int", "float"}:
        for test in ("== 0", "> 0", "< 0", "!= 0", ">= 0"):
            yield f"{name} {test}", 5.0 + near


def copied_tests(place: Place, node: ast.expr) -> Iterator[tuple[str, float]]:
    """Yield conditions from other statements of the same function, then of the same class."""
    visible = {*place.names(node), "self", *place.module.functions, *place.module.variables, "len"}
    seen = {place.text(node)}
    for scope, cost in ((place.scope.function, 4.6), (place.scope.owner, 5.4)):
        for inner in ast.walk(scope) if scope is not None else ():
            if isinstance(inner, ast.Compare | ast.UnaryOp):
                text, names = place.text(inner), names_in(inner)
                if text not in seen and names and names <= visible and len(text) < 60 and text[0] != "-":
                    seen.add(text)
                    yield text, cost


ON_EXPRESSIONS = (comparisons, joined_conditions, negations, booleans, conditions)
