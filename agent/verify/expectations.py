"""Find lines of a patch outside of test files that decide what tests expect: helpers with assertions, fixtures, data.

The check restores test files only. If a patch changes what they expect elsewhere, its own tests cannot show that it is right, so a
person must read these lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.python_file import Function, is_fixture, parsed
from m3agent.agent.verify.review import Finding, finding_at
from m3agent.agent.verify.weaker_tests import assertions_in
from m3agent.tools.runners.suites import file_of, without_suite

CHECKS = re.compile("_?(assert|check|expect|verify|ensure)", re.IGNORECASE)
"""Start of the names of functions that tests call to compare."""
DATA = frozenset(
    {".json", ".yaml", ".yml", ".csv", ".tsv", ".txt", ".xml", ".html", ".toml", ".ini", ".out", ".snap"}
)
WORD = r"[A-Za-z_][A-Za-z_0-9]*"
ROWS = r"(?:parametrize\([^()]*|\bin )\b([A-Za-z_]\w*)\s*[):]"
"""Names of what tests run for: the values of parametrize and of loops."""
HELPER = "changes an assertion that the fixed tests call"
FIXTURE = "changes a fixture that the fixed tests use"
TABLE = "changes values for which the fixed tests run"
READ = "is data that only tests name"


def changed_expectations(files: PatchedFiles, fixed: Collection[str]) -> list[Finding]:
    """Return the lines that decide what the fixed tests expect.

    Args:
        files: The patch.
        fixed: Ids of the fixed tests.
    """
    tests = {file_of(without_suite(ident)) for ident in fixed} & files.patched.keys()
    if not tests:
        return []
    surroundings = {path for path in files.patched if PurePosixPath(path).name == "conftest.py"}
    text = b"\n".join(files.new(path) or b"" for path in sorted(tests | surroundings))
    words, rows = (set(re.findall(pattern, text.decode(errors="replace"))) for pattern in (WORD, ROWS))
    findings = list[Finding]()
    for path, (old, new) in files.contents().items():
        pure = PurePosixPath(path)
        if old is None or new is None or files.tests.is_test(path):
            continue
        was, now = (parsed(content) if pure.suffix == ".py" else None for content in (old, new))
        if was is not None and now is not None:
            functions = _functions(was, now, words, named=_is_plugin(path, text))
            findings += [
                finding_at(path, new, node.lineno, what)
                for node, what in (*functions, *_tables(was, now, rows))
            ]
        elif pure.suffix in DATA and pure.name.encode() in text and not _is_named_by_code(files, path):
            findings.append(finding_at(path, new, 1, READ))
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
        if is_fixture(node) and (named or node.name in words):
            yield node, FIXTURE
        elif node.name in words and CHECKS.match(node.name) and assertions_in(before) - assertions_in(node):
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


def _is_named_by_code(files: PatchedFiles, path: str) -> bool:
    """Return whether a file that is no test, and is not the file itself, has the name of a file."""
    name = PurePosixPath(path).name.encode()
    return any(
        name in (files.new(other) or b"")
        for other in files.patched
        if other != path and other.endswith((".py", ".toml", ".cfg")) and not files.tests.is_test(other)
    )
