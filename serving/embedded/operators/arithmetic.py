"""Mutate arithmetic and bitwise operators, their operands and grouping, and results off by a term."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Place
from m3agent.serving.embedded.source import AND, ATOM, BINDING, OR, POWER, bound

SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.MatMult: "@",
}

INSTEAD: dict[str, tuple[tuple[str, float], ...]] = {
    "+": (("-", 1.0), ("*", 2.0), ("|", 3.6), ("%", 3.8)),
    "-": (("+", 1.0), ("*", 2.8), ("/", 3.0), ("%", 3.0), ("//", 3.4)),
    "*": (("/", 1.4), ("+", 1.8), ("**", 2.0), ("//", 2.0), ("-", 2.8), ("%", 3.4)),
    "/": (("//", 1.2), ("*", 1.4), ("%", 2.4), ("-", 2.8), ("+", 3.0)),
    "//": (("/", 1.2), ("%", 1.6), ("*", 2.0), ("-", 2.8), (">>", 3.6)),
    "%": (("//", 1.4), ("/", 2.0), ("-", 2.8), ("*", 3.0), ("&", 3.6)),
    "**": (("*", 1.4), ("/", 3.4), ("//", 3.6)),
    "<<": ((">>", 1.0), ("*", 3.0)),
    ">>": (("<<", 1.0), ("//", 3.0), ("/", 3.6)),
    "&": (("|", 1.2), ("^", 1.6), ("and", 2.8), ("-", 2.8)),
    "|": (("&", 1.2), ("^", 1.6), ("or", 2.8), ("+", 3.0)),
    "^": (("&", 1.4), ("|", 1.4), ("**", 1.8)),
    "@": (("*", 1.4),),
}

SIDED = ("-", "/", "//", "%", "**", "<<", ">>", "+", "|")
SIZED = frozenset(("str", "list", "tuple", "dict", "set", "deque", "bytes"))
NUMBERS = frozenset(("int", "float", "Decimal", "Fraction", "bool"))


LEVELS = {sign: BINDING[kind] for kind, sign in SIGNS.items()} | {"and": AND, "or": OR}


def joined(left: str, sign: str, right: str) -> str:
    """Return ``left sign right`` with the necessary parentheses."""
    level = LEVELS[sign]
    return f"{bound(left, level + (level == POWER))} {sign} {bound(right, level + (level != POWER))}"


def atom(text: str) -> str:
    """Return `text` in parentheses unless it binds tightly already."""
    return bound(text, ATOM)


def operators(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another operator, swapped or dropped operands, or another grouping."""
    if not isinstance(node, ast.BinOp):
        return
    sign = SIGNS[type(node.op)]
    left, right = place.text(node.left), place.text(node.right)
    if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) and sign == "%":
        return  # text formatting
    for other, cost in INSTEAD[sign]:
        yield Alternative(joined(left, other, right), "arithmetic operator", cost)
    if sign in SIDED:
        yield Alternative(joined(right, sign, left), "operands swapped", 2.8 if sign in "+|" else 1.8)
    yield Alternative(left, "operand dropped", 2.4)
    yield Alternative(right, "operand dropped", 2.4)
    if isinstance(node.left, ast.BinOp):
        a, b, other = place.text(node.left.left), place.text(node.left.right), SIGNS[type(node.left.op)]
        yield Alternative(joined(a, other, joined(b, sign, right)), "grouping", 2.0)
    if isinstance(node.right, ast.BinOp):
        a, b, other = place.text(node.right.left), place.text(node.right.right), SIGNS[type(node.right.op)]
        yield Alternative(joined(joined(left, sign, a), other, b), "grouping", 2.0)


def signs(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose an added or removed minus sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield Alternative(place.text(node.operand), "sign", 1.4)
    elif (
        isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        and numeric(place, node) is not False
    ):
        parent = place.parent(node)
        if isinstance(
            parent, ast.Return | ast.Tuple | ast.Call | ast.Assign | ast.keyword | ast.Lambda | ast.Slice
        ):
            yield Alternative(f"-{place.text(node)}", "sign", 3.4)


def numeric(place: Place, node: ast.expr) -> bool | None:
    """Tell whether `node` is a number; None if unknown."""
    if isinstance(node, ast.Name):
        kinds = place.scope.kinds(node.id)
        return bool(kinds & NUMBERS) if kinds else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("len", "int", "abs", "sum", "round", "min", "max", "ord"):
            return True
        if node.func.id in (
            "str",
            "list",
            "sorted",
            "set",
            "dict",
            "tuple",
            "enumerate",
            "zip",
            "range",
            "map",
            "filter",
        ):
            return False
    if isinstance(node, ast.BinOp):
        sides = (numeric(place, node.left), numeric(place, node.right))
        return False if False in sides else True if True in sides else None
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(
        node,
        ast.List | ast.Dict | ast.Set | ast.Tuple | ast.ListComp | ast.JoinedStr | ast.Compare | ast.BoolOp,
    ):
        return False
    return None


def offsets(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a value one more or less, or with a value of the scope added, subtracted or multiplied."""
    if isinstance(node, ast.Constant | ast.UnaryOp) or isinstance(
        getattr(node, "ctx", None), ast.Store | ast.Del
    ):
        return
    number = numeric(place, node)
    if number is False or not isinstance(
        node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp
    ):
        return
    parent = place.parent(node)
    if isinstance(
        parent, ast.Attribute | ast.Expr | ast.keyword | ast.withitem | ast.FormattedValue | ast.For
    ):
        return
    if isinstance(parent, ast.BinOp) and isinstance(node, ast.BinOp):
        return
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return
    text = place.text(node)
    usual = isinstance(parent, ast.Slice | ast.Subscript | ast.Compare)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "range":
        usual = True
    cost = (1.8 if usual else 2.6) + (0 if number else 0.6)
    yield Alternative(f"{text} + 1", "off by one", cost)
    yield Alternative(f"{text} - 1", "off by one", cost)
    for name in place.names(node):
        kinds = place.scope.kinds(name)
        if name == text or (kinds and not kinds & NUMBERS) or (not kinds and number is None and not usual):
            continue
        near = (0 if kinds else 1.0) + (-1.0 if name in place.scope.unread else 0)
        yield Alternative(f"{text} - {name}", "missing term", 4.0 + near)
        yield Alternative(f"{text} + {name}", "missing term", 4.0 + near)
        if number:
            yield Alternative(joined(text, "*", name), "missing factor", 4.8 + near)
            yield Alternative(f"max({text}, {name})", "missing bound", 5.0 + near)
            yield Alternative(f"min({text}, {name})", "missing bound", 5.0 + near)
    for name in place.names(node):
        if place.scope.kinds(name) & SIZED and name != text:
            yield Alternative(f"{text} - len({name})", "missing term", 4.4)
            yield Alternative(f"{text} + len({name})", "missing term", 4.8)
    later = 0.0 if number else 1.0
    for written in (
        f"max(0, {text})",
        joined(text, "**", "2"),
        joined("2", "*", text),
        joined(text, "//", "2"),
        joined(text, "%", "2"),
    ):
        yield Alternative(written, "missing factor", 4.8 + later)
    yield Alternative(joined(text, "/", "100"), "missing factor", 5.0 + later)
    yield Alternative(joined(text, "*", "100"), "missing factor", 5.2 + later)
    yield Alternative(joined("1", "-", text), "missing factor", 5.0 + later)
    yield Alternative(f"1 + {text}", "off by one", 5.4 + later)
