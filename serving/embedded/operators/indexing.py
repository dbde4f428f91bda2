"""Mutate indices and slices: off by one, from the wrong end, a bound missing or too many."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Place


def indices(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another element: the first, the last, a neighbour, or a safe lookup."""
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice):
        return
    base, index = place.text(node.value), place.text(node.slice)
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        for other, cost in (("0", 1.6), ("-1", 1.6), ("1", 1.6), ("-2", 3.0), ("2", 2.6)):
            if other != index:
                yield Alternative(f"{base}[{other}]", "index", cost)
    if isinstance(node.slice, ast.UnaryOp):
        yield Alternative(f"{base}[0]", "index", 1.6)
        yield Alternative(f"{base}[1]", "index", 2.8)
    if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
        first, second = (place.text(part) for part in node.slice.elts)
        yield Alternative(f"{base}[{second}, {first}]", "indices swapped", 2.0)
    if isinstance(node.value, ast.Subscript) and not isinstance(node.value.slice, ast.Slice):
        inner, other = place.text(node.value.value), place.text(node.value.slice)
        yield Alternative(f"{inner}[{index}][{other}]", "indices swapped", 2.2)
    if isinstance(node.ctx, ast.Load):
        cost = 2.2 if "KeyError" in place.hints.errors else 3.2
        for default in ("", ", 0", ", []", ", ''", ", {}", ", False", ", set()"):
            yield Alternative(f"{base}.get({index}{default})", "lookup", cost)
        yield Alternative(f"{base}[{index}:]", "slice", 3.8)
        yield Alternative(f"{base}[:{index}]", "slice", 3.8)


def slices(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another part of a sequence, or a part instead of the whole."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        base = place.text(node.value)
        lower, upper, step = (
            place.text(part) if part is not None else ""
            for part in (node.slice.lower, node.slice.upper, node.slice.step)
        )

        def written(low: str, high: str, by: str = step) -> str:
            return f"{base}[{low}:{high}{':' + by if by else ''}]"

        if upper:
            yield Alternative(written(lower, f"{upper} + 1"), "slice", 1.6)
            yield Alternative(written(lower, f"{upper} - 1"), "slice", 1.6)
            yield Alternative(written(lower, ""), "slice", 2.0)
            yield Alternative(written(upper, lower), "slice", 2.4)
            if lower:
                yield Alternative(written(lower, f"{lower} + {upper}"), "slice", 2.6)
            yield Alternative(written(lower, f"-{upper}"), "slice", 3.0)
        if lower:
            yield Alternative(written(f"{lower} + 1", upper), "slice", 1.6)
            yield Alternative(written(f"{lower} - 1", upper), "slice", 1.8)
            yield Alternative(written("", upper), "slice", 2.0)
            yield Alternative(written("", lower), "slice", 2.2)
            yield Alternative(written(f"-{lower}", upper), "slice", 2.4)
            yield Alternative(f"{base}[{lower}]", "slice", 3.0)
        if not upper:
            yield Alternative(written(lower, "-1"), "slice", 2.2)
        if not lower:
            yield Alternative(written("1", upper), "slice", 2.2)
        yield Alternative(written(lower, upper, "" if step else "-1"), "slice", 2.4)
        if step:
            yield Alternative(
                written(lower, upper, step[1:] if step.startswith("-") else f"-{step}"), "slice", 2.0
            )
        for name in place.names(node):
            if place.scope.alike(name, name) is None or "int" in place.scope.kinds(name):
                unread = -0.8 if name in place.scope.unread else 0.0
                yield Alternative(written(lower, name), "slice", 3.4 + unread)
                yield Alternative(written(name, upper), "slice", 3.4 + unread)
        return
    yield from _parts(place, node)


def _parts(place: Place, node: ast.expr) -> Iterator[Alternative]:
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call) or isinstance(
        getattr(node, "ctx", None), ast.Store
    ):
        return
    parent = place.parent(node)
    if isinstance(parent, ast.Attribute | ast.Subscript | ast.Expr | ast.BinOp | ast.Slice) and not (
        isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add)
    ):
        return
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    kinds = place.scope.kinds(node.id) if isinstance(node, ast.Name) else set()
    if kinds and not kinds & {"list", "tuple", "str", "bytes", "deque"}:
        return
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id not in ("sorted", "list")
    ):
        return
    later = 0.0 if kinds else 0.8
    text = place.text(node)
    for part, cost in (
        ("[1:]", 3.0),
        ("[:-1]", 3.0),
        ("[::-1]", 3.2),
        ("[:]", 3.4),
        ("[0]", 3.6),
        ("[-1]", 3.6),
    ):
        yield Alternative(text + part, "missing slice", cost + later)
    for name in place.names(node):
        if name != text and "int" in (
            place.scope.kinds(name) or {"int"} if kinds else place.scope.kinds(name)
        ):
            unread = -0.8 if name in place.scope.unread else 0.0
            for part in (f"[{name}:]", f"[:{name}]", f"[{name}]", f"[{name} + 1:]"):
                yield Alternative(text + part, "missing slice", 4.2 + later + unread)
