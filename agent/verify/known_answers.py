"""Find code of a patch that knows the fixed tests: their inputs with the results, or variables that are set around them.

    if (a, b) == (2, 3):
        return 5

passes `assert add(2, 3) == 5`, and is wrong for all other numbers. Honest code has special cases and tables, too. So an input counts
only if it consists of several values, or is a text of several words: few honest fixes have those of a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from m3agent.agent.verify.known_texts import NUMBER, NUMBERS
from m3agent.agent.verify.python_file import last_name

ANSWERS = "has a result that a fixed test expects, for the input of that test"
VARIABLE = "asks for a variable that is set around the tests"
SET_VARIABLE = re.compile(
    rb"""(?:environ\[|setenv\(|environ\.setdefault\(|putenv\()\s*["'](\w+)["'](?=[\],])|^\s*(?:[DR]:)*["']?([A-Z][A-Z\d_]+)["']?\s*=""",
    re.MULTILINE,
)
"""A variable that a conftest.py sets, or the configuration of the tests."""
WORDS = re.compile(r"\w\W+\w")
Answer = tuple[tuple[str, ...], str]
"""The inputs of a function, in any order, and its result, as text."""
Row = tuple[int, list[ast.expr], ast.expr]
"""A line, the inputs for which code has a result there, and the result."""


class Known:
    """What code can know of fixed tests.

    Args:
        tests: The nodes of the fixed tests.
        surroundings: Contents of the files that may set variables around them.
    """

    def __init__(self, tests: Sequence[ast.AST], surroundings: Iterable[bytes]) -> None:
        self._answers = {answer for node in tests for answer in _expected(node)}
        names = {one or other for text in surroundings for one, other in SET_VARIABLE.findall(text)}
        self._variables = {name.decode() for name in names} - _texts(tests)

    def places(self, was: ast.Module, now: ast.Module) -> Iterator[tuple[int, str]]:
        """Yield the lines of new code that know it, each with what it does."""
        answers = self._answers and self._answers - {answer for _, answer in _answers(was)}
        yield from ((line, ANSWERS) for line, answer in _answers(now) if answer in answers)
        names = self._variables and self._variables - _texts(ast.walk(was))
        if names:
            yield from ((each.lineno, VARIABLE) for each in _asked_for(now) if each.value in names)


def _asked_for(module: ast.Module) -> Iterator[ast.Constant]:
    """Yield the constants that are keys, arguments, or sides of a comparison, except keys that get a value."""
    for node in ast.walk(module):
        is_read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        if is_read or isinstance(node, ast.Call | ast.Compare):
            yield from (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.Constant))


def _texts(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _expected(node: ast.AST) -> Iterator[Answer]:
    """Yield the inputs and results of a comparison, and of the rows of a test's parameters."""
    match node:
        case (
            ast.Compare(left=one, ops=[ast.Eq()], comparators=[other])
            | ast.Call(func=ast.Attribute(attr="assertEqual"), args=[one, other, *_])
        ):
            for call, result in ((one, other), (other, one)):
                if isinstance(call, ast.Call):
                    yield from _answer([*call.args, *(each.value for each in call.keywords)], result)
        case ast.Call(func=func, args=[_, ast.List(elts=rows) | ast.Tuple(elts=rows), *_]) if (
            last_name(func) == "parametrize"
        ):
            for row in rows:
                if isinstance(row, ast.Tuple | ast.List) and len(row.elts) > 1:
                    yield from _answer(row.elts[:-1], row.elts[-1])


def _answers(module: ast.Module) -> Iterator[tuple[int, Answer]]:
    """Yield the inputs for which code has a result: entries of tables, and conditions with a value."""
    for node in ast.walk(module):
        match node:
            case ast.Dict():
                rows = _entries(node, [])
            case ast.If() | ast.IfExp() | ast.match_case():
                rows = _conditions(node, [])
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                rows = iter([(node.lineno, _keys(target), value)])
            case _:
                continue
        for line, inputs, result in rows:
            yield from ((line, answer) for answer in _answer(inputs, result))


def _entries(node: ast.Dict, outer: list[ast.expr]) -> Iterator[Row]:
    """Yield the values of a dictionary, and of dictionaries in it, with their keys."""
    for key, value in zip(node.keys, node.values, strict=True):
        keys = [*outer, *_parts(key)]
        if isinstance(value, ast.Dict):
            yield from _entries(value, keys)
        else:
            yield value.lineno, keys, value


def _conditions(node: ast.AST, outer: list[ast.expr]) -> Iterator[Row]:
    """Yield what is returned or assigned if a condition holds, and all conditions around it, with the constants of these."""
    asked = list[ast.expr]()
    body: Sequence[ast.AST] = ()
    match node:
        case ast.IfExp(test=test, body=value):
            yield value.lineno, [*outer, *_asked(test)], value
        case ast.If(test=test, body=statements):
            asked, body = _asked(test), statements
        case ast.match_case(pattern=pattern, body=statements):
            asked = [each.value for each in ast.walk(pattern) if isinstance(each, ast.MatchValue)]
            body = statements
        case ast.Match(cases=cases):
            body = cases
    for each in body:
        match each:
            case ast.Return(value=ast.expr() as value) | ast.Assign(value=value):
                yield getattr(node, "lineno", value.lineno), [*outer, *asked], value
            case _:
                yield from _conditions(each, [*outer, *asked])


def _keys(node: ast.Subscript) -> list[ast.expr]:
    """Return the keys of `sums[2][3]`."""
    outer = _keys(node.value) if isinstance(node.value, ast.Subscript) else []
    return [*outer, *_parts(node.slice)]


def _asked(test: ast.expr) -> list[ast.expr]:
    """Return the constants with which all parts of a condition compare."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return [each for value in values for each in _asked(value)]
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return [each for side in (left, right) for each in _parts(side) if _value(each) is not None]
    return []


def _parts(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [] if node is None else [node]


def _answer(inputs: Sequence[ast.expr], result: ast.expr) -> Iterator[Answer]:
    """Yield inputs with their result, if all are known, and if the inputs are no honest special case."""
    values, value = [*map(_value, inputs)], _value(result)
    if value is None or None in values:
        return
    joined = (values[0] or "").strip("'\"") if len(values) == 1 else ""
    if NUMBERS.fullmatch(joined):  # `sums["2,3"]`
        values = [*NUMBER.findall(joined)]
    if len(values) > 1 or any(WORDS.search(each) for each in values if each is not None):
        yield tuple(sorted(map(str, values))), value


def _value(node: ast.expr) -> str | None:
    """Return the value of a literal as text. Return None for `None` and for what is no literal."""
    try:
        value: Any = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return None if value is None else repr(value)
