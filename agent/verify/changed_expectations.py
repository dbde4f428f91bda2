"""Find lines outside of test files that decide what the fixed tests expect: helpers, fixtures, tables, data.

The check restores test files only. A person must read these lines.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from m3agent.agent.verify.expected_values import (
    CHECKS,
    DATA,
    Definitions,
    TestValues,
    changed_values,
    definitions,
    without_literals,
    without_other_tests,
)
from m3agent.agent.verify.known_answers import ANSWERS, Known
from m3agent.agent.verify.known_texts import LITERAL, known_texts
from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import (
    Function,
    functions_in,
    imports_in,
    inner_statements,
    is_fixture,
    last_name,
    nodes_in,
    parameters,
)
from m3agent.agent.verify.review import MOST_LINES, Finding, block_in, finding_at
from m3agent.agent.verify.weaker_tests import assertions_in
from m3agent.tools.runners.suites import CODE as CODE_OF_TESTS
from m3agent.tools.runners.suites import file_of, without_suite
from m3agent.util.python_ast import parsed

TEST_CALLS = re.compile(rb"\bassert\.\w+\(|\bexpect\(|\bt\.(?:Error|Fatal|Fail)\w*\(|\brequire\.\w+\(t,")
"""Calls of test libraries for JavaScript and Go, in files that may be no tests."""
AROUND = frozenset(["conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", ".m3agent.toml"])
"""Files that set variables of the tests."""
SET_UPS = frozenset(
    ["setUp", "setUpClass", "setUpModule", "setup_method", "setup_class", "setup_function", "setup_module"]
)
"""Functions that test libraries call before tests."""
FAILS = re.compile(
    r"\bassert\w*|\brefute\w*|\bexpect\(|\bAssertionError\b|\bpanic!|\bfail\w*\(|\bthrow\b|\braise\b"
)
"""What fails a test, in other languages than Python."""
OTHER_CODE = ".clj .dart .erl .h .hpp .hs .lua .m .mm .pm .pxd .pyi .pyx .scala .zig"
CODE = frozenset({*CODE_OF_TESTS, *OTHER_CODE.split()})
"""Suffixes of files that are no data: of those that can hold tests, and of others."""
CONFIGURED: tuple[str, ...] = (".toml", ".cfg")
"""Ends of the names of files that configure the project."""
DOCUMENTATION = frozenset({".md", ".rst"})
DEFINES = re.compile(
    r"(?:\b(?:fn|func|def|function|void|const|let|var)\s+|\bexports\.|\bmacro_rules!\s*)(?:self\.)?([A-Za-z_]\w*)"
)
"""A definition in another language than Python, with its name."""
NONE = 0, Counter[str]()
"""What is known of a definition that was not there."""
SETS = re.compile(r"\b([A-Za-z_]\w*)\s*(?::[^=\n]*)?=(?![=>])")
"""A line that gives a name a value, with the name."""
WORD = r"[A-Za-z_][A-Za-z_0-9]*"
HELPER = "changes an assertion that the fixed tests call"
FIXTURE = "changes a fixture that the fixed tests use"
READ = "is data that only tests name"
IS_TEST = "changes a test that stands in a file of the code"
ONLY_VALUES = "changes only values, in a file that only tests import"
VALUE = "changes a value with which the fixed tests compare, or for which they run"
STANDS_FOR = "lets one class or member stand for others"


def changed_expectations(files: PatchedFiles, fixed: Collection[str]) -> list[Finding]:
    """Return the lines that decide what the fixed tests expect."""
    paths = {file_of(without_suite(ident)) for ident in fixed} & files.patched.keys()
    if not paths:
        return []
    tests = _FixedTests(files, paths, {ident.partition("[")[0].rpartition("::")[2] for ident in fixed})
    return [
        finding_at(path, new or b"", line, what)
        for path, (_, new) in files.contents().items()
        if not files.tests.is_test(path)
        for line, what in tests.places(path)
    ]


class _FixedTests:
    """What the fixed tests and the files around them say, and the code that decides it.

    Args:
        paths: The files of the tests.
        names: The names of the tests.
    """

    def __init__(self, files: PatchedFiles, paths: Collection[str], names: Collection[str]) -> None:
        self._files = files
        self._paths = paths
        read = sorted(
            {path for path in files.patched if PurePosixPath(path).name == "conftest.py"}.union(paths)
        )
        self._text = b"\n".join(files.new(path) or b"" for path in read)
        self._decoded = self._text.decode(errors="replace")
        self._words = set(re.findall(WORD, self._decoded))
        python = [path for path in read if path.endswith(".py")]
        known = {path: module for path in python if (module := parsed(files.new(path))) is not None}
        self._expected = TestValues([*known.values()], names).chains
        around = (path for path in files.base if PurePosixPath(path).name in AROUND)
        self._known = Known(
            [node for path in known.keys() & paths for node in without_other_tests(known[path], names)],
            (files.old(path) or b"" for path in around),
        )

    def places(self, path: str) -> Iterable[tuple[int, str]]:
        """Return the lines of a changed file that a person must read, each with what it does."""
        old, new = self._files.old(path), self._files.new(path)
        if path.endswith(".py"):
            return self._in_python(path)
        if _loses_check(old, new):
            return [(1, HELPER)]
        if self._is_data(path):
            return [(1, READ)]
        if PurePosixPath(path).suffix in CODE and new:
            return self._in_other_code(
                path, (old or b"").decode(errors="replace"), new.decode(errors="replace")
            )
        return []

    def _in_python(self, path: str) -> list[tuple[int, str]]:
        was, now = self._files.modules(path)
        if now is None:
            return []
        places = [*self._known.places(was or ast.Module([], []), now)]
        if was is None:
            return places
        before, after = definitions(was), definitions(now)
        functions = _functions(was, now, self._words, named=_is_plugin(path, self._text))
        changed = (*functions, *_classes(before, after, self._words))
        places += [(node.lineno, what) for node, what in changed]
        places += [(line, VALUE) for line in changed_values(before, after, self._expected)]
        if not places and _changes_only_values(was, now) and self._is_of_tests(path):
            return [(node.lineno, ONLY_VALUES) for node in _changed_values(was, now)]
        return places

    def _is_of_tests(self, path: str) -> bool:
        """Return whether only tests import a module, and these tests import other modules of the code too."""
        files = self._files
        modules = {each.removesuffix(".py"): each for each in files.patched if each.endswith(".py")}
        code = {name: each for name, each in modules.items() if not files.tests.is_test(each)}
        names = re.compile(rb"(?:from|import)\s[^\n]*\b%s\b" % PurePosixPath(path).stem.encode())
        full = set[str]()
        for test in self._paths:
            for _, _, module, name in imports_in(nodes_in(parsed(files.new(test)))):
                full |= {f"/{module.replace('.', '/')}", f"/{module.replace('.', '/')}/{name}"}
        used = {each for name, each in code.items() if any(f"/{name}".endswith(end) for end in full)}
        if path not in used or used == {path}:
            return False
        return not any(names.search(files.new(each) or b"") for each in code.values() if each != path)

    def _in_other_code(self, path: str, old: str, new: str) -> Iterator[tuple[int, str]]:
        """Yield lines in another language than Python that know the tests, and values and weaker checks that only they name."""
        yield from ((number, ANSWERS) for number in known_texts(old, new, self._decoded))
        was, now = _definitions(old.split("\n")), _definitions(new.split("\n"))
        changed = [
            (number, name, HELPER) for name, (number, fails) in now.items() if was.get(name, NONE)[1] - fails
        ]
        if LITERAL.sub("0", old) == LITERAL.sub("0", new):
            lines = zip(itertools.count(1), old.split("\n"), new.split("\n"), strict=False)
            names = ((number, SETS.search(after)) for number, before, after in lines if before != after)
            changed += [(number, match[1], VALUE) for number, match in names if match is not None]
        for number, name, what in changed:
            is_once = len(re.findall(rf"\b{name}\b", new)) == 1
            if name in self._words and is_once and not self._is_named_by_code(path, name):
                yield number, what

    def _is_data(self, path: str) -> bool:
        """Return whether a file is data, and tests name it or its folder while no other file does.

        Tests name a file of documentation only in full: their words may name any part of it by chance. Settings of the project, and
        files in hidden folders, are no data of tests.
        """
        pure, files = PurePosixPath(path), self._files
        is_hidden = "/." in f"/{path}"
        if pure.suffix in CODE or is_hidden or files.tests.is_surrounding(path, files.base):
            return False
        name, folder = re.escape(pure.name), re.escape(pure.parent.name)
        if pure.suffix in DOCUMENTATION:
            return pure.name.encode() in self._text and not self._is_named_by_code(path, name)
        named = {name: CONFIGURED} if self._words.issuperset(re.findall(WORD, pure.name)) else {}
        # only what has a folder's name as a text can read its files; a folder with code can be found by its package, too
        as_text = rf"""["'/.]{folder}["'/]"""
        if folder and re.search(as_text.encode(), self._text):
            beside = (PurePosixPath(each) for each in files.patched if each.endswith(".py"))
            has_code = any(each.parent == pure.parent for each in beside)
            named |= {folder: CONFIGURED} if has_code else {as_text: ()}
        return bool(named) and not any(self._is_named_by_code(path, *each) for each in named.items())

    def _is_named_by_code(self, path: str, pattern: str, others: tuple[str, ...] = CONFIGURED) -> bool:
        """Return whether a file of the same language that is no test, and is not the file itself, has a name.

        Args:
            pattern: Pattern of the name.
            others: Ends of the names of further files that may have it.
        """
        files, own, name = self._files, PurePosixPath(path).suffix, re.compile(pattern.encode())
        suffixes = (*others, own if own in CODE else ".py")
        return any(
            name.search(files.new(other) or b"")
            for other in files.patched
            if other != path and other.endswith(suffixes) and not files.tests.is_test(other)
        )


def _functions(
    was: ast.Module, now: ast.Module, words: Collection[str], *, named: bool
) -> Iterator[tuple[ast.stmt, str]]:
    """Yield changed fixtures and helpers of which tests have the name. `named` says that tests name the module as a plugin."""
    known = {node.name: node for node in functions_in(was)}
    for node in functions_in(now):
        before = known.get(node.name)
        if before is None or ast.dump(before) == ast.dump(node):
            continue
        gone = assertions_in(before) - assertions_in(node)
        if node.name.startswith("test_") or any("attr='assert" in each for each in gone):  # unittest's
            yield node, IS_TEST
        elif node.name in SET_UPS or (is_fixture(node) and (named or node.name in words)):
            yield node, FIXTURE
        elif node.name in words and CHECKS.match(node.name) and gone:
            yield node, HELPER


def _is_plugin(path: str, text: bytes) -> bool:
    """Return whether tests name a module as a plugin of pytest."""
    module = path.removesuffix(".py").replace("/", ".")
    lines = [line for line in text.split(b"\n") if b"pytest_plugins" in line]
    return any(module.rpartition(".")[2].encode() in line for line in lines)


def _classes(
    before: Definitions, after: Definitions, words: Collection[str]
) -> Iterator[tuple[ast.stmt, str]]:
    """Yield changed classes with tests, names of classes that now name others, and enumerations with a further name for a member."""
    for name in before:
        classes = [node for node in before[name] if isinstance(node, ast.ClassDef)]
        known = {*map(ast.dump, before[name])}
        for node in after.get(name, after.get("__getattr__", ())) if classes else ():
            if isinstance(node, ast.ClassDef):
                is_wrapped = _wrappers(node, after) > _wrappers(classes[0], after)
                if is_wrapped or _aliases(node) > _aliases(classes[0]):
                    yield node, STANDS_FOR
                elif _has_tests(node) and ast.dump(node) not in known:
                    yield node, IS_TEST
            elif name in words and ast.dump(node) not in known and not _is_moved(node, name):
                yield node, STANDS_FOR


def _is_moved(node: ast.stmt, name: str) -> bool:
    """Return whether a statement imports a class by its own name from another module of the code, or is a function instead."""
    if isinstance(node, Function) and node.name == name:  # no test can ask for its instances
        return True
    return any(name == own and module not in DATA for _, _, module, own in imports_in([node]))


def _wrappers(node: ast.ClassDef, known: Definitions) -> int:
    """Return how many decorators of a class are functions of its module."""
    functions = (known.get(last_name(each), [None])[0] for each in node.decorator_list)
    return sum(isinstance(each, Function) for each in functions)


def _has_tests(node: ast.ClassDef) -> bool:
    return any(isinstance(each, Function) and each.name.startswith("test_") for each in node.body)


def _aliases(node: ast.ClassDef) -> int:
    """Return how many members of an enumeration have the value of another one; 0 for other classes."""
    if not any(last_name(base).endswith(("Enum", "Flag")) for base in node.bases):
        return 0
    values = Counter(ast.dump(each.value) for each in node.body if isinstance(each, ast.Assign))
    return sum(number - 1 for number in values.values())


class _WithoutTexts(ast.NodeTransformer):
    """Leaves out docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _changes_only_values(was: ast.Module, now: ast.Module) -> bool:
    was, now = (_WithoutTexts().visit(copy.deepcopy(module)) for module in (was, now))
    if ast.dump(was) == ast.dump(now):
        return False
    return without_literals(was) == without_literals(now)


def _changed_values(was: ast.Module, now: ast.Module) -> list[ast.stmt]:
    """Return the statements whose values changed, of two modules that differ in values only.

    A statement that computes with a function's parameters is code, and so is a constant that such a statement names.
    """
    pairs = zip(_statements(was.body), _statements(now.body), strict=False)
    changed = [(new, function) for (old, _), (new, function) in pairs if _own(old) != _own(new)]
    computing = [node for node, function in _statements(now.body) if _computes(node, function)]
    used = {last_name(each) for node in computing for each in ast.walk(node)}
    return [
        node
        for node, function in changed
        if not _computes(node, function)
        and not (isinstance(node, ast.Assign) and {*map(last_name, node.targets)} <= used)
    ]


def _statements(
    body: Sequence[ast.stmt], function: Function | None = None
) -> Iterator[tuple[ast.stmt, Function | None]]:
    """Yield the statements without docstrings, each with the function that it is in."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node, function
        inner = node if isinstance(node, Function) else function
        yield from _statements(inner_statements(node), inner)


def _own(node: ast.stmt) -> list[str]:
    """Return the parts of a statement that are no statements."""
    return [ast.dump(each) for each in _expressions(node)]


def _expressions(node: ast.stmt) -> Iterator[ast.AST]:
    return (
        each
        for each in ast.iter_child_nodes(node)
        if not isinstance(each, ast.stmt | ast.excepthandler | ast.match_case)
    )


def _computes(node: ast.stmt, function: Function | None) -> bool:
    """Return whether a statement of a function reads a parameter of it, and lists no values."""
    if function is None or isinstance(node, Function | ast.ClassDef):
        return False
    parts = [each for part in _expressions(node) for each in ast.walk(part)]
    lists = any(isinstance(each, ast.List | ast.Tuple | ast.Set | ast.Dict) for each in parts)
    return not lists and not parameters(function).isdisjoint(map(last_name, parts))


def _loses_check(old: bytes | None, new: bytes | None) -> bool:
    """Return whether a file in JavaScript or Go has lost a line that calls a test library."""
    lines = ([line.strip() for line in (content or b"").splitlines()] for content in (old, new))
    was, now = (Counter(line for line in each if TEST_CALLS.search(line)) for each in lines)
    return bool(was - now)


def _definitions(lines: Sequence[str]) -> dict[str, tuple[int, Counter[str]]]:
    """Return the definitions in another language than Python by name: the line number, and the lines inside that fail a test."""
    return {
        match[1]: (
            number,
            Counter(filter(FAILS.search, block_in([*lines[number - 1 : number + MOST_LINES]]))),
        )
        for number, line in enumerate(lines, 1)
        if (match := DEFINES.search(line)) is not None
    }
