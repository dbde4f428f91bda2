"""Find the red tests of the base tree that the issue is about."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import PurePosixPath

from m3agent.sandbox.python_ast import parse
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import file_of

_NAME = re.compile(r"[^\W\d]\w+")
_CODE = re.compile(r"`[^`\n]+`|[\w.]+(?=\()|\w*_\w+|\w+\.\w[\w.]*|\b[a-z]+[A-Z]\w*|\b[A-Z][a-z]+[A-Z]\w*")
"""What looks like code in an issue: in backticks, before a parenthesis, with an underscore or a dot, in camel case."""


def related_tests(workspace: Workspace, tree: str, issue: str, idents: Collection[str]) -> set[str]:
    """Return the tests that an issue is about.

    The issue names the test or its file; or it names code that the test uses: any word for what the test's file imports,
    otherwise a word that looks like code. An issue without a word is about all tests, and without an issue there are none.

    Args:
        workspace: Holds the tree.
        tree: Git tree id of the tests.
        issue: Text of the issue.
        idents: Ids of the tests to consider.
    """
    words = set(_NAME.findall(issue))
    if not words:
        return set(idents) if issue.strip() else set()
    code = {name for part in _CODE.findall(issue) for name in _NAME.findall(part)}
    entries, found = workspace.entries(tree), set[str]()
    for ident in idents:
        path = file_of(ident)
        function = ident.rpartition("::")[2].partition("[")[0]
        if function in words or PurePosixPath(path).name in issue:
            found.add(ident)
        elif path in entries:
            imported, used = _names(workspace.store.get_blob(entries[path].sha), function)
            if words & imported or code & used:
                found.add(ident)
    return found


def _names(source: bytes, function: str) -> tuple[set[str], set[str]]:
    """Return the names that a test function uses, first those of imported code, then all.

    If the function is not found, its whole file counts.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set(), set(_NAME.findall(source.decode(errors="replace")))
    every = list(ast.walk(tree))
    bound = {
        (alias.asname or alias.name).partition(".")[0]
        for node in every
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    parts = [n for n in every if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == function]
    nodes = [inner for part in (parts or tree.body) for inner in ast.walk(part)]
    imported, used = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Name):
            used.add(node.id)
            imported |= {node.id} & bound
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
            imported |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id in bound else set()
    return imported, used
