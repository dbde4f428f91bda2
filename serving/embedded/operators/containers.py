"""Mutate containers: elements in the wrong order, one too many, or one object shared by mistake."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Mutation, Place
from m3agent.serving.embedded.source import Edit


def order(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another order of a tuple's elements or of merged mappings, and removal of a stray comma."""
    if isinstance(node, ast.Tuple) and not isinstance(node.ctx, ast.Store):
        texts = [place.text(part) for part in node.elts]
        text = place.text(node)
        bare = not text.startswith("(") or (
            texts and place.source.span(node.elts[0])[0] == place.source.span(node)[0]
        )
        if len(texts) == 1:
            yield Alternative(texts[0], "stray comma", 1.6)
        for index in range(len(texts) - 1):
            joined = ", ".join([*texts[:index], texts[index + 1], texts[index], *texts[index + 2 :]])
            yield Alternative(joined if bare else f"({joined})", "elements swapped", 1.8)
    if isinstance(node, ast.Dict):
        parts = [
            f"**{place.text(value)}" if key is None else f"{place.text(key)}: {place.text(value)}"
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        for index, key in enumerate(node.keys[:-1]):
            if key is None or node.keys[index + 1] is None:
                swapped = [*parts[:index], parts[index + 1], parts[index], *parts[index + 2 :]]
                yield Alternative("{" + ", ".join(swapped) + "}", "elements swapped", 2.0)


def shared(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a new object for each place instead of one shared object."""
    match node:
        case ast.BinOp(left=ast.List(elts=[repeated]), op=ast.Mult(), right=count):
            if not isinstance(repeated, ast.Constant | ast.Name):
                text = f"[{place.text(repeated)} for _ in range({place.text(count)})]"
                yield Alternative(text, "shared object", 1.4)
        case _:
            pass
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict.fromkeys" and len(node.args) == 2:
        keys, value = (place.text(argument) for argument in node.args)
        yield Alternative(f"{{key: {value} for key in {keys}}}", "shared object", 1.8)


ENTRIES = 4
"""A literal with at least this many texts counts as a list of names, from which one may be missing."""


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
                yield from _entry(place, node, keys, values, text)


def _entry(
    place: Place, node: ast.expr, keys: list[ast.expr], values: list[ast.expr], text: str
) -> Iterator[Mutation]:
    source = place.source
    known = [getattr(key, "value", "") for key in keys]
    at = next(
        (number for number in range(len(known) - 1, 0, -1) if known[number - 1] < text < known[number]),
        len(known),
    )
    before = min(at, len(known) - 1)
    between = source.text[source.span(values[before - 1])[1] : source.span(keys[before])[0]]
    if not re.fullmatch(r"\s*,\s*", between):
        between = ", "
    quote = place.text(keys[at - 1])[0]
    written = f"{quote}{text}{quote}" if quote in "'\"" else repr(text)
    end = source.span(values[at - 1])[1]
    line = keys[at - 1].lineno
    if not isinstance(node, ast.Dict):
        yield Mutation((Edit(end, end, between + written),), line, "missing entry", 3.2)
        return
    usual = Counter(place.text(value) for value in values).most_common(1)[0][0]
    for value in dict.fromkeys((place.text(values[at - 1]), usual)):
        yield Mutation((Edit(end, end, f"{between}{written}: {value}"),), line, "missing entry", 3.2)


def _style(text: str) -> tuple[bool, bool, bool]:
    """Return the style of a text: upper case, lower case, and whether it is one word."""
    return text.isupper(), text.islower(), bool(re.fullmatch(r"\w+", text))
