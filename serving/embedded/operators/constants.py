"""Mutate literals: numbers, texts, truth values, None and empty containers."""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import TypeVar

from m3agent.serving.embedded.operators.base import TABLES, Alternatives, Place, is_stored, shortened, swapped

TABLE = TABLES["constants"]
_T = TypeVar("_T")


def literals(place: Place, node: ast.expr) -> Alternatives:
    """Propose another constant."""
    match node:
        case ast.Constant() if isinstance(place.parent(node), ast.Expr | ast.JoinedStr):
            return
        case ast.Constant(value=bool() as value):
            yield str(not value), "truth value", 1.2
            yield from _others(place, node, "truth value", 3.2)
        case ast.Constant(value=None):
            yield from _others(place, node, "empty value", 2.6)
        case ast.Constant(value=int() | float() as value):
            yield from _numbers(place, node, value)
        case ast.Constant(value=str() as value):
            yield from _texts(place, node, value)
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]):
            yield from _others(place, node, "empty value", 2.8)
        case ast.List() if not is_stored(node):
            texts = place.texts(node.elts)
            for rest in shortened(texts):
                yield f"[{', '.join(rest)}]", "element dropped", 3.4
            if len(texts) == 1:
                yield texts[0], "list unwrapped", 3.2
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            yield from _others(place, node, "empty value", 3.2)


def _others(place: Place, node: ast.expr, operator: str, cost: float) -> Alternatives:
    text = place.text(node)
    for number, other in enumerate(TABLE["empties"]):
        if other != text:
            yield other, operator, cost + number * 0.1
    if isinstance(place.parent(node), ast.Return | ast.Assign):
        if isinstance(node, ast.List):
            yield "[[]]", operator, cost
        for name in place.names(node):
            less = place.unread(name, 1.0)
            yield name, operator, cost + 0.4 - less
            yield f"[{name}]", operator, cost + 1.6 - less


def _numbers(place: Place, node: ast.Constant, value: float) -> Alternatives:
    is_given = isinstance(place.parent(node), ast.Assign | ast.Return | ast.Call | ast.keyword)
    costs: dict[str, float] = {}
    for number, cost in _other_numbers(place, value):
        costs.setdefault(repr(number), cost)
    costs.pop(repr(value), None)
    for text, cost in costs.items():
        if "inf" not in text and "nan" not in text:
            yield text, "off by one" if cost == 1.2 else "number", cost
    for text, cost in (("None", 4.0), ("float('inf')", 3.6), ("float('-inf')", 3.8)) if is_given else ():
        yield text, "empty value", cost
    for name in place.names_of(node, "int", "float"):
        yield name, "constant for variable", 3.4 - place.unread(name, 1.0)


def _each(values: Iterable[_T], cost: float) -> Iterator[tuple[_T, float]]:
    """Yield each value with the same cost."""
    return zip(values, itertools.repeat(cost))


