"""Mutate literals: numbers, texts, truth values, None and empty containers."""

import ast
import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from m3agent.serving.embedded.operators.base import Alternative, Place

EMPTIES = ("None", "0", "[]", "{}", "''", "False", "True", "-1", "()", "1", "set()", "0.0")


def literals(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another constant."""
    if isinstance(node, ast.Constant) and not isinstance(place.parent(node), ast.Expr | ast.JoinedStr):
        value = node.value
        if value is True or value is False:
            yield Alternative(str(not value), "truth value", 1.2)
            yield from _others(place, node, "truth value", 3.2)
        elif value is None:
            yield from _others(place, node, "empty value", 2.6)
        elif isinstance(value, int | float):
            yield from _numbers(place, node, value)
        elif isinstance(value, str):
            yield from _texts(place, node, value)
    elif isinstance(node, ast.List | ast.Dict | ast.Tuple) and not getattr(
        node, "elts", getattr(node, "keys", ())
    ):
        yield from _others(place, node, "empty value", 2.8)
    elif isinstance(node, ast.List) and not isinstance(node.ctx, ast.Store):
        yield from _lists(place, node)
    elif (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        yield from _others(place, node, "empty value", 3.2)


def _others(place: Place, node: ast.expr, operator: str, cost: float) -> Iterator[Alternative]:
    text = place.text(node)
    for number, other in enumerate(EMPTIES):
        if other != text:
            yield Alternative(other, operator, cost + number * 0.1)
    if isinstance(place.parent(node), ast.Return | ast.Assign):
        if isinstance(node, ast.List):
            yield Alternative("[[]]", operator, cost)
        for name in place.names(node):
            unread = -1.0 if name in place.scope.unread else 0.0
            yield Alternative(name, operator, cost + 0.4 + unread)
            yield Alternative(f"[{name}]", operator, cost + 1.6 + unread)


def _lists(place: Place, node: ast.List) -> Iterator[Alternative]:
    texts = [place.text(item) for item in node.elts]
    for index in range(len(texts)):
        rest = texts[:index] + texts[index + 1 :]
        yield Alternative(f"[{', '.join(rest)}]", "element dropped", 3.4)
    if len(texts) == 1:
        yield Alternative(texts[0], "list unwrapped", 3.2)


def _numbers(place: Place, node: ast.Constant, value: float) -> Iterator[Alternative]:
    seen = {repr(value)}

    def offer(number: object, cost: float, operator: str = "number") -> Iterator[Alternative]:
        text = repr(number)
        if text not in seen and "inf" not in text and "nan" not in text:
            seen.add(text)
            yield Alternative(text, operator, cost)

    yield from offer(value + 1, 1.2, "off by one")
    yield from offer(value - 1, 1.2, "off by one")
    if isinstance(value, int):
        yield from offer(0, 1.6)
        yield from offer(1, 1.6)
        yield from offer(-1, 2.0)
        yield from offer(2, 2.2)
    else:
        yield from offer(0.0, 2.2)
        yield from offer(1.0, 2.2)
        yield from offer(round(1 - value, 12), 2.6)
    yield from offer(-value, 2.0)
    for number in place.hints.numbers:
        yield from offer(number, 3.0)
    for number in (value * 10, value * 100, value * 2, value * 60, value * 1000):
        yield from offer(number, 2.8)
    for divisor in (10, 100, 2, 60, 1000):
        if isinstance(value, int) and value % divisor == 0:
            yield from offer(value // divisor, 2.8)
        elif isinstance(value, float):
            yield from offer(round(value / divisor, 15), 2.8)
    for constants, cost in ((place.scope.constants, 2.6), (place.module.constants, 3.2)):
        for kind in (int, float):
            for other in constants.get(kind, [])[:24]:
                yield from offer(other, cost)
    if isinstance(value, int):
        for number in (
            7,
            10,
            12,
            16,
            24,
            26,
            30,
            31,
            60,
            100,
            256,
            360,
            365,
            366,
            400,
            1000,
            1024,
            3600,
            86400,
        ):
            yield from offer(number, 4.0)
        for step in (2, -2, 3, -3, 10, -10):
            yield from offer(value + step, 3.4)
        digits = str(abs(value))
        if len(digits) > 1:
            for index in range(len(digits) - 1):  # two adjacent digits swapped
                swapped = digits[:index] + digits[index + 1] + digits[index] + digits[index + 2 :]
                yield from offer(int(swapped), 3.4)
    if isinstance(place.parent(node), ast.Assign | ast.Return | ast.Call | ast.keyword):
        yield from offer(None, 4.0, "empty value")
        yield Alternative("float('inf')", "empty value", 3.6)
        yield Alternative("float('-inf')", "empty value", 3.8)
    for name in place.names(node):
        unread = -1.0 if name in place.scope.unread else 0.0
        kinds = place.scope.kinds(name)
        if not kinds or kinds & {"int", "float"}:
            yield Alternative(name, "constant for variable", 3.4 + unread)


MODES = ("r", "w", "a", "x", "rb", "wb", "ab", "r+", "w+", "a+")
SEPARATORS = ("", " ", ",", ", ", "\n", "-", "_", ".", "/", ":", ";", "=", "|", "\t", "  ", "0", "*")


def _quoted(text: str, like: str) -> str:
    quote = '"' if '"' in like[:4] else "'"
    body = repr(text)[1:-1] if "'" not in text else repr(text.replace("'", "\0"))[1:-1].replace("\\x00", "'")
    if quote == '"':
        return '"' + body.replace('"', '\\"') + '"'
    return "'" + body.replace("'", "\\'") + "'"


def _texts(place: Place, node: ast.Constant, value: str) -> Iterator[Alternative]:
    like = place.text(node)
    prefix = re.match(r"[A-Za-z]*", like)
    raw = bool(prefix and "r" in prefix[0].lower())
    if (prefix and "f" in prefix[0].lower()) or like[len(prefix[0]) if prefix else 0 :][:3] in ('"""', "'''"):
        return
    seen = {value}

    def offer(text: str, cost: float, operator: str = "text") -> Iterator[Alternative]:
        if text not in seen:
            seen.add(text)
            if raw and "\\" in text:
                quote = '"' if '"' not in text else "'"
                if quote not in text and not text.endswith("\\"):
                    yield Alternative(f"r{quote}{text}{quote}", operator, cost)
            else:
                yield Alternative(_quoted(text, like), operator, cost)

    if re.search(r"\{[\w.\[\]()]+(?:[:!][^{}]*)?\}", value) and not isinstance(
        place.parent(node), ast.Attribute
    ):
        yield Alternative(f"f{like}", "missing f", 1.6)
    if value in MODES:
        for mode in MODES:
            yield from offer(mode, 2.4)
    for changed in _variants(value):
        yield from offer(changed, 2.8)
    for text in place.hints.strings:
        yield from offer(text, 3.4)
    if isinstance(place.parent(node), ast.Subscript | ast.Call):
        for name in (*place.module.keywords, *place.module.all_attributes):
            if SequenceMatcher(None, value, name).ratio() > 0.7:
                yield from offer(name, 2.6)
    near = place.scope.constants.get(str, [])
    for constants, cost in ((near, 2.6), (place.module.constants.get(str, []), 3.4)):
        for other in constants[:40]:
            if isinstance(other, str) and len(other) < 60 and "\n" not in other[:-1]:
                yield from offer(other, cost if _alike(value, other) else cost + 0.8)
    if len(value) <= 2:
        for separator in SEPARATORS:
            yield from offer(separator, 3.2)
    elif value:
        yield from offer("", 4.0)


def _alike(one: str, other: str) -> bool:
    """Tell whether two texts share a word or are both short."""
    words = set(re.findall(r"[a-z]+", one.lower()))
    return bool(words & set(re.findall(r"[a-z]+", other.lower()))) or max(len(one), len(other)) < 4


def _variants(value: str) -> Iterator[str]:
    """Yield texts that reverse ordinary misspellings: case, spaces, digits, format letters, pattern signs."""
    yield from (
        value.lower(),
        value.upper(),
        value.title(),
        value.strip(),
        f"{value} ",
        f" {value}",
        value[:-1],
        value[1:],
    )
    for match in re.finditer(r"\d", value):
        for step in (1, -1):
            digit = int(match[0]) + step
            if 0 <= digit <= 9:
                yield value[: match.start()] + str(digit) + value[match.end() :]
    for match in re.finditer(r"%([A-Za-z])", value):
        yield value[: match.start(1)] + match[1].swapcase() + value[match.end(1) :]
    patterns = (
        ("+", "*"),
        ("*", "+"),
        ("?", "*"),
        (r"\d", r"\w"),
        (r"\w", r"\d"),
        (r"\s", r"\S"),
        ("*", "*?"),
        ("+", "+?"),
    )
    for old, new in patterns:
        position = value.find(old)
        while position >= 0:
            yield value[:position] + new + value[position + len(old) :]
            position = value.find(old, position + len(old))
    if "\\" in value or "[" in value or "^" in value or "$" in value:
        yield f"^{value}"
        yield f"{value}$"
        yield f"{value}+"
        yield value.lstrip("^")
        yield value.rstrip("$")
    for index in range(len(value) - 1):
        if len(value) <= 12 and value[index] != value[index + 1]:
            yield value[:index] + value[index + 1] + value[index] + value[index + 2 :]
    for index in range(len(value)):
        if 1 < len(value) <= 12:
            yield value[:index] + value[index + 1 :]


def _specifications(text: str, start: int, end: int) -> Iterator[Alternative]:
    """Yield `text` with another format specification between `start` and `end`."""

    def offer(match: re.Match[str], other: str, cost: float) -> Alternative:
        return Alternative(
            text[: start + match.start()] + other + text[start + match.end() :], "format", cost
        )

    specification = text[start:end]
    for match in re.finditer(r"\d+", specification):
        for step in (1, -1):
            if int(match[0]) + step >= 0:
                yield offer(match, str(int(match[0]) + step), 2.0)
    for match in re.finditer(r"[<>^]", specification):
        for other in "<>^":
            yield offer(match, other, 2.4)
    for match in re.finditer(r"[fdegxXobs%]$", specification):
        for other in "fdeg%xXs":
            yield offer(match, other, 3.0)
    for match in re.finditer(r"%([A-Za-z])", specification):
        yield offer(match, "%" + match[1].swapcase(), 2.6)


def formats(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose another format specification in an f-string, or another name in its braces.

    A specification is a precision, width, alignment or kind.
    """
    if not isinstance(node, ast.JoinedStr):
        return
    text = place.text(node)
    for specification in re.finditer(r":([^{}]*)\}", text):
        yield from _specifications(text, *specification.span(1))
    names = place.names(node)
    for match in re.finditer(r"(?<=\{)([A-Za-z_][A-Za-z_0-9.]*)", text):
        others = [*names, *(f"self.{name}" for name in place.scope.self_attributes if place.scope.is_method)]
        base, _, attribute = match[1].rpartition(".")
        if base and attribute:
            others += [f"{base}.{other}" for other in place.module.attributes.get(base, [])]
        for other in others:
            if other != match[1]:
                yield Alternative(text[: match.start()] + other + text[match.end() :], "name in text", 2.8)
    literal = list(re.finditer(r"(?:^|\})[^{}]+(?:\{|$)", text[1:]))
    for match in literal:
        for old, new in (
            (" ", ""),
            (", ", " "),
            (" ", ", "),
            (",", ";"),
            ("-", "_"),
            ("/", "-"),
            (":", "="),
            ("\\n", ""),
        ):
            position = text.find(old, match.start() + 1, match.end() + 1)
            if position > 1:
                yield Alternative(text[:position] + new + text[position + len(old) :], "text", 3.6)
