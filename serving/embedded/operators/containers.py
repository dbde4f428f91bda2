"""Containers: elements in the wrong order, one too many, or one object shared where several were meant."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.base import Alternative, Place


def order(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Elements of a tuple, or mappings merged into a dict, in another order; a tuple made by a stray comma."""
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
    """A new object for each place instead of the same one in all."""
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