def _other_numbers(place: Place, value: float) -> Iterator[tuple[object, float]]:
    """Yield numbers in the place of one, each with its cost."""
    factors, is_whole = TABLE["factors"], isinstance(value, int)
    yield from _each((value + 1, value - 1), 1.2)
    if is_whole:
        yield from ((0, 1.6), (1, 1.6), (-1, 2.0), (2, 2.2))
        parts = [value // divisor for divisor in factors if value % divisor == 0]
    else:
        yield from ((0.0, 2.2), (1.0, 2.2), (round(1 - value, 12), 2.6))
        parts = [round(value / divisor, 15) for divisor in factors]
    yield -value, 2.0
    yield from _each(place.hints.numbers, 3.0)
    yield from _each([value * factor for factor in factors] + parts, 2.8)
    for constants, cost in ((place.scope.constants, 2.6), (place.module.constants, 3.2)):
        yield from _each(constants.get(int, [])[:24], cost)
        yield from _each(constants.get(float, [])[:24], cost)
    if is_whole:
        yield from _each(TABLE["usual_numbers"], 4.0)
        yield from _each([value + step for step in (2, -2, 3, -3, 10, -10)], 3.4)
        yield from _each([int("".join(digits)) for digits in swapped(list(str(abs(value))))], 3.4)


def _quoted(text: str, like: str) -> str:
    quote = '"' if '"' in like[:4] else "'"
    body = repr(text)[1:-1] if "'" not in text else repr(text.replace("'", "\0"))[1:-1].replace("\\x00", "'")
    return quote + body.replace(quote, "\\" + quote) + quote


def _texts(place: Place, node: ast.Constant, value: str) -> Alternatives:
    like, parent = place.text(node), place.parent(node)
    prefix = re.split("[\"']", like, maxsplit=1)[0].lower()
    if "f" in prefix or like[len(prefix) :][:3] in ('"""', "'''"):
        return
    if re.search(r"\{[\w.\[\]()]+(?:[:!][^{}]*)?\}", value) and not isinstance(parent, ast.Attribute):
        yield f"f{like}", "missing f", 1.6
    seen = {value}
    for text, cost in _other_texts(place, parent, value):
        if text in seen:
            continue
        seen.add(text)
        if "r" not in prefix or "\\" not in text:
            yield _quoted(text, like), "text", cost
            continue
        quote = '"' if '"' not in text else "'"
        if quote not in text and not text.endswith("\\"):
            yield f"r{quote}{text}{quote}", "text", cost


def _other_texts(place: Place, parent: ast.AST | None, value: str) -> Iterator[tuple[str, float]]:
    if value in TABLE["modes"]:
        yield from _each(TABLE["modes"], 2.4)
    yield from _each(_variants(value), 2.8)
    yield from _each(place.hints.strings, 3.4)
    if isinstance(parent, ast.Subscript | ast.Call):
        names = (*place.module.keywords, *place.module.all_attributes)
        yield from _each([name for name in names if _resembles(value, name)], 2.6)
    for constants, cost in ((place.scope.constants, 2.6), (place.module.constants, 3.4)):
        for other in constants.get(str, [])[:40]:
            if isinstance(other, str) and _is_short(other):
                yield other, cost if _alike(value, other) else cost + 0.8
    if len(value) <= 2:
        yield from _each(TABLE["separators"], 3.2)
    else:
        yield "", 4.0


def _resembles(one: str, other: str) -> bool:
    return SequenceMatcher(None, one, other).ratio() > 0.7


def _is_short(text: str) -> bool:
    """Return whether a text may stand in the place of another one: it has one line of less than 60 characters."""
    return len(text) < 60 and "\n" not in text[:-1]


def _alike(one: str, other: str) -> bool:
    """Tell whether two texts share a word or are both short."""
    words = set(re.findall(r"[a-z]+", one.lower()))
    return bool(words & set(re.findall(r"[a-z]+", other.lower()))) or max(len(one), len(other)) < 4


def _variants(value: str) -> Iterator[str]:
    """Yield texts that reverse ordinary misspellings: case, spaces, digits, format letters, pattern signs."""
    yield from (value.lower(), value.upper(), value.title(), value.strip())
    yield from (f"{value} ", f" {value}", value[:-1], value[1:])
    for match in re.finditer(r"\d", value):
        for digit in (int(match[0]) + 1, int(match[0]) - 1):
            if 0 <= digit <= 9:
                yield _replaced(value, match, str(digit))
    for match in re.finditer(r"%[A-Za-z]", value):
        yield _replaced(value, match, match[0].swapcase())
    for old, new in TABLE["patterns"]:
        for match in re.finditer(re.escape(old), value):
            yield _replaced(value, match, new)
    if re.search(r"[\\\[^$]", value):
        yield from (f"^{value}", f"{value}$", f"{value}+", value.lstrip("^"), value.rstrip("$"))
    if 1 < len(value) <= 12:
        yield from ("".join(letters) for letters in swapped(list(value)))
        yield from ("".join(letters) for letters in shortened(list(value)))


def _replaced(text: str, match: re.Match[str], other: str, start: int = 0) -> str:
    """Return `text` with another text in the place of a match in its part from `start`."""
    return text[: start + match.start()] + other + text[start + match.end() :]


def _specifications(text: str, start: int, end: int) -> Alternatives:
    """Yield `text` with another format specification between `start` and `end`."""
    found: list[tuple[re.Match[str], str, float]] = []
    specification = text[start:end]
    for match in re.finditer(r"\d+", specification):
        steps = (int(match[0]) + 1, int(match[0]) - 1)
        found += [(match, str(number), 2.0) for number in steps if number >= 0]
    for pattern, others, cost in (("[<>^]", "<>^", 2.4), ("[fdegxXobs%]$", "fdeg%xXs", 3.0)):
        for match in re.finditer(pattern, specification):
            found += [(match, other, cost) for other in others]
    for match in re.finditer(r"%([A-Za-z])", specification):
        found.append((match, match[0].swapcase(), 2.6))
    for match, other, cost in found:
        yield _replaced(text, match, other, start), "format", cost


def formats(place: Place, node: ast.JoinedStr) -> Alternatives:
    """Propose another format specification in an f-string, or another name in its braces.

    A specification is a precision, width, alignment or kind.
    """
    text = place.text(node)
    for specification in re.finditer(r":([^{}]*)\}", text):
        yield from _specifications(text, *specification.span(1))
    names = place.names(node)
    names += [f"self.{name}" for name in place.scope.own_attributes]
    for match in re.finditer(r"(?<=\{)([A-Za-z_][A-Za-z_0-9.]*)", text):
        base, _, attribute = match[1].rpartition(".")
        owned = place.module.attributes.get(base, []) if base and attribute else []
        for other in (*names, *(f"{base}.{other}" for other in owned)):
            if other != match[1]:
                yield _replaced(text, match, other), "name in text", 2.8
    for match in re.finditer(r"(?:^|\})[^{}]+(?:\{|$)", text[1:]):
        for old, new in TABLE["punctuation"]:
            position = text.find(old, match.start() + 1, match.end() + 1)
            if position > 1:
                yield text[:position] + new + text[position + len(old) :], "text", 3.6


ON_EXPRESSIONS = (literals, formats)
