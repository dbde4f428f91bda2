"""Python's tests: which files belong to them, also by examples in docstrings, which pytest can run.

`m3agent.tools.run_tests` runs them with pytest or unittest.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from m3agent.sandbox.backends.pytest_bundle import WANTED_MODULES
from m3agent.tools.runners.base import Ecosystem, Suite, Tree
from m3agent.util.python_ast import parse

EXAMPLE = ">>>"
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def with_docstrings(code: bytes, tests: bytes) -> bytes:
    """Return a Python file with the docstrings of another version, where one of both has examples.

    Args:
        tests: The version whose docstrings count.

    Raises:
        ValueError: They cannot be separated: a file is no Python, or a docstring with examples is in one of the versions only.
    """
    try:
        new, old = dict(_documented(parse(code), "")), dict(_documented(parse(tests), ""))
    except (SyntaxError, RecursionError) as error:
        raise ValueError(str(error)) from None
    lines, old_lines = code.splitlines(keepends=True), tests.splitlines(keepends=True)
    for name, node in sorted(new.items(), key=lambda item: -_docstring(item[1])[0].lineno):
        (docstring, text), (wanted, wanted_text) = _docstring(node), _docstring(old.get(name, node))
        if text != wanted_text and EXAMPLE in f"{text}{wanted_text}":
            first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
            before = lines[first][: docstring.col_offset]
            after = lines[last - 1][docstring.end_col_offset or 0 :]
            lines[first:last] = [before + _source(old_lines, wanted) + after]
    combined = b"".join(lines)
    if _examples(parse(tests)) - _examples(parse(combined)):
        raise ValueError("a text with examples is in one version only")
    return combined


def _examples(module: ast.Module) -> Counter[str]:
    """Return the texts with examples, also those that are no docstrings, such as in `__test__`."""
    texts = (node.value for node in ast.walk(module) if isinstance(node, ast.Constant))
    return Counter(text for text in texts if isinstance(text, str) and EXAMPLE in text)


def _documented(node: Documented, prefix: str) -> Iterator[tuple[str, Documented]]:
    if ast.get_docstring(node, clean=False) is not None:
        yield prefix, node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(inner, f"{prefix}.{inner.name}")


def _docstring(node: Documented) -> tuple[ast.expr, str]:
    statement = node.body[0]
    assert isinstance(statement, ast.Expr)
    return statement.value, ast.get_docstring(node, clean=False) or ""


def _source(lines: list[bytes], node: ast.expr) -> bytes:
    """Return the text of a node."""
    part = lines[node.lineno - 1 : node.end_lineno]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0][node.col_offset :]
    return b"".join(part)


PYTEST = "pytest"
"""Name of the runner."""
TEST_FOLDERS = frozenset({"test", "tests", "testing"})
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
)
TAKEN_NAMES = frozenset({"_pytest", *WANTED_MODULES, *sys.stdlib_module_names})
START_UP = frozenset({"sitecustomize", "usercustomize"})
"""Modules that Python imports at its start, from any folder in which it searches."""
METADATA = (".dist-info", ".egg-info", ".egg", ".egg-link")
"""Suffixes of a distribution's metadata, which can register pytest plugins (importlib.metadata and pkg_resources)."""
_MANIFESTS = ("setup.py", "setup.cfg", "pytest.ini", "tox.ini", "manage.py", "requirements.txt")
_TABLES = ("project", "build-system")
"""Tables of pyproject.toml that only a Python project has."""


def is_test_module(path: str) -> bool:
    """Return whether a file holds tests, by its name (pytest's and unittest's rules)."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def is_test_file(path: str) -> bool:
    """Return whether a file belongs to the tests, by its name or its folder."""
    pure = PurePosixPath(path)
    return is_test_module(path) or pure.name == "conftest.py" or bool(TEST_FOLDERS & set(pure.parts[:-1]))


def is_surrounding(path: str, base: Collection[str]) -> bool:
    """Return whether a file decides how tests run.

    Such files are configuration, Python's start-up files, metadata of distributions, and modules missing from `base`
    that shadow a module of Python or pytest.
    """
    pure = PurePosixPath(path)
    parts = [part.lower() for part in pure.parts]
    if pure.name in CONFIGURATION or pure.suffix == ".pth":
        return True
    if any(part.endswith(METADATA) or part == "egg-info" for part in parts):
        return True
    if START_UP & {part.partition(".")[0] for part in parts}:
        return True
    folder = "src/" if pure.parts[0] == "src" else ""
    name = path[len(folder) :].partition("/")[0].partition(".")[0]
    if name not in TAKEN_NAMES:  # the search below takes long in a large repository
        return False
    return not any(other.startswith((f"{folder}{name}/", f"{folder}{name}.py")) for other in base)


class Pytest(Ecosystem):
    """All tests of a repository that pytest collects from its root, unittest's included."""

    name = PYTEST
    language = "Python"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return one suite at the root if the repository has test modules or is a Python project.

        Other Python files in a folder of tests are often scripts of another language's tests.
        """
        modules = tree.below("", ".py")
        if not modules:
            return []
        if tests := list(filter(is_test_module, modules)):
            return [Suite(PYTEST, evidence=min(tests))]
        manifests = [*tree.present(*_MANIFESTS)]
        if not manifests and any(table in tree.toml("pyproject.toml") for table in _TABLES):
            manifests = ["pyproject.toml"]
        return [Suite(PYTEST, evidence=manifests[0])] if manifests else []

    def is_test(self, path: str) -> bool:
        """See `is_test_file`."""
        return is_test_file(path)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """See `is_surrounding`."""
        return is_surrounding(path, base)
