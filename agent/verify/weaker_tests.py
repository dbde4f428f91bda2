"""Compare versions of tests: is a test new, is one gone, may it be skipped, does it say less, or expect something else?

The check itself uses the tests of the base tree, so these changes cannot make a patch look right. But the user gets them. And it
restores test files only: if a patch changes elsewhere what tests expect (helpers, fixtures, data), a person must read these lines.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import (
    Definition,
    Function,
    imports_in,
    is_fixture,
    last_name,
    nodes_in,
    parsed,
)
from m3agent.agent.verify.review import Finding, finding_at
from m3agent.tools.runners.suites import file_of, function_of, without_suite
from m3agent.tools.test_report import TestReport

SKIPS = frozenset({"skip", "skipif", "skipIf", "skipUnless", "skipTest", "xfail", "importorskip"})
"""Names in pytest and unittest that skip a test or let it fail."""
ASSERTS = re.compile(rb"assert|expect|should|require\.|\.(Error|Fatal|Fail)\w*\(|EXPECT|CHECK|must")
"""What lines with an assertion have in other languages than Python."""


def weakened(
    ident: str, base: bytes | None, earlier: bytes | None, later: bytes | None, *, shows_fix: bool = False
) -> str:
    """Return how a patch weakened a test that an earlier verdict named red; empty if it did not.

    A test counts as weakened if it is gone, if something new may skip it, or if one of its assertions is gone. A test
    that the base tree has in the same words never counts: verification restores it. A test that shows the fix may have
    other values in its assertions: the earlier ones may have been wrong.

    Args:
        earlier: Content in the tree in which the test was named red.
        shows_fix: Whether the test is red without the patch and green with it.
    """
    if earlier is None or earlier == later or test_in(parsed(base), ident) is not None:
        return ""
    was, now = parsed(earlier), parsed(later)
    if later is not None and test_in(was, ident) is None:
        return ""  # the earlier file could not be parsed, or the test is made at run time
    if test_in(now, ident) is None:
        return "deleted"
    if skips_in(now) - skips_in(was):
        return "skipped"
    return "weakened" if _is_weaker(was, now, ident, any_value=shows_fix) else ""


def changed_as_delivered(files: PatchedFiles, judged: str, undone: Collection[str]) -> list[str]:
    """Return the paths of the base tree that differ between the tree that was judged and the one that is delivered.

    Args:
        judged: Git tree id of the new code with the old tests.
    """
    new = files.workspace.entries(judged)
    return sorted(
        path
        for path in undone
        if files.patched.get(path) != new.get(path) and (path in files.base or path.endswith("conftest.py"))
    )


def lessened(files: PatchedFiles, paths: Sequence[str], before: TestReport) -> list[str]:
    """Return what the patch does to tests that pass without it, such as `tests/test_a.py::test_b was deleted`."""
    moved, new_assertions = set[str](), Counter[str]()
    for path in files.patch.paths:
        if path.endswith(".py") and files.tests.is_test(path):
            was, now = parsed(files.old(path)), parsed(files.new(path))
            moved.update(ast.dump(node) for node in nodes_in(now) if isinstance(node, Function))
            new_assertions += assertions_in(now) - assertions_in(was)
    changes = list[str]()
    for path in paths:
        if path not in files.base or files.tests.is_surrounding(path, files.base):
            continue  # only a run shows what it does
        if not path.endswith(".py"):
            changes += _lessened_lines(files, path)
            continue
        tests = sorted({function_of(ident) for ident in before.passed if file_of(ident) == path})
        was, now = parsed(files.old(path)), parsed(files.new(path))
        changes += _deleted(tests, was, now, moved)
        fewer = assertions_in(was) - assertions_in(now) - new_assertions
        if skips_in(now) - skips_in(was):
            changes.append(f"{path} has tests that are skipped")
        elif not changes and (fewer or _rows(was) - _rows(now)):
            weaker = (each for each in tests if _is_weaker(was, now, each))
            changes.append(f"{next(weaker, path)} was weakened")
    return changes


def _deleted(
    tests: Sequence[str], was: ast.Module | None, now: ast.Module | None, moved: Collection[str]
) -> Iterator[str]:
    for ident in tests:
        test = test_in(was, ident)
        if test is not None and ast.dump(test) not in moved and test_in(now, ident) is None:
            yield f"{ident} was deleted"


def _lessened_lines(files: PatchedFiles, path: str) -> list[str]:
    """Return what the patch does to tests in another language than Python."""
    old, new = (
        Counter(line.strip() for line in (content or b"").splitlines() if ASSERTS.search(line))
        for content in (files.old(path), files.new(path))
    )
    if path not in files.patched:
        return [f"{path} was deleted"]
    if not files.tests.has_tests(path):
        return [f"{path} was changed"]
    return [f"{path} was weakened"] if old - new else []


def not_run(
    before: TestReport, delivered: TestReport, files: Collection[str], new: Collection[str] = ()
) -> list[str]:
    """Return the tests that pass without the patch and do not run in the tree that is delivered.

    Args:
        files: The files whose tests ran there; empty for all.
        new: Ids of tests that the patch adds: a test may have moved there.
    """
    skipped = {*map(function_of, delivered.skipped)}
    ran = {*map(function_of, delivered.ids)} - skipped
    names = {function_of(ident).rpartition("::")[2] for ident in new}
    tests = {function_of(ident) for ident in before.passed if not files or file_of(ident) in files}
    return [
        f"{ident} {'is skipped' if ident in skipped else 'does not run'}"
        for ident in sorted(tests - ran)
        if ident in skipped or ident.rpartition("::")[2] not in names
    ]


def test_in(module: ast.Module | None, ident: str) -> ast.AST | None:
    """Return the function or class of a module that a test id names, or the whole module for the id of a file."""
    found: ast.AST | None = module
    for name in without_suite(ident).partition("[")[0].split("::")[1:]:
        inside = (node for node in getattr(found, "body", ()) if isinstance(node, Definition))
        found = next((node for node in inside if node.name == name), None)
    return found


def skips_in(tree: ast.AST | None) -> Counter[str]:
    """Return the names in a tree that skip tests or let them fail."""
    return Counter(name for node in nodes_in(tree) if (name := last_name(node)) in SKIPS)


def assertions_in(tree: ast.AST | None, *, any_value: bool = False) -> Counter[str]:
    """Return the assertions in a test: `assert`, unittest's methods, and `pytest.raises` and its like.

    Args:
        any_value: Whether assertions that differ in literal values only count as equal.
    """
    checks = ("assert", "raises", "warns", "fail")
    return Counter(
        ast.dump(_WithoutValues().visit(copy.deepcopy(node)) if any_value else node)
        for node in nodes_in(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and last_name(node.func).startswith(checks))
    )


class _WithoutValues(ast.NodeTransformer):
    """Replaces each literal value by the name of its type."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(type(node.value).__name__)


