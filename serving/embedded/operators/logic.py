"""Comparisons, boolean operators, negation, and conditions that ask too much or too little."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Place, is_condition

SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}

INSTEAD: dict[str, tuple[tuple[str, float], ...]] = {
    "<": (("<=", 1.0), (">", 1.6), (">=", 2.0), ("!=", 2.8), ("==", 3.0)),
    "<=": (("<", 1.0), (">=", 1.6), (">", 2.0), ("==", 2.8), ("!=", 3.2)),
    ">": ((">=", 1.0), ("<", 1.6), ("<=", 2.0), ("!=", 2.8), ("==", 3.0)),
    ">=": ((">", 1.0), ("<=", 1.6), ("<", 2.0), ("==", 2.8), ("!=", 3.2)),
    "==": (("!=", 1.4), ("<=", 2.4), (">=", 2.4), ("<", 3.0), (">", 3.0), ("in", 3.4), ("is", 3.6)),
    "!=": (("==", 1.4), ("<", 2.6), (">", 2.6), ("not in", 3.4), ("is not", 3.6)),
    "is": (("is not", 1.4), ("==", 1.8)),
    "is not": (("is", 1.4), ("!=", 1.8)),
    "in": (("not in", 1.4), ("==", 3.0)),
    "not in": (("in", 1.4), ("!=", 3.0)),
}


def comparisons(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Another comparison, with a bound moved by one where it is a number."""
    if not isinstance(node, ast.Compare):
        return
    texts = [place.text(part) for part in (node.left, *node.comparators)]
    signs = [SIGNS[type(sign)] for sign in node.ops]

    def joined(parts: list[str], between: list[str]) -> str:
        return parts[0] + "".join(f" {sign} {part}" for sign, part in zip(between, parts[1:], strict=True))

    for index, sign in enumerate(signs):
        for other, cost in INSTEAD[sign]:
            changed = [*signs[:index], other, *signs[index + 1 :]]
            yield Alternative(joined(texts, changed), "comparison", cost)
            bound = node.comparators[index]
            if isinstance(bound, ast.Constant) and type(bound.value) is int and "in" not in other:
                for step in (1, -1):
                    parts = [*texts[: index + 1], str(bound.value + step), *texts[index + 2 :]]
                    yield Alternative(joined(parts, changed), "comparison and bound", cost + 2.2)
    if len(signs) == 1 and signs[0] in ("in", "not in", "is", "is not"):
        yield Alternative(joined(texts[::-1], signs), "comparison sides", 2.8)
    if len(signs) == 1 and signs[0] in ("==", "!=") and texts[1] in ("None", "True", "False"):
        yield Alternative(texts[0], "comparison dropped", 2.6)
        yield Alternative(f"not {texts[0]}", "comparison dropped", 2.6)


