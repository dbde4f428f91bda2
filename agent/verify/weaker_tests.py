"""Compare versions of tests: is one gone, may it be skipped, or does it say less?

The check itself uses the tests of the base tree, so these changes cannot make a patch look right. But the user gets them.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import Definition, definitions_in, functions_in, last_name, nodes_in
from m3agent.tools.runners.suites import file_of, function_of, without_suite
from m3agent.tools.test_report import TestReport
from m3agent.util.python_ast import parsed

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
    for was, now in map(files.modules, filter(files.tests.is_test, files.patch.paths)):
        moved.update(map(ast.dump, functions_in(now)))
        new_assertions += assertions_in(now) - assertions_in(was)
    changes = list[str]()
    for path in paths:
        if path not in files.base or files.tests.is_surrounding(path, files.base):
            continue  # only a run shows what it does
        if not path.endswith(".py"):
            changes += _lessened_lines(files, path)
            continue
        tests = sorted(_passed_in(before, {path}))
        was, now = files.modules(path)
        changes += _deleted(tests, was, now, moved)
        fewer = assertions_in(was) - assertions_in(now) - new_assertions
        if skips_in(now) - skips_in(was):
            changes.append(f"{path} has tests that are skipped")
        elif not changes and (fewer or _rows(was) - _rows(now)):
            weaker = (each for each in tests if _is_weaker(was, now, each))
            changes.append(f"{next(weaker, path)} may check less now")
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
    return [f"{path} may check less now"] if old - new else []


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
    tests = _passed_in(before, files) if files else {*map(function_of, before.passed)}
    return [
        f"{ident} {'is skipped' if ident in skipped else 'does not run'}"
        for ident in sorted(tests - ran)
        if ident in skipped or ident.rpartition("::")[2] not in names
    ]


def _passed_in(report: TestReport, files: Collection[str]) -> set[str]:
    return {function_of(ident) for ident in report.passed if file_of(ident) in files}


def test_in(module: ast.Module | None, ident: str) -> ast.AST | None:
    """Return the function or class of a module that a test id names, or the whole module for the id of a file."""
    found: ast.AST | None = module
    for name in without_suite(ident).partition("[")[0].split("::")[1:]:
        found = next((node for node in definitions_in(found) if node.name == name), None)
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