def _is_weaker(
    was: ast.Module | None, now: ast.Module | None, ident: str, *, any_value: bool = False
) -> bool:
    """Return whether a test has lost an assertion."""
    old, new = (assertions_in(test_in(module, ident), any_value=any_value) for module in (was, now))
    return bool(old - new)


def _rows(module: ast.AST | None) -> Counter[str]:
    """Return the elements of tables: of lists, tuples and dictionaries at the top level, and in decorators."""
    rows, tables = Counter[str](), list[ast.expr | None]()
    for node in nodes_in(module):
        if isinstance(node, Definition):
            tables += [
                each for call in node.decorator_list if isinstance(call, ast.Call) for each in call.args
            ]
        elif isinstance(node, ast.Module):
            tables += [each.value for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    for table in tables:
        match table:
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                rows.update(map(ast.dump, elements))
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                rows.update(f"{key and ast.dump(key)}: {ast.dump(value)}" for key, value in pairs)
    return rows


def changed_tests(old: bytes, new: bytes) -> set[str] | None:
    """Return the top-level functions and classes that are new or changed in a test file.

    Returns their names. None if the change may affect other tests of the file: other statements changed, a
    fixture changed, something that other code of the file uses changed, or the file cannot be parsed.
    """
    before, after = parsed(old), parsed(new)
    if before is None or after is None:
        return None
    if _others(before) != _others(after) or not _only_adds_imports(before, after):
        return None
    known = {node.name: ast.dump(node) for node in before.body if isinstance(node, Definition)}
    defined = [node for node in after.body if isinstance(node, Definition)]
    changed = {node.name for node in defined if known.get(node.name) != ast.dump(node)}
    if len({node.name for node in defined}) < len(defined):
        return None  # the last of several definitions counts, which is more than names can say
    for node in after.body:
        own = node.name if isinstance(node, Definition) else ""
        if (own in changed and is_fixture(node)) or not changed.isdisjoint(_names_used(node) - {own}):
            return None
    return changed


def only_adds(old: bytes, new: bytes) -> bool:
    """Return whether a change of a file only adds functions, classes and other statements, also inside of classes."""
    before, after = parsed(old), parsed(new)
    return before is not None and after is not None and _has_all(before.body, after.body)


def only_adds_lines(old: bytes, new: bytes) -> bool:
    """Return whether a change of a file in another language than Python only adds lines."""
    lines = iter(new.split(b"\n"))
    return all(line in lines for line in old.split(b"\n"))


def _has_all(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> bool:
    left = Counter(ast.dump(node) for node in new)
    classes = {node.name: node for node in new if isinstance(node, ast.ClassDef)}
    for node in old:
        text = ast.dump(node)
        same = classes.get(node.name) if isinstance(node, ast.ClassDef) else None
        if left[text]:
            left[text] -= 1
        elif same is None or not isinstance(node, ast.ClassDef) or not _has_all(node.body, same.body):
            return False
    return True


def _others(module: ast.Module) -> list[str]:
    """Return the statements that are neither definitions nor imports."""
    kinds = Definition | ast.Import | ast.ImportFrom
    return [ast.dump(node) for node in module.body if not isinstance(node, kinds)]


def _only_adds_imports(before: ast.Module, after: ast.Module) -> bool:
    """Return whether imports are at most added, without a name that the file used or defined before."""
    old, new = ({bound: origin for bound, *origin in imports_in(module.body)} for module in (before, after))
    taken = {name for node in before.body for name in _names_used(node)} | {"*"}
    taken |= {node.name for node in before.body if isinstance(node, Definition)}
    return old.items() <= new.items() and taken.isdisjoint(new.keys() - old.keys())


def _names_used(node: ast.AST) -> set[str]:
    """Return the names, the arguments (pytest's fixtures among them) and the texts in a statement."""
    found = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Constant(value=str() as name):
                found.add(name)
    return found


TEST_CALLS = re.compile(rb"\bassert\.\w+\(|\bexpect\(|\bt\.(?:Error|Fatal|Fail)\w*\(|\brequire\.\w+\(t,")
"""Calls of test libraries for JavaScript and Go, in files that may be no tests."""
CHECKS = re.compile("_?(assert|check|expect|verify|ensure)", re.IGNORECASE)
"""Start of the names of functions that tests call to compare."""
CODE = frozenset(
    [
        ".py",
        ".pyi",
        ".pyx",
        ".pxd",
        ".c",
        ".cc",
        ".cpp",
        ".h",
        ".hpp",
        ".rs",
        ".go",
        ".java",
        ".js",
        ".mjs",
        ".cjs",
        ".ts",
        ".rb",
    ]
)
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
