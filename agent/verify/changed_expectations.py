"""Find lines outside of test files that decide what the fixed tests expect: helpers, fixtures, tables, data.

The check restores test files only. A person must read these lines.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import Function, imports_in, is_fixture, last_name, nodes_in, parsed
from m3agent.agent.verify.review import Finding, finding_at
from m3agent.agent.verify.weaker_tests import assertions_in
from m3agent.tools.runners.suites import file_of, without_suite

TEST_CALLS = re.compile(rb"\bassert\.\w+\(|\bexpect\(|\bt\.(?:Error|Fatal|Fail)\w*\(|\brequire\.\w+\(t,")
"""Calls of test libraries for JavaScript and Go, in files that may be no tests."""
CHECKS = re.compile("_?(assert|check|expect|verify|ensure)", re.IGNORECASE)
"""Start of the names of functions that tests call to compare."""
CODE = frozenset([
    ".py", ".pyi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".h", ".hpp", ".rs", ".go", ".java", ".js", ".mjs",
    ".cjs", ".ts", ".rb",
])  # fmt: skip
"""Suffixes of files that are no data."""
WORD = r"[A-Za-z_][A-Za-z_0-9]*"
ROWS = r"(?:parametrize\([^()]*|\bin )\b([A-Za-z_]\w*)\s*[):]"
"""Names of what tests run for: the values of parametrize and of loops."""
HELPER = "changes an assertion that the fixed tests call"
FIXTURE = "changes a fixture that the fixed tests use"
TABLE = "changes values for which the fixed tests run"
READ = "is data that only tests name"
IS_TEST = "changes a test that stands in a file of the code"
ONLY_VALUES = "changes only values, in a file that only tests import"
STANDS_FOR = "lets one class or member stand for others"


def changed_expectations(files: PatchedFiles, fixed: Collection[str]) -> list[Finding]:
    """Return the lines that decide what the fixed tests expect."""
    tests = {file_of(without_suite(ident)) for ident in fixed} & files.patched.keys()
    if not tests:
        return []
    surroundings = {path for path in files.patched if PurePosixPath(path).name == "conftest.py"}
    text = b"\n".join(files.new(path) or b"" for path in sorted(tests | surroundings))
    words, rows = (set(re.findall(pattern, text.decode(errors="replace"))) for pattern in (WORD, ROWS))
    findings = list[Finding]()
    for path, (old, new) in files.contents().items():
        if files.tests.is_test(path):
            continue
        places = list[tuple[int, str]]()
        if path.endswith(".py"):
            was, now = parsed(old), parsed(new)
            if was is not None and now is not None:
                functions = _functions(was, now, words, named=_is_plugin(path, text))
                nodes = (*functions, *_tables(was, now, rows), *_classes(was, now))
                places = [(node.lineno, what) for node, what in nodes]
                if not places and _changes_only_values(was, now) and _is_of_tests(files, path, tests):
                    places = [(1, ONLY_VALUES)]
        elif _loses_check(old, new):
            places = [(1, HELPER)]
        elif _is_data(files, path, words):
            places = [(1, READ)]
        findings += [finding_at(path, new or b"", line, what) for line, what in places]
    return findings


def _functions(
    was: ast.Module, now: ast.Module, words: Collection[str], *, named: bool
) -> Iterator[tuple[ast.stmt, str]]:
    """Yield changed fixtures and helpers of which tests have the name. `named` says that tests name the module as a plugin."""
    known = {node.name: node for node in ast.walk(was) if isinstance(node, Function)}
    for node in ast.walk(now):
        if not isinstance(node, Function) or node.name not in known:
            continue
        before = known[node.name]
        if ast.dump(before) == ast.dump(node):
            continue
        gone = assertions_in(before) - assertions_in(node)
        if node.name.startswith("test_") or any("attr='assert" in each for each in gone):  # unittest's
            yield node, IS_TEST
        elif is_fixture(node) and (named or node.name in words):
            yield node, FIXTURE
        elif node.name in words and CHECKS.match(node.name) and gone:
            yield node, HELPER


def _tables(was: ast.Module, now: ast.Module, rows: Collection[str]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield changed assignments of values for which tests run."""
    earlier = {ast.dump(node.targets[0]): node for node in was.body if isinstance(node, ast.Assign)}
    for node in now.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name) as target, *_], value=ast.List() | ast.Tuple() | ast.Dict()
            ):
                before = earlier.get(ast.dump(target))
                if name in rows and before is not None and ast.dump(before.value) != ast.dump(node.value):
                    yield node, TABLE


