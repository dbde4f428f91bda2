"""Make the trees to compare: the old and the new code, both with the tests of the old tree."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.agent.verify.changed_tests import only_adds
from m3agent.sandbox.backends.pytest_bundle import WANTED_MODULES
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Patch, Workspace

TEST_FOLDERS = frozenset({"test", "tests", "testing"})
CONFIGURATION = frozenset(
    {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
)
TAKEN_NAMES = frozenset({"_pytest", *WANTED_MODULES, *sys.stdlib_module_names})
START_UP = frozenset({"sitecustomize", "usercustomize"})
"""Modules that Python imports at its start, from any folder in which it searches."""
METADATA = (".dist-info", ".egg-info", ".egg", ".egg-link")
"""Suffixes of a distribution's metadata, which can register pytest plugins (importlib.metadata and pkg_resources)."""


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
    known = any(other.startswith((f"{folder}{name}/", f"{folder}{name}.py")) for other in base)
    return name in TAKEN_NAMES and not known


@dataclass(frozen=True)
class Trees:
    """The trees to compare, by git tree id. All have the existing test files unchanged.

    Attributes:
        old: The old code with the patch's new test files.
        new: The new code with the patch's new test files.
        without: The new code without the new test files. Those that code may import are there.
        added: Paths of the new test files.
        imported: Paths of those of them that `without` has.
        new_files: Paths of all files that the patch adds.
    """

    old: str
    new: str
    without: str
    added: tuple[str, ...]
    imported: tuple[str, ...]
    new_files: tuple[str, ...]


def is_imported_by_code(path: str, tree: Collection[str]) -> bool:
    """Return whether a new test file may be a part of the code, such as `package/testing/helper.py`."""
    pure = PurePosixPath(path)
    first = next(n for n, part in enumerate(pure.parts) if part in TEST_FOLDERS or n == len(pure.parts) - 1)
    package = "/".join((*pure.parts[:first], "__init__.py"))
    return 0 < first < len(pure.parts) - 1 and package in tree and not is_test_module(path)


def trees_to_compare(workspace: Workspace, patch: Patch) -> Trees:
    """Write the trees to compare."""
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    patched = without_surroundings(patch, base, patched)
    tests = [path for path in patch.paths if is_test_file(path)]
    added = [
        path
        for path in tests
        if path in patched and path not in base and PurePosixPath(path).name != "conftest.py"
    ]
    old = {**base, **{path: patched[path] for path in added}}
    new = {path: entry for path, entry in patched.items() if path not in tests or path in added}
    new |= {path: base[path] for path in tests if path in base}
    imported = [path for path in added if is_imported_by_code(path, patched)]
    without = {path: entry for path, entry in new.items() if path not in added or path in imported}
    write = workspace.store.write_tree
    return Trees(
        write(old.values()),
        write(new.values()),
        write(without.values()),
        tuple(added),
        tuple(imported),
        tuple(path for path in patch.paths if path not in base),
    )


def changes_undone(workspace: Workspace, patch: Patch) -> tuple[str, ...]:
    """Return the sorted paths of the patch whose changes do not count.

    A test module to which the patch only adds tests is not among them: these tests run as well.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)

    def is_undone(path: str) -> bool:
        if is_surrounding(path, base) or PurePosixPath(path).name == "conftest.py":
            return True
        if not is_test_file(path) or path not in base:
            return False
        contents = (workspace.store.get_blob(tree[path].sha) for tree in (base, patched) if path in tree)
        return not (is_test_module(path) and path in patched and only_adds(*contents))

    return tuple(sorted(filter(is_undone, patch.paths)))


def trees_with_new_tests(workspace: Workspace, patch: Patch) -> tuple[str, str] | None:
    """Write the old and the new code, both with all test files as the patch leaves them.

    Returns:
        The two tree ids; None if the patch changed no existing test file.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    patched = without_surroundings(patch, base, patched)
    if not any(path in base and path in patched and is_test_file(path) for path in patch.paths):
        return None
    code = {path: entry for path, entry in base.items() if not is_test_file(path)}
    tests = [entry for path, entry in patched.items() if is_test_file(path)]
    write = workspace.store.write_tree
    return write([*code.values(), *tests]), write(patched.values())


def without_surroundings(
    patch: Patch, base: dict[str, TreeEntry], patched: dict[str, TreeEntry]
) -> dict[str, TreeEntry]:
    """Return the patched files, with the patch's changes to files that decide how tests run undone."""
    undone = {path for path in patch.paths if is_surrounding(path, base)}
    kept = {path: entry for path, entry in patched.items() if path not in undone}
    return kept | {path: base[path] for path in undone if path in base}
