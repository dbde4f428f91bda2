"""Find tests that belong to changed code, or to an issue."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.python_file import Function, imports_in, nodes_in, parsed
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.python import is_test_file, is_test_module
from m3agent.tools.runners.suites import CODE, file_of, files_of_tests

_NAME = re.compile(r"[^\W\d]\w+")
_CODE = re.compile(r"`[^`\n]+`|[\w.]+(?=\()|\w*_\w+|\w+\.\w[\w.]*|\b[a-z]+[A-Z]\w*|\b[A-Z][a-z]+[A-Z]\w*")
"""What looks like code in an issue: in backticks, before a parenthesis, with an underscore or a dot, in camel case."""
_TEST_WORDS = re.compile("^(?:tests?|spec)[_-]?|[_-]?(?:tests?|specs?)$")


def related_tests(workspace: Workspace, tree: str, issue: str, idents: Collection[str]) -> set[str]:
    """Return the tests that an issue is about.

    The issue names the test or its file; or it names code that the test uses: any word for what the test's file imports,
    otherwise a word that looks like code. An issue without a word is about all tests, and without an issue there are none.
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
    tree = parsed(source)
    if tree is None:
        return set(), set(_NAME.findall(source.decode(errors="replace")))
    every = list(ast.walk(tree))
    bound = {name.partition(".")[0] for name, *_ in imports_in(every)}
    parts = [node for node in every if isinstance(node, Function) and node.name == function]
    imported, used = set[str](), set[str]()
    for node in (inner for part in (parts or tree.body) for inner in ast.walk(part)):
        match node:
            case ast.Name(id=name):
                used.add(name)
                imported |= {name} & bound
            case ast.Attribute(attr=name, value=value):
                used.add(name)
                if isinstance(value, ast.Name) and value.id in bound:
                    imported.add(name)
    return imported, used


def files_of_tests_near(workspace: Workspace, tree: str, changed: Collection[str]) -> set[str]:
    """Return the test files that belong to changed files.

    For Python these import a changed module or bear its name, as `test_cart.py` for `cart.py`. For other languages they
    are in the same folder, or bear the name: `cart_test.go`, `cart.test.ts`, `CartTest.java`.
    """
    modules = {_module(path) for path in changed if path.endswith(".py") and not is_test_file(path)} - {""}
    names = {module.rpartition(".")[2] for module in modules}
    rules = files_of_tests(workspace.store, tree)
    code = (PurePosixPath(path) for path in changed if not rules.is_test(path))
    others = {path for path in code if path.suffix in CODE - {".py"}}
    folders, stems = {str(path.parent) for path in others}, {_stem(path) for path in others} - {""}
    starts = tuple(f"{module}." for module in modules)

    def is_near(path: str, sha: str) -> bool:
        pure = PurePosixPath(path)
        if pure.suffix != ".py":
            return (
                bool(others)
                and rules.has_tests(path)
                and (str(pure.parent) in folders or _stem(pure) in stems)
            )
        if not is_test_module(path):
            return False
        bare = {pure.stem.removeprefix("test_"), pure.stem.removesuffix("_test")}
        imported = _imported(workspace.store.get_blob(sha)) if bare.isdisjoint(names) else ()
        return not bare.isdisjoint(names) or any(f"{name}.".startswith(starts) for name in imported)

    return {path for path, entry in workspace.entries(tree).items() if is_near(path, entry.sha)}


def _stem(path: PurePosixPath) -> str:
    """Return a file's name without suffixes and without the words that mark tests, in lower case."""
    return _TEST_WORDS.sub("", path.name.partition(".")[0].lower())


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(source: bytes) -> Iterator[str]:
    """Yield the dotted names that a file imports."""
    for _, _, module, name in imports_in(nodes_in(parsed(source))):
        if module:
            yield f"{module}.{name}" if name else module
