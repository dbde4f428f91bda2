"""Find tests of the base tree that say less in the tree as a patch delivers it: deleted, skipped, or without an assertion.

The check itself uses the tests of the base tree, so these changes cannot make a patch look right. But the user gets them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from m3agent.agent.verify.weakened import assertions_in, parsed, skips_in, test_in
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.suites import file_of, files_of_tests, function_of
from m3agent.tools.test_report import TestReport

ASSERTS = re.compile(rb"assert|expect|should|require\.|\.(Error|Fatal|Fail)\w*\(|EXPECT|CHECK|must")
"""What lines with an assertion have in other languages than Python."""


def changed_as_delivered(
    workspace: Workspace, patch: Patch, judged: str, undone: Collection[str]
) -> list[str]:
    """Return the paths of the base tree that differ between the tree that was judged and the one that is delivered.

    Args:
        workspace, patch: The patch.
        judged: Git tree id of the new code with the old tests.
        undone: Paths of the patch whose changes do not count.
    """
    base, delivered, new = (workspace.entries(tree) for tree in (patch.base, patch.tree, judged))
    return sorted(
        path
        for path in undone
        if delivered.get(path) != new.get(path) and (path in base or path.endswith("conftest.py"))
    )


def lessened(workspace: Workspace, patch: Patch, paths: Sequence[str], before: TestReport) -> list[str]:
    """Return what the patch does to tests that pass without it, such as `tests/test_a.py::test_b was deleted`.

    Args:
        workspace, patch: The patch.
        paths: Paths of the base tree's tests that the patch changes.
        before: The results of the base tree.
    """
    base, delivered = workspace.entries(patch.base), workspace.entries(patch.tree)
    files = files_of_tests(workspace.store, patch.base)
    in_tests = [path for path in patch.paths if path.endswith(".py") and files.is_test(path)]
    moved, new_assertions = set[str](), Counter[str]()
    for path in in_tests:
        was, now = (parsed(_blob(workspace, entries, path)) for entries in (base, delivered))
        moved.update(_definitions(now))
        new_assertions += _assertions(now) - _assertions(was)
    changes = list[str]()
    for path in paths:
        if path not in base or files.is_surrounding(path, base):
            continue  # only a run shows what it does
        old, new = _blob(workspace, base, path), _blob(workspace, delivered, path)
        tests = sorted({function_of(ident) for ident in before.passed if file_of(ident) == path})
        if not path.endswith(".py"):
            if path not in delivered:
                changes.append(f"{path} was deleted")
            elif not files.has_tests(path) or _asserting_lines(old) - _asserting_lines(new):
                changes.append(f"{path} was {'weakened' if files.has_tests(path) else 'changed'}")
            continue
        was, now = parsed(old), parsed(new)
        for ident in tests:
            test = test_in(was, ident)
            if test is not None and ast.dump(test) not in moved and test_in(now, ident) is None:
                changes.append(f"{ident} was deleted")
        if skips_in(now) - skips_in(was):
            changes.append(f"{path} has tests that are skipped")
        elif not changes and (
            _assertions(was) - _assertions(now) - new_assertions or _rows(was) - _rows(now)
        ):
            weaker = (f"{ident} was weakened" for ident in tests if _is_weaker(was, now, ident))
            changes.append(next(weaker, f"{path} was weakened"))
    return changes


def not_run(
    before: TestReport, delivered: TestReport, files: Collection[str], new: Collection[str] = ()
) -> list[str]:
    """Return the tests that pass without the patch and do not run in the tree that is delivered.

    Args:
        before: The results of the base tree.
        delivered: Those of the tree that is delivered.
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


def _blob(workspace: Workspace, entries: Mapping[str, TreeEntry], path: str) -> bytes:
    return workspace.store.get_blob(entries[path].sha) if path in entries else b""


def _assertions(tree: ast.AST | None) -> Counter[str]:
    return assertions_in(tree, any_value=False)


def _definitions(module: ast.Module | None) -> Iterator[str]:
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.dump(node)


def _is_weaker(was: ast.Module | None, now: ast.Module | None, ident: str) -> bool:
    return bool(_assertions(test_in(was, ident)) - _assertions(test_in(now, ident)))


def _rows(module: ast.AST | None) -> Counter[str]:
    """Return the elements of tables: of lists, tuples and dictionaries at the top level, and in decorators."""
    rows = Counter[str]()
    for node in ast.walk(module) if module is not None else ():
        tables: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            tables += [
                value for each in node.decorator_list if isinstance(each, ast.Call) for value in each.args
            ]
        elif isinstance(node, ast.Module | ast.ClassDef):
            tables += [each.value for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign)]
        for table in tables:
            match table:
                case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                    rows.update(map(ast.dump, elements))
                case ast.Dict(keys=keys, values=values):
                    rows.update(
                        f"{key and ast.dump(key)}: {ast.dump(value)}"
                        for key, value in zip(keys, values, strict=True)
                    )
    return rows


def _asserting_lines(source: bytes) -> Counter[bytes]:
    return Counter(line.strip() for line in source.splitlines() if ASSERTS.search(line))
