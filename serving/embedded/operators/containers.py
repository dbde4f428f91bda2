"""Mutate containers: elements in the wrong order, one too many, or one object shared by mistake."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternatives, Mutation, Place, is_stored, swapped
from m3agent.serving.embedded.source import Edit

ENTRIES = 4
"""A literal with at least this many texts counts as a list of names, from which one may be missing."""


def order(place: Place, node: ast.expr) -> Alternatives:
    """Propose another order of a tuple's elements or of merged mappings, and removal of a stray comma."""
    if isinstance(node, ast.Tuple) and not is_stored(node):
        texts, start = place.texts(node.elts), place.source.span(node)[0]
        bare = not place.text(node).startswith("(") or (texts and place.source.span(node.elts[0])[0] == start)
        if len(texts) == 1:
            yield texts[0], "stray comma", 1.6
        for others in swapped(texts):
            joined = ", ".join(others)
            yield joined if bare else f"({joined})", "elements swapped", 1.8
    if isinstance(node, ast.Dict):
        parts = [
            f"**{place.text(value)}" if key is None else f"{place.text(key)}: {place.text(value)}"
            for key, value in zip(node.keys, node.values, strict=True)
        ]
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
        case _:
            pass


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