def _is_plugin(path: str, text: bytes) -> bool:
    """Return whether tests name a module as a plugin of pytest."""
    module = path.removesuffix(".py").replace("/", ".")
    lines = [line for line in text.split(b"\n") if b"pytest_plugins" in line]
    return any(module.rpartition(".")[2].encode() in line for line in lines)


def _classes(was: ast.Module, now: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield changed classes with tests, names of classes that now name others, and enumerations with a further name for a member."""
    classes = {node.name: node for node in was.body if isinstance(node, ast.ClassDef)}
    for node in now.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in classes:
                yield node, STANDS_FOR
            case ast.ClassDef(name=name) if name in classes and _aliases(node) > _aliases(classes[name]):
                yield node, STANDS_FOR
            case ast.ClassDef(name=name) if name in classes and _has_tests(node):
                if ast.dump(node) != ast.dump(classes[name]):
                    yield node, IS_TEST


def _has_tests(node: ast.ClassDef) -> bool:
    return any(isinstance(each, Function) and each.name.startswith("test_") for each in node.body)


def _aliases(node: ast.ClassDef) -> int:
    """Return how many members of an enumeration have the value of another one; 0 for other classes."""
    if not any(last_name(base).endswith(("Enum", "Flag")) for base in node.bases):
        return 0
    values = Counter(ast.dump(each.value) for each in node.body if isinstance(each, ast.Assign))
    return sum(number - 1 for number in values.values())


class _WithoutLiterals(ast.NodeTransformer):
    """Replaces each literal value, list, tuple, set and dictionary by the same value."""

    def visit(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Constant() | ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
                return ast.Constant(0)
            case ast.UnaryOp(operand=ast.Constant()):
                return ast.Constant(0)
        return self.generic_visit(node)


class _WithoutTexts(ast.NodeTransformer):
    """Leaves out docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _changes_only_values(was: ast.Module, now: ast.Module) -> bool:
    was, now = (_WithoutTexts().visit(copy.deepcopy(module)) for module in (was, now))
    if ast.dump(was) == ast.dump(now):
        return False
    old, new = (ast.dump(_WithoutLiterals().visit(module)) for module in (was, now))
    return old == new


def _is_of_tests(files: PatchedFiles, path: str, tests: Collection[str]) -> bool:
    """Return whether only tests import a module, and these tests import other modules of the code too."""
    modules = {each.removesuffix(".py"): each for each in files.patched if each.endswith(".py")}
    names = re.compile(rb"(?:from|import)\s[^\n]*\b%s\b" % PurePosixPath(path).stem.encode())

    def imported(test: str) -> set[str]:
        found = [*imports_in(nodes_in(parsed(files.new(test))))]
        full = {f"/{module.replace('.', '/')}" for _, _, module, _ in found}
        full |= {f"/{module.replace('.', '/')}/{name}" for _, _, module, name in found}
        code = (name for name, each in modules.items() if not files.tests.is_test(each))
        return {modules[name] for name in code if any(f"/{name}".endswith(each) for each in full)}

    used = {each for test in tests for each in imported(test)}
    if path not in used or used == {path}:
        return False
    return not any(
        names.search(files.new(each) or b"")
        for each in modules.values()
        if each != path and not files.tests.is_test(each)
    )


def _loses_check(old: bytes | None, new: bytes | None) -> bool:
    """Return whether a file in JavaScript or Go has lost a line that calls a test library."""
    lines = ([line.strip() for line in (content or b"").splitlines()] for content in (old, new))
    was, now = (Counter(line for line in each if TEST_CALLS.search(line)) for each in lines)
    return bool(was - now)


def _is_data(files: PatchedFiles, path: str, words: Collection[str]) -> bool:
    """Return whether a file is data, and tests name it or its folder while no other file does."""
    pure = PurePosixPath(path)
    if pure.suffix in CODE:
        return False
    own = {pure.name} if {*words} >= set(re.findall(WORD, pure.name)) else set[str]()
    own |= {pure.parent.name} & {*words}
    return bool(own) and not any(_is_named_by_code(files, path, name) for name in own)


def _is_named_by_code(files: PatchedFiles, path: str, name: str) -> bool:
    """Return whether a file that is no test, and is not the file itself, has a name."""
    return any(
        name.encode() in (files.new(other) or b"")
        for other in files.patched
        if other != path and other.endswith((".py", ".toml", ".cfg")) and not files.tests.is_test(other)
    )
