"""Mutate containers: elements, indices and slices that are wrong, missing or too many, and shared objects."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import TABLES, Alternatives, Mutation, Place, is_stored, swapped
from m3agent.serving.embedded.source import Edit

TABLE = TABLES["containers"]
SEQUENCES = ("list", "tuple", "str", "bytes", "deque")
ENTRIES = 4
"""A literal with at least this many texts counts as a list of names, from which one may be missing."""


def order(place: Place, node: ast.Tuple) -> Alternatives:
    """Propose another order of a tuple's elements, and removal of a stray comma."""
    if is_stored(node):
        return
    texts, (start, _) = place.texts(node.elts), place.source.span(node)
    if len(texts) == 1:
        yield texts[0], "stray comma", 1.6
    bare = start in (place.source.span(part)[0] for part in node.elts)
    for others in swapped(texts):
        joined = ", ".join(others)
        yield joined if bare else f"({joined})", "elements swapped", 1.8


def merged(place: Place, node: ast.Dict) -> Alternatives:
    """Propose another order of merged mappings."""
    keys = ("**" if key is None else f"{place.text(key)}: " for key in node.keys)
    parts = [key + value for key, value in zip(keys, place.texts(node.values), strict=True)]
    for index, others in enumerate(swapped(parts)):
        if None in node.keys[index : index + 2]:
            yield "{" + ", ".join(others) + "}", "elements swapped", 2.0


def shared(place: Place, node: ast.expr) -> Alternatives:
    """Propose a new object for each place instead of one shared object."""
    match node:
        case ast.BinOp(left=ast.List(elts=[repeated]), op=ast.Mult(), right=count):
            if not isinstance(repeated, ast.Constant | ast.Name):
                yield f"[{place.text(repeated)} for _ in range({place.text(count)})]", "shared object", 1.4
        case ast.Call(args=[keys, value]) if ast.unparse(node.func) == "dict.fromkeys":
            yield f"{{key: {place.text(value)} for key in {place.text(keys)}}}", "shared object", 1.8


def entries(place: Place) -> Iterator[Mutation]:
    """Propose a text of the issue as a new entry of a literal of texts, in the same format and order."""
    for node in place.source.expressions(place.statement):
        if isinstance(node, ast.Dict):
            keys, values = [key for key in node.keys if key is not None], node.values
        elif isinstance(node, ast.List | ast.Set | ast.Tuple):
            keys = values = node.elts
        else:
            continue
        known = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if len(known) < max(ENTRIES, len(values)):
            continue
        for text in dict.fromkeys((*place.hints.strings, *sorted(place.hints.words))):
            if text not in known and _style(text) == _style(known[0]) == _style(known[-1]):
                yield from _entry(place, keys, values, known, text)


def _entry(
    place: Place, keys: list[ast.expr], values: list[ast.expr], known: list[str], text: str
) -> Iterator[Mutation]:
    source = place.source
    ordered = (at for at in range(len(known) - 1, 0, -1) if known[at - 1] < text < known[at])
    at = next(ordered, len(known))
    before = min(at, len(known) - 1)
    between = source.text[source.span(values[before - 1])[1] : source.span(keys[before])[0]]
    if not re.fullmatch(r"\s*,\s*", between):
        between = ", "
    quote = place.text(keys[at - 1])[0]
    entry = between + (f"{quote}{text}{quote}" if quote in "'\"" else repr(text))
    usual = Counter(place.texts(values)).most_common(1)[0][0]
    added = [f": {value}" for value in dict.fromkeys((place.text(values[at - 1]), usual))]
    end = source.span(values[at - 1])[1]
    for value in added if values is not keys else [""]:
        yield place.change("missing entry", 3.2, Edit(end, end, entry + value), line=keys[at - 1].lineno)


def _style(text: str) -> tuple[bool, bool, bool]:
    """Return the style of a text: upper case, lower case, and whether it is one word."""
    return text.isupper(), text.islower(), bool(re.fullmatch(r"\w+", text))


