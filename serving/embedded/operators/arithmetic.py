"""Mutate arithmetic and bitwise operators, their operands and grouping, and results off by a term."""

import ast

from m3agent.serving.embedded.operators.base import INSTEAD, TABLES, Alternatives, Place, is_read, operator_of
from m3agent.serving.embedded.source import AND, ATOM, BINDING, OR, POWER, bound

SIGNS = {
    operator_of(f"a {sign} b"): sign
    for sign in ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "@"]
}

SIDED = ("-", "/", "//", "%", "**", "<<", ">>", "+", "|")
SIZED = frozenset(("str", "list", "tuple", "dict", "set", "deque", "bytes"))
NUMBERS = frozenset(("int", "float", "Decimal", "Fraction", "bool"))
OF_NUMBERS, OF_OTHERS, FACTORS = (
    TABLES["arithmetic"][name] for name in ("of_numbers", "of_others", "factors")
)
NO_NUMBERS = (
    ast.List | ast.Dict | ast.Set | ast.Tuple | ast.ListComp | ast.JoinedStr | ast.Compare | ast.BoolOp
)

LEVELS = {sign: BINDING[kind] for kind, sign in SIGNS.items()} | {"and": AND, "or": OR}


def joined(left: str, sign: str, right: str) -> str:
    """Return ``left sign right`` with the necessary parentheses."""
    level = LEVELS[sign]
    return f"{bound(left, level + (level == POWER))} {sign} {bound(right, level + (level != POWER))}"


def atom(text: str) -> str:
    """Return `text` in parentheses unless it binds tightly already."""
    return bound(text, ATOM)


def operators(place: Place, node: ast.BinOp) -> Alternatives:
    """Propose another operator, swapped or dropped operands, or another grouping."""
    sign = SIGNS[type(node.op)]
    left, right = place.text(node.left), place.text(node.right)
    if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) and sign == "%":
        return  # text formatting
    for other, cost in INSTEAD[sign].items():
        yield joined(left, other, right), "arithmetic operator", cost
    if sign in SIDED:
        yield joined(right, sign, left), "operands swapped", 2.8 if sign in "+|" else 1.8
    yield left, "operand dropped", 2.4
    yield right, "operand dropped", 2.4
    if isinstance(node.left, ast.BinOp):
        a, b, other = place.text(node.left.left), place.text(node.left.right), SIGNS[type(node.left.op)]
        yield joined(a, other, joined(b, sign, right)), "grouping", 2.0
    if isinstance(node.right, ast.BinOp):
        a, b, other = place.text(node.right.left), place.text(node.right.right), SIGNS[type(node.right.op)]
        yield joined(joined(left, sign, a), other, b), "grouping", 2.0


def signs(place: Place, node: ast.expr) -> Alternatives:
    """Propose an added or removed minus sign."""
    signed = ast.Return | ast.Tuple | ast.Call | ast.Assign | ast.keyword | ast.Lambda | ast.Slice
    value = isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield place.text(node.operand), "sign", 1.4
    elif value and numeric(place, node) is not False and isinstance(place.parent(node), signed):
        yield f"-{place.text(node)}", "sign", 3.4


def numeric(place: Place, node: ast.expr) -> bool | None:
    """Tell whether `node` is a number; None if unknown."""
    match node:
        case ast.Name():
            kinds = place.scope.kinds(node.id)
            return bool(kinds & NUMBERS) if kinds else None
        case ast.Call(func=ast.Name(id=name)):
            return True if name in OF_NUMBERS else False if name in OF_OTHERS else None
        case ast.BinOp():
            sides = (numeric(place, node.left), numeric(place, node.right))
            return False if False in sides else True if True in sides else None
        case ast.Constant():
            return type(node.value) in (int, float)
        case _:
            return False if isinstance(node, NO_NUMBERS) else None


def _takes_term(place: Place, node: ast.expr) -> bool:
    """Tell whether a term may be added to `node` where it stands."""
    parent = place.parent(node)
    inner = isinstance(parent, ast.BinOp) and isinstance(node, ast.BinOp)
    closed = isinstance(parent, ast.Expr | ast.keyword | ast.withitem | ast.FormattedValue | ast.For)
    return (
        is_read(node) and numeric(place, node) is not False and not (inner or closed or place.is_base(node))
    )


def _is_bound(place: Place, node: ast.expr) -> bool:
    """Tell whether `node` is an index, a bound, or compared: where values are often off by one."""
    match place.parent(node):
        case ast.Slice() | ast.Subscript() | ast.Compare() | ast.Call(func=ast.Name(id="range")):
            return True
        case _:
            return False


def _with_variables(place: Place, node: ast.expr, number: bool | None, usual: bool) -> Alternatives:
    """Propose a value with a variable added, subtracted or multiplied, or as its bound."""
    text = place.text(node)
    for name in place.others(node):
        kinds = place.scope.kinds(name)
        if kinds & NUMBERS or (not kinds and (number or usual)):
            near = (0 if kinds else 1.0) - place.unread(name, 1.0)
            yield f"{text} - {name}", "missing term", 4.0 + near
            yield f"{text} + {name}", "missing term", 4.0 + near
            if number:
                yield joined(text, "*", name), "missing factor", 4.8 + near
                yield f"max({text}, {name})", "missing bound", 5.0 + near
                yield f"min({text}, {name})", "missing bound", 5.0 + near
    for name in place.names_of(node, *SIZED, unknown=False):
        if name != text:
            yield f"{text} - len({name})", "missing term", 4.4
            yield f"{text} + len({name})", "missing term", 4.8


def offsets(
    place: Place, node: ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp
) -> Alternatives:
    """Propose a value one more or less, or with a value of the scope added, subtracted or multiplied."""
    if not _takes_term(place, node):
        return
    text, number, usual = place.text(node), numeric(place, node), _is_bound(place, node)
    cost = (1.8 if usual else 2.6) + (0 if number else 0.6)
    yield f"{text} + 1", "off by one", cost
    yield f"{text} - 1", "off by one", cost
    yield from _with_variables(place, node, number, usual)
    later = 0.0 if number else 1.0
    yield f"max(0, {text})", "missing factor", 4.8 + later
    for written, more in FACTORS.items():
        left, sign, right = (text if part == "x" else part for part in written.split())
        yield joined(left, sign, right), "missing factor", 4.8 + more + later
    yield f"1 + {text}", "off by one", 5.4 + later


ON_EXPRESSIONS = (operators, signs, offsets)
