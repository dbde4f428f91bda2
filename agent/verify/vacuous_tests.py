"""Recognise tests that cannot fail once they run, such as `assert True`.

If a patch adds such a test to a file that imports a new name, it is red on the old code and green on the new one. That shows that
there is a name, and nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.comparisons import truth_of
from m3agent.agent.verify.python_file import Function, is_fixture, nodes_in
from m3agent.tools.runners.path_rules import is_code
from m3agent.util.python_ast import parsed

HARMLESS = frozenset([
    "self", "abs", "all", "any", "bool", "dict", "float", "frozenset", "int", "isinstance", "len", "list", "max", "min",
    "object", "print", "range", "set", "sorted", "str", "sum", "tuple",
])  # fmt: skip
"""Names that say nothing about the code under test."""
OF_PYTEST = frozenset(
    ["capfd", "caplog", "capsys", "monkeypatch", "recwarn", "request", "tmp_path", "tmpdir"]
)
"""Fixtures of pytest that a test may take without a use."""

BODY = r"\s*\{[\w\s:;,.=&\"']*\}"
"""A body without a call, an index or an operator that could fail."""
OTHER_TESTS = {
    "go": re.compile(r"^func (?P<name>Test\w+)\(\w+ \*testing\.T\)" + BODY, re.MULTILINE),
    "rs": re.compile(r"^#\[test\]\s+fn (?P<name>\w+)\(\)" + BODY, re.MULTILINE),
    "js": re.compile(
        r"^(?:test|it)\(\s*(?P<quote>['\"`])(?P<name>(?:(?!(?P=quote))[^\\\n])*)(?P=quote),\s*(?:async\s+)?"
        r"(?:\(\s*\w*\s*\)\s*=>|\w+\s*=>|function\s*\w*\(\s*\w*\s*\))" + BODY + r"\s*\)",
        re.MULTILINE,
    ),
}
"""Tests at the top level of a file that have such a body once `OTHER_HARMLESS` is taken out, by the suffix of the file."""
OTHER_HARMLESS = re.compile(
    r"^\s*//.*$|\bt\.(?:Log\((?:\"[^\"\n]*\")?\)|Parallel\(\)|Helper\(\)|pass\(\))"
    r"|\bexpect\((true|1)\)\.(?:toBe|toEqual|to\.equal)\(\1\)|\bexpect\(true\)\.toBeTruthy\(\)"
    r"|\bassert(?:!|\.ok)?\(true\)|\bassert\.True\(t, true\)"
    r"|\bassert(?:_eq!|\.(?:equal|strictEqual|deepEqual|deepStrictEqual))\((\w+), \2\)",
    re.MULTILINE,
)
SETS_UP = re.compile(r"\b(?:before|after|beforeEach|afterEach|beforeAll|afterAll|setup|TestMain|init)\(")
"""What may run code before or after each test."""


def vacuous_tests(path: str, source: bytes | None) -> Iterator[str]:
    """Yield the names of the tests of a file that cannot fail, such as `test_add` and `TestSum::test_add`.

    A file with fixtures has none: a fixture may run the code under test.
    """
    if not path.endswith(".py"):
        text = (source or b"").decode(errors="replace")
        suffix = PurePosixPath(path).suffix[1:]
        tests = OTHER_TESTS.get("js" if is_code(path) else suffix)
        if tests is not None and not SETS_UP.search(text):
            yield from (match["name"] for match in tests.finditer(OTHER_HARMLESS.sub("", text)))
        return
    module = parsed(source)
    if module is not None and not any(map(is_fixture, nodes_in(module))):
        yield from _in_body(module, "")


def _in_body(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.ClassDef) and not any(_sets_up(inner) for inner in each.body):
            yield from _in_body(each, f"{prefix}{each.name}::")
        elif isinstance(each, Function) and not _can_fail(each):
            yield prefix + each.name


def _sets_up(node: ast.stmt) -> bool:
    return isinstance(node, Function) and node.name.lower().startswith(("setup", "asyncsetup"))


def _can_fail(function: Function) -> bool:
    """Return whether a test uses something from outside in a way that may raise an error."""
    statements = [each for each in function.body if not _always_passes(each)]
    nodes = [node for each in statements for node in ast.walk(each)]
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    parameters = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} | parameters - OF_PYTEST
    return not names <= HARMLESS | own or any(map(_may_raise, nodes))


def _always_passes(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant() | ast.Name()):
            return True
        case ast.Assert(test=test):
            return truth_of(test) is True and not any(isinstance(node, ast.Call) for node in ast.walk(test))
    return False


def _may_raise(node: ast.AST) -> bool:
    """Return whether a node raises an error, imports a module, or uses an attribute of the test case other than an assertion."""
    match node:
        case ast.Raise() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return not name.startswith("assert")
    return False
