"""Find lines of a patch outside of test files that decide what tests expect: helpers with assertions, fixtures, data.

The check restores test files only. If a patch changes what they expect elsewhere, its own tests cannot show that it is right, so a
person must read these lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.review import MOST_TEXT, Finding
from m3agent.agent.verify.weakened import assertions_in, parsed
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.suites import file_of, files_of_tests, without_suite

CHECKS = re.compile("_?(assert|check|expect|verify|ensure)", re.IGNORECASE)
"""Start of the names of functions that tests call to compare."""
DATA = frozenset(
    {".json", ".yaml", ".yml", ".csv", ".tsv", ".txt", ".xml", ".html", ".toml", ".ini", ".out", ".snap"}
)
WORD = r"[A-Za-z_][A-Za-z_0-9]*"
ROWS = r"(?:parametrize\([^()]*|\bin )\b([A-Za-z_]\w*)\s*[):]"
"""Names of what tests run for: the values of parametrize and of loops."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
HELPER = "changes an assertion that the fixed tests call"
FIXTURE = "changes a fixture that the fixed tests use"
TABLE = "changes values for which the fixed tests run"
READ = "is data that only tests name"


def changed_expectations(workspace: Workspace, patch: Patch, fixed: Collection[str]) -> list[Finding]:
    """Return the lines that decide what the fixed tests expect.

    Args:
        workspace, patch: The patch.
        fixed: Ids of the fixed tests.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    files = files_of_tests(workspace.store, patch.base)
    changed = [path for path in patch.paths if path in base and path in patched and not files.is_test(path)]
    tests = {path for ident in fixed if (path := file_of(without_suite(ident))) in patched}
    if not changed or not tests:
        return []
    blob = workspace.store.get_blob
    surroundings = {path for path in patched if PurePosixPath(path).name == "conftest.py"}
    text = b"\n".join(blob(patched[path].sha) for path in sorted(tests | surroundings))
    words, rows = (set(re.findall(pattern, text.decode(errors="replace"))) for pattern in (WORD, ROWS))
    findings = list[Finding]()
    for path in changed:
        old, new = blob(base[path].sha), blob(patched[path].sha)
        if path.endswith(".py"):
            was, now = parsed(old), parsed(new)
            if was is not None and now is not None:
                changes = (
                    *_functions(was, now, words, named=_is_plugin(path, text)),
                    *_tables(was, now, rows),
                )
                findings += [_finding(path, node, new, what) for node, what in changes]
        elif (
            PurePosixPath(path).suffix in DATA
            and PurePosixPath(path).name.encode() in text
            and not _is_named_by_code(workspace, patch, path)
        ):
            findings.append(Finding(path, 1, new.split(b"\n")[0].decode(errors="replace")[:MOST_TEXT], READ))
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
        if any("fixture" in ast.dump(each) for each in node.decorator_list) and (named or node.name in words):
            yield node, FIXTURE
        elif (
            node.name in words
            and CHECKS.match(node.name)
            and assertions_in(before, any_value=False) - assertions_in(node, any_value=False)
        ):
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


def _finding(path: str, node: ast.stmt, source: bytes, what: str) -> Finding:
    line = source.split(b"\n")[node.lineno - 1].decode(errors="replace").strip()
    return Finding(path, node.lineno, line[:MOST_TEXT], what)


def _is_plugin(path: str, text: bytes) -> bool:
    """Return whether tests name a module as a plugin of pytest."""
    module = path.removesuffix(".py").replace("/", ".")
    lines = [line for line in text.split(b"\n") if b"pytest_plugins" in line]
    return any(module.rpartition(".")[2].encode() in line for line in lines)


def _is_named_by_code(workspace: Workspace, patch: Patch, path: str) -> bool:
    """Return whether a file that is no test, and is not the file itself, has the name of a file."""
    files, name = files_of_tests(workspace.store, patch.base), PurePosixPath(path).name.encode()
    return any(
        name in workspace.store.get_blob(entry.sha)
        for other, entry in workspace.entries(patch.tree).items()
        if other != path and other.endswith((".py", ".toml", ".cfg")) and not files.is_test(other)
    )
