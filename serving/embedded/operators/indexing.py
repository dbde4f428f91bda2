"""Mutate indices and slices: off by one, from the wrong end, a bound missing or too many."""

import ast

from m3agent.serving.embedded.operators.base import Alternatives, Place, is_stored

INDICES = (("0", 1.6), ("-1", 1.6), ("1", 1.6), ("-2", 3.0), ("2", 2.6))
DEFAULTS = ("", ", 0", ", []", ", ''", ", {}", ", False", ", set()")
PARTS = (("[1:]", 3.0), ("[:-1]", 3.0), ("[::-1]", 3.2), ("[:]", 3.4), ("[0]", 3.6), ("[-1]", 3.6))


def indices(place: Place, node: ast.expr) -> Alternatives:
    """Propose another element: the first, the last, a neighbour, or a safe lookup."""
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Slice):
        return
    base, index = place.text(node.value), place.text(node.slice)
    match node.slice:
        case ast.Constant(value=int()):
            for other, cost in INDICES:
                if other != index:
                    yield f"{base}[{other}]", "index", cost
        case ast.UnaryOp():
            yield f"{base}[0]", "index", 1.6
            yield f"{base}[1]", "index", 2.8
        case ast.Tuple(elts=[first, second]):
            yield f"{base}[{place.text(second)}, {place.text(first)}]", "indices swapped", 2.0
        case _:
            pass
    if isinstance(node.value, ast.Subscript) and not isinstance(node.value.slice, ast.Slice):
        inner, other = place.texts((node.value.value, node.value.slice))
        yield f"{inner}[{index}][{other}]", "indices swapped", 2.2
    if isinstance(node.ctx, ast.Load):
        for default in DEFAULTS:
            yield f"{base}.get({index}{default})", "lookup", 2.2 if "KeyError" in place.hints.errors else 3.2
        yield f"{base}[{index}:]", "slice", 3.8
        yield f"{base}[:{index}]", "slice", 3.8


def slices(place: Place, node: ast.expr) -> Alternatives:
    """Propose another part of a sequence, or a part instead of the whole."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        yield from _parts(place, node)
        return
    base = place.text(node.value)
    parts = (node.slice.lower, node.slice.upper, node.slice.step)
    lower, upper, step = ("" if part is None else place.text(part) for part in parts)
    end = f":{step}" if step else ""
    found: list[tuple[str, float]] = []
    if upper:
        found += [(f"{lower}:{upper} + 1{end}", 1.6), (f"{lower}:{upper} - 1{end}", 1.6)]
        found += [(f"{lower}:{end}", 2.0), (f"{upper}:{lower}{end}", 2.4)]
        found += [(f"{lower}:{lower} + {upper}{end}", 2.6)] if lower else []
        found.append((f"{lower}:-{upper}{end}", 3.0))
    if lower:
        found += [(f"{lower} + 1:{upper}{end}", 1.6), (f"{lower} - 1:{upper}{end}", 1.8)]
        found += [(f":{upper}{end}", 2.0), (f":{lower}{end}", 2.2)]
        found += [(f"-{lower}:{upper}{end}", 2.4), (lower, 3.0)]
    if not upper:
        found.append((f"{lower}:-1{end}", 2.2))
    if not lower:
        found.append((f"1:{upper}{end}", 2.2))
    found.append((f"{lower}:{upper}{'' if step else ':-1'}", 2.4))
    if step:
        found.append((f"{lower}:{upper}:{step[1:] if step.startswith('-') else f'-{step}'}", 2.0))
    for name in place.names(node):
        kinds = place.scope.kinds(name)
        if not kinds or "int" in kinds:
            cost = 3.4 - place.unread(name, 0.8)
            found += [(f"{lower}:{name}{end}", cost), (f"{name}:{upper}{end}", cost)]
    yield from ((f"{base}[{part}]", "slice", cost) for part, cost in found)


def _parts(place: Place, node: ast.expr) -> Alternatives:
    if not isinstance(node, ast.Name | ast.Attribute | ast.Call) or is_stored(node) or place.is_called(node):
        return
    parent = place.parent(node)
    added = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add)
    if isinstance(parent, ast.Attribute | ast.Subscript | ast.Expr | ast.BinOp | ast.Slice) and not added:
        return
    kinds = place.scope.kinds(node.id) if isinstance(node, ast.Name) else set()
    if kinds and not kinds & {"list", "tuple", "str", "bytes", "deque"}:
        return
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Name) and called.id not in ("sorted", "list"):
        return
    later = 0.0 if kinds else 0.8
    text = place.text(node)
    for part, cost in PARTS:
        yield text + part, "missing slice", cost + later
    for name in place.names(node):
        others = place.scope.kinds(name) or ({"int"} if kinds else set())
        if name != text and "int" in others:
            for part in (f"[{name}:]", f"[:{name}]", f"[{name}]", f"[{name} + 1:]"):
                yield text + part, "missing slice", 4.2 + later - place.unread(name, 0.8)
