"""Find tests that belong to changed code, or to an issue."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.agent.verify.python_file import imports_in, nodes_in
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.python import is_test_file, is_test_module
from m3agent.tools.runners.suites import CODE, file_of, files_of_tests, without_suite
from m3agent.util.about_issue import IssueWords
from m3agent.util.python_ast import parsed

_TEST_WORDS = re.compile("^(?:tests?|spec)[_-]?|[_-]?(?:tests?|specs?)$")


def related_tests(workspace: Workspace, tree: str, issue: str, idents: Collection[str]) -> set[str]:
    """Return the tests that an issue is about (see `IssueWords.tests`)."""
    entries = workspace.entries(tree)
    paths = {file_of(ident) for ident in idents} & entries.keys()
    files = {path: workspace.store.get_blob(entries[path].sha) for path in paths}
    about = IssueWords(issue).tests({without_suite(ident) for ident in idents}, files)
    return {ident for ident in idents if without_suite(ident) in about}


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
            return (str(pure.parent) in folders or _stem(pure) in stems) and rules.has_tests(path)
        if not is_test_module(path):
            return False
        if not names.isdisjoint({pure.stem.removeprefix("test_"), pure.stem.removesuffix("_test")}):
            return True
        return any(f"{name}.".startswith(starts) for name in _imported(workspace.store.get_blob(sha)))

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
