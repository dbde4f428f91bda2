"""Make the trees to compare: the old and the new code, both with the tests of the old tree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from m3agent.agent.verify.changed_tests import only_adds, only_adds_lines
from m3agent.sandbox.store.git import TreeEntry
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.python import TEST_FOLDERS, is_test_module
from m3agent.tools.runners.suites import TestFiles, files_of_tests


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
        inseparable: Paths of code files whose tests cannot be separated from the code. They are as the patch leaves them.
    """

    old: str
    new: str
    without: str
    added: tuple[str, ...]
    imported: tuple[str, ...]
    new_files: tuple[str, ...]
    inseparable: tuple[str, ...] = ()


def is_imported_by_code(path: str, tree: Collection[str]) -> bool:
    """Return whether a new test file may be a part of Python code, such as `package/testing/helper.py`."""
    pure = PurePosixPath(path)
    first = next(n for n, part in enumerate(pure.parts) if part in TEST_FOLDERS or n == len(pure.parts) - 1)
    package = "/".join((*pure.parts[:first], "__init__.py"))
    return 0 < first < len(pure.parts) - 1 and package in tree and not is_test_module(path)


def trees_to_compare(workspace: Workspace, patch: Patch) -> Trees:
    """Write the trees to compare."""
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    files = files_of_tests(workspace.store, patch.base)
    patched = without_surroundings(workspace, patch, files)
    tests = [path for path in patch.paths if files.is_test(path)]
    added = [
        path
        for path in tests
        if path in patched and path not in base and PurePosixPath(path).name != "conftest.py"
    ]
    old = {**base, **{path: patched[path] for path in added}}
    new = {path: entry for path, entry in patched.items() if path not in tests or path in added}
    new |= {path: base[path] for path in tests if path in base}
    inline, inseparable = _combined(workspace, patch, files, code=patch.tree, tests=patch.base)
    new |= inline
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
        inseparable,
    )


def _combined(
    workspace: Workspace, patch: Patch, files: TestFiles, *, code: str, tests: str
) -> tuple[dict[str, TreeEntry], tuple[str, ...]]:
    """Return the changed files that have tests beside their code, with the code of one tree and the tests of another.

    Returns:
        The files by path, and the paths of those whose tests cannot be separated from the code.
    """
    of_code, of_tests = workspace.entries(code), workspace.entries(tests)
    found, inseparable = dict[str, TreeEntry](), list[str]()
    for path in patch.paths:
        if path in of_code and path in of_tests and not files.is_test(path):
            try:
                content = files.combined(
                    path, *(workspace.store.get_blob(tree[path].sha) for tree in (of_code, of_tests))
                )
            except ValueError:
                inseparable.append(path)
                continue
            if content is not None:
                found[path] = replace(of_code[path], sha=workspace.store.put_blob(content))
    return found, tuple(inseparable)


def changes_undone(workspace: Workspace, patch: Patch) -> tuple[str, ...]:
    """Return the sorted paths of the patch whose changes do not count.

    A test module to which the patch only adds tests is not among them: these tests run as well.
    """
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    files = files_of_tests(workspace.store, patch.base)

    def is_undone(path: str) -> bool:
        if files.is_surrounding(path, base) or PurePosixPath(path).name == "conftest.py":
            return True
        if not files.is_test(path) or path not in base:
            return False
        if not files.has_tests(path) or path not in patched:
            return True
        old, new = (workspace.store.get_blob(tree[path].sha) for tree in (base, patched))
        return not (only_adds(old, new) if path.endswith(".py") else only_adds_lines(old, new))

    return tuple(sorted(filter(is_undone, patch.paths)))


def with_changed_tests(workspace: Workspace, patch: Patch, files: TestFiles) -> dict[str, TreeEntry]:
    """Return the code files whose own tests the patch changes, with their old code and their new tests."""
    base = workspace.entries(patch.base)
    found, _ = _combined(workspace, patch, files, code=patch.base, tests=patch.tree)
    return {path: entry for path, entry in found.items() if entry.sha != base[path].sha}


def trees_with_new_tests(workspace: Workspace, patch: Patch) -> tuple[str, str] | None:
    """Write the old and the new code, both with all test files as the patch leaves them.

    Returns:
        The two tree ids; None if the patch changed no existing test file.
    """
    base = workspace.entries(patch.base)
    files = files_of_tests(workspace.store, patch.base)
    patched = without_surroundings(workspace, patch, files)
    inline = with_changed_tests(workspace, patch, files)
    if not inline and not any(
        path in base and path in patched and files.is_test(path) for path in patch.paths
    ):
        return None
    code = {path: entry for path, entry in base.items() if not files.is_test(path)} | inline
    tests = [entry for path, entry in patched.items() if files.is_test(path)]
    write = workspace.store.write_tree
    return write([*code.values(), *tests]), write(patched.values())


def without_surroundings(workspace: Workspace, patch: Patch, files: TestFiles) -> dict[str, TreeEntry]:
    """Return the patched files, with the patch's changes to files that decide how tests run undone."""
    base, patched = workspace.entries(patch.base), workspace.entries(patch.tree)
    for path in patch.paths:
        if not files.is_surrounding(path, base):
            continue
        old, new = (
            workspace.store.get_blob(tree[path].sha) if path in tree else None for tree in (base, patched)
        )
        content = files.restored(path, base, old, new)
        entry = base.get(path) or patched.pop(path)
        patched.pop(path, None)
        if content is not None:
            sha = entry.sha if content == old else workspace.store.put_blob(content)
            patched[path] = replace(entry, sha=sha)
    return patched