def booleans(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """``and`` for ``or``, an operand left out, a negation added or removed."""
    if isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        own = "and" if word == "or" else "or"
        texts = [place.text(value) for value in node.values]
        yield Alternative(f" {word} ".join(texts), "boolean operator", 1.2)
        if len(texts) == 3:
            yield Alternative(f"{texts[0]} {own} ({texts[1]} {word} {texts[2]})", "boolean operator", 2.4)
            yield Alternative(f"({texts[0]} {word} {texts[1]}) {own} {texts[2]}", "boolean operator", 2.4)
        for index in range(len(texts)):
            yield Alternative(f" {own} ".join(texts[:index] + texts[index + 1 :]), "operand dropped", 2.4)
        for index, value in enumerate(node.values):
            if isinstance(value, ast.BoolOp) and own == "or":
                inner = [place.text(part) for part in value.values]
                rest = [text for other, text in enumerate(texts) if other != index]
                regrouped = f"({' or '.join([*rest, inner[0]])}) and {' and '.join(inner[1:])}"
                yield Alternative(regrouped, "grouping", 2.8)
        if own == "or" and len(texts) == 2:
            yield Alternative(f"{texts[0]} if {texts[0]} is not None else {texts[1]}", "truth of None", 2.4)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Alternative(place.text(node.operand), "not removed", 1.2)
        yield Alternative(f"{place.text(node.operand)} is None", "truth of None", 2.2)
        if isinstance(node.operand, ast.BoolOp):
            first, *rest = [place.text(value) for value in node.operand.values]
            word = "and" if isinstance(node.operand.op, ast.And) else "or"
            yield Alternative(f" {word} ".join([f"not {first}", *rest]), "not moved", 2.4)
        return
    parent = place.parent(node)
    decides = is_condition(place, node) or isinstance(parent, ast.BoolOp)
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    if decides or (isinstance(parent, ast.Return) and isinstance(node, ast.BoolOp | ast.Compare | ast.Call)):
        text = place.text(node)
        if not isinstance(node, ast.Compare):
            yield Alternative(f"not {text}" if simple else f"not ({text})", "not added", 1.8)
        elif len(node.ops) > 1:
            yield Alternative(f"not {text}", "not added", 2.4)
        if simple:
            yield Alternative(f"{text} is not None", "truth of None", 2.2)
            yield Alternative(f"{text} is None", "truth of None", 3.0)


def conditions(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """A condition strengthened or weakened by an atom from the scope, or replaced by one."""
    if not is_condition(place, node) and not (
        isinstance(place.parent(node), ast.Return) and isinstance(node, ast.Compare | ast.BoolOp)
    ):
        return
    text = place.text(node)
    if isinstance(node, ast.Constant):
        for name in place.names(node):
            yield Alternative(name, "condition", 3.0)
            yield Alternative(f"not {name}", "condition", 3.6)
        return
    left = f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda) else text
    for atom, cost in atoms(place, node):
        kept = {"and": left if not isinstance(node, ast.BoolOp) or isinstance(node.op, ast.Or) else text}
        kept["and"] = text if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else left
        kept["or"] = text if isinstance(node, ast.BoolOp) else left
        if atom.endswith("is None"):
            yield Alternative(f"{atom} or {kept['or']}", "condition weakened", cost)
            continue
        if atom.endswith("is not None"):
            yield Alternative(f"{atom} and {kept['and']}", "condition strengthened", cost)
            continue
        yield Alternative(f"{kept['and']} and {atom}", "condition strengthened", cost)
        yield Alternative(f"{kept['or']} or {atom}", "condition weakened", cost)
        if cost < 4.6:
            yield Alternative(atom, "condition", cost + 0.4)


def atoms(place: Place, node: ast.expr) -> Iterator[tuple[str, float]]:
    """Yield conditions that could be meant beside `node`, with their costs."""
    seen: set[str] = set()
    chained = [inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute | ast.Subscript)]
    none_cost = 2.2 if place.hints.errors & {"AttributeError", "TypeError"} else 3.6
    for inner in chained:
        base = place.text(inner.value)
        if base not in ("self", *seen) and not isinstance(inner.value, ast.Call):
            seen.add(base)
            yield f"{base} is None", none_cost
            yield f"{base} is not None", none_cost
    used = {inner.id for inner in ast.walk(place.statement) if isinstance(inner, ast.Name)}
    for name in place.names(node):
        near = 0.0 if name in used else 0.6
        unread = -1.0 if name in place.scope.unread else 0.0
        kinds = place.scope.kinds(name)
        yield name, 4.2 + near + unread
        yield f"not {name}", 4.2 + near + unread
        if name not in seen and (not kinds or not kinds <= {"int", "float", "bool"}):
            yield f"{name} is None", 4.8 + near
            yield f"{name} is not None", 4.8 + near
        if not kinds or kinds & {"int", "float"}:
            for test in ("== 0", "> 0", "< 0", "!= 0", ">= 0"):
                yield f"{name} {test}", 5.0 + near
    for attribute in place.scope.self_attributes if place.scope.is_method else ():
        yield f"self.{attribute}", 5.0
        yield f"not self.{attribute}", 5.0
    yield from copied_tests(place, node)


def copied_tests(place: Place, node: ast.expr) -> Iterator[tuple[str, float]]:
    """Yield the conditions that other statements of the same function, then of the same class, use."""
    around: ast.AST | None = place.scope.function
    visible = {*place.names(node), "self", *place.module.functions, *place.module.variables, "len"}
    seen = {place.text(node)}
    for scope, cost in ((around, 4.6), (place.scope.owner, 5.4)):
        for inner in ast.walk(scope) if scope is not None else ():
            if isinstance(inner, ast.Compare | ast.UnaryOp) and not isinstance(inner, ast.BoolOp):
                text = place.text(inner)
                names = {part.id for part in ast.walk(inner) if isinstance(part, ast.Name)}
                if text not in seen and names and names <= visible and len(text) < 60 and text[0] != "-":
                    seen.add(text)
                    yield text, cost
