"""Python's tests: which files belong to them. `m3agent.tools.run_tests` runs them with pytest or unittest."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import PurePosixPath

from m3agent.sandbox.backends.pytest_bundle import WANTED_MODULES
from m3agent.tools.runners.base import Ecosystem, Suite, Tree

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
        modules = [path for path in tree.paths if path.endswith(".py")]
        if not modules:
            return []
        if tests := list(filter(is_test_module, modules)):
            return [Suite(PYTEST, evidence=min(tests))]
        manifests = [name for name in _MANIFESTS if name in tree.paths]
        if not manifests and any(table in tree.toml("pyproject.toml") for table in _TABLES):
            manifests = ["pyproject.toml"]
        return [Suite(PYTEST, evidence=manifests[0])] if manifests else []

    def is_test(self, path: str) -> bool:
        """See `is_test_file`."""
        return is_test_file(path)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """See `is_surrounding`."""
        return is_surrounding(path, base)
