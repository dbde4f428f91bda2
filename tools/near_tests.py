"""Find the tests that a wrong path or node id may mean, by similar names."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.util.python_ast import parse

MOST = 5
"""Most names that one answer suggests."""
ALIKE = 0.6  # least similarity of two names, from 0 to 1


def near_paths(path: str, files: Collection[str]) -> list[str]:
    """Return test files, and folders with such files, whose names are like a path; best first."""
    tests = [file for file in files if file.endswith(".py") and "test" in file.lower()]
    folders = {str(folder) for file in tests for folder in PurePosixPath(file).parents} - {"."}
    candidates = tests if path.endswith(".py") else [*folders, *tests]
    wanted = PurePosixPath(path).name
    return best_names(wanted, path, {file: PurePosixPath(file).name for file in candidates if file != path})


def path_of_dotted(name: str, files: Collection[str]) -> str:
    """Return the node id that a dotted name means, as `tests.test_a.TestA.test_b`; any other text as it is."""
    words = name.split(".")
    if name in files or not all(map(str.isidentifier, words)):
        return name
    for end in range(len(words), 0, -1):
        path = f"{'/'.join(words[:end])}.py"
        if path in files:
            return "::".join((path, *words[end:]))
    return name


def near_names(wanted: str, names: Collection[str]) -> list[str]:
    """Return the names of tests that are like a wanted one; best first.

    Args:
        wanted: The part of a node id after the file, such as `TestA::test_one[1]`.
        names: What the file has, without parameters (see `names_of_tests`).
    """
    wanted = wanted.partition("[")[0]
    return best_names(wanted.rpartition("::")[2], wanted, {name: name.rpartition("::")[2] for name in names})


def names_of_tests(source: str) -> list[str]:
    """Return the classes with tests and the tests that a file defines, as node ids without the file.

    The file is parsed, not imported. So tests that are inherited or made by code are missing.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return list(_names(tree.body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            inner = list(_names(node.body, f"{prefix}{node.name}::"))
            if inner:
                yield prefix + node.name
                yield from inner
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "test" in node.name.lower():
            yield prefix + node.name


def best_names(last: str, whole: str, candidates: dict[str, str]) -> list[str]:
    """Return the candidates most like a name: `last` is its last part; candidates map a name to its last part."""
    scored = []
    for name, ending in candidates.items():
        alike = _alike(whole, name)
        # Equal last parts come first, however different the rest is.
        score = 2.0 if last == ending else max(alike, _alike(last, ending))
        if score >= ALIKE:
            scored.append((-score, -alike, name))
    return [name for *_, name in sorted(scored)[:MOST]]


def _alike(one: str, other: str) -> float:
    """Return how similar two names are, from 0 to 1; case does not count."""
    matcher = difflib.SequenceMatcher(None, one.lower(), other.lower(), autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= ALIKE else 0.0