def indices(place: Place, node: ast.Subscript) -> Alternatives:
    """Propose another element: the first, the last, a neighbour, or a safe lookup."""
    if isinstance(node.slice, ast.Slice):
        return
    base, index = place.text(node.value), place.text(node.slice)
    match node.slice:
        case ast.Constant(value=int()):
            for other, cost in TABLE["indices"].items():
                if other != index:
                    yield f"{base}[{other}]", "index", cost
        case ast.UnaryOp():
            yield f"{base}[0]", "index", 1.6
            yield f"{base}[1]", "index", 2.8
        case ast.Tuple(elts=[first, second]):
            yield f"{base}[{place.text(second)}, {place.text(first)}]", "indices swapped", 2.0
    if isinstance(node.value, ast.Subscript) and not isinstance(node.value.slice, ast.Slice):
        inner, other = place.texts((node.value.value, node.value.slice))
        yield f"{inner}[{index}][{other}]", "indices swapped", 2.2
    if isinstance(node.ctx, ast.Load):
        for default in TABLE["defaults"]:
            yield f"{base}.get({index}{default})", "lookup", 2.2 if "KeyError" in place.hints.errors else 3.2
        yield f"{base}[{index}:]", "slice", 3.8
        yield f"{base}[:{index}]", "slice", 3.8


def slices(place: Place, node: ast.Subscript) -> Alternatives:
    """Propose another part of a sequence."""
    if not isinstance(node.slice, ast.Slice):
        return
    base = place.text(node.value)
    parts = (node.slice.lower, node.slice.upper, node.slice.step)
    lower, upper, step = ("" if part is None else place.text(part) for part in parts)
    end = f":{step}" if step else ""
    reverse = step[1:] if step.startswith("-") else f"-{step or 1}"
    rows = [*_other_bounds(lower, upper, end), (f"{lower}:{upper}:{reverse}", 2.0 if step else 2.4)]
    for name in place.names_of(node, "int"):
        cost = 3.4 - place.unread(name, 0.8)
        rows += [(f"{lower}:{name}{end}", cost), (f"{name}:{upper}{end}", cost)]
    yield from ((f"{base}[{part}]", "slice", cost) for part, cost in rows)


def _other_bounds(lower: str, upper: str, end: str) -> Iterator[tuple[str, float]]:
    """Yield slices with other bounds, with their costs; `end` is the step with its colon."""
    parts = {"lower": lower, "upper": upper, "end": end}
    for row in TABLE["bounds"]:
        if all(parts[name] for name in row.get("with", ())) and not parts.get(row.get("without", "")):
            yield from ((text.format(**parts), cost) for text, cost in row["slices"].items())


def _takes_part(place: Place, node: ast.Name | ast.Attribute | ast.Call) -> bool:
    """Tell whether a part may stand where `node` stands: not where a part of it is taken already."""
    if is_stored(node) or place.is_called(node):
        return False
    match place.parent(node):
        case ast.BinOp(op=sign):
            return isinstance(sign, ast.Add)
        case ast.Attribute() | ast.Subscript() | ast.Expr() | ast.Slice():
            return False
        case _:
            return True


def parts_of(place: Place, node: ast.Name | ast.Attribute | ast.Call) -> Alternatives:
    """Propose a part of a sequence instead of the whole."""
    kinds = set[str]()
    match node:
        case ast.Name(id=name):
            kinds = place.scope.kinds(name)
        case ast.Call(func=ast.Name(id=name)) if name not in ("sorted", "list"):
            return
    if not _takes_part(place, node) or (kinds and kinds.isdisjoint(SEQUENCES)):
        return
    later = 0.0 if kinds else 0.8
    text = place.text(node)
    for part, cost in TABLE["parts"].items():
        yield text + part, "missing slice", cost + later
    for name in place.names_of(node, "int", unknown=bool(kinds)):
        cost = 4.2 + later - place.unread(name, 0.8)
        parts = (f"[{name}:]", f"[:{name}]", f"[{name}]", f"[{name} + 1:]") if name != text else ()
        yield from ((text + part, "missing slice", cost) for part in parts)


ON_EXPRESSIONS = (indices, slices, parts_of, order, merged, shared)


ON_STATEMENTS = (entries,)
