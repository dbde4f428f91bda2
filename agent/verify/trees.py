"""Make the trees to compare: the old and the new code, both with the tests of the old tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from m3agent.agent.verify.changed_tests import only_adds, only_adds_lines
from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.sandbox.store.git import TreeEntry
from m3agent.tools.runners.python import TEST_FOLDERS, is_test_module


@dataclass(frozen=True)
class Trees:
    """The trees to compare, by git tree id. All have the existing test files unchanged."""

    old: str
    """The old code with the patch's new test files."""
    new: str
    """The new code with the patch's new test files."""
    without: str
    """The new code without the new test files. Those that code may import are there."""
    added: tuple[str, ...]
    """Paths of the new test files."""
    imported: tuple[str, ...]
    """Paths of those of them that `without` has."""
    new_files: tuple[str, ...]
    """Paths of all files that the patch adds."""
    inseparable: tuple[str, ...] = ()
    """Paths of code files whose tests cannot be separated from the code. They are as the patch leaves them."""


def is_imported_by_code(path: str, tree: Collection[str]) -> bool:
    """Return whether a new test file may be a part of Python code, such as `package/testing/helper.py`."""
    pure = PurePosixPath(path)
    first = next(n for n, part in enumerate(pure.parts) if part in TEST_FOLDERS or n == len(pure.parts) - 1)
    package = "/".join((*pure.parts[:first], "__init__.py"))
    return 0 < first < len(pure.parts) - 1 and package in tree and not is_test_module(path)


def trees_to_compare(files: PatchedFiles) -> Trees:
    """Write the trees to compare."""
    base, patched, paths = files.base, without_surroundings(files), files.patch.paths
    tests = [path for path in paths if files.tests.is_test(path)]
    added = [path for path in tests if path in patched and path not in base and not _is_conftest(path)]
    inline, inseparable = _combined(files, code=files.patched, tests=base)
    old = {**base, **{path: patched[path] for path in added}}
    put_back = {path: base[path] for path in tests if path in base}
    new = _without(patched, {*tests} - {*added}) | put_back | inline
    imported = [path for path in added if is_imported_by_code(path, patched)]
    without = _without(new, {*added} - {*imported})
    write = files.workspace.store.write_tree
    return Trees(
        write(old.values()),
        write(new.values()),
        write(without.values()),
        tuple(added),
        tuple(imported),
        tuple(path for path in paths if path not in base),
        inseparable,
    )


def _without(tree: Mapping[str, TreeEntry], paths: Collection[str]) -> dict[str, TreeEntry]:
    return {path: entry for path, entry in tree.items() if path not in paths}


def _is_conftest(path: str) -> bool:
    return PurePosixPath(path).name == "conftest.py"


def _combined(
    files: PatchedFiles, *, code: Mapping[str, TreeEntry], tests: Mapping[str, TreeEntry]
) -> tuple[dict[str, TreeEntry], tuple[str, ...]]:
    """Return the changed files that have tests beside their code, with the code of one tree and the tests of another.

    Returns the files by path, and the paths of those whose tests cannot be separated from the code.
    """
    contents, inseparable = dict[str, bytes](), list[str]()
    for path in files.patch.paths:
        if path not in code or path not in tests or files.tests.is_test(path):
            continue
        try:
            parts = (files.read(tree[path]) or b"" for tree in (code, tests))
            content = files.tests.combined(path, *parts)
        except ValueError:
            inseparable.append(path)
            continue
        if content is not None:
            contents[path] = content
    shas = files.workspace.store.put_blobs([*contents.values()])
    found = {path: replace(code[path], sha=sha) for path, sha in zip(contents, shas, strict=True)}
    return found, tuple(inseparable)


def changes_undone(files: PatchedFiles) -> tuple[str, ...]:
    """Return the sorted paths of the patch whose changes do not count.

    A test module to which the patch only adds tests is not among them: these tests run as well.
    """

    def is_undone(path: str) -> bool:
        if files.tests.is_surrounding(path, files.base) or _is_conftest(path):
            return True
        if not files.tests.is_test(path) or path not in files.base:
            return False
        old, new = files.old(path), files.new(path)
        if not files.tests.has_tests(path) or old is None or new is None:
            return True
        return not (only_adds(old, new) if path.endswith(".py") else only_adds_lines(old, new))

    return tuple(sorted(filter(is_undone, files.patch.paths)))


def with_changed_tests(files: PatchedFiles) -> dict[str, TreeEntry]:
    """Return the code files whose own tests the patch changes, with their old code and their new tests."""
    found, _ = _combined(files, code=files.base, tests=files.patched)
    return {path: entry for path, entry in found.items() if entry.sha != files.base[path].sha}


def trees_with_new_tests(files: PatchedFiles) -> tuple[str, str] | None:
    """Write the old and the new code, both with all test files as the patch leaves them.

    Returns the two tree ids; None if the patch changed no existing test file.
    """
    base, is_test = files.base, files.tests.is_test
    patched, inline = without_surroundings(files), with_changed_tests(files)
    if not inline and not any(
        path in base and path in patched and is_test(path) for path in files.patch.paths
    ):
        return None
    code = {path: entry for path, entry in base.items() if not is_test(path)} | inline
    tests = [entry for path, entry in patched.items() if is_test(path)]
    write = files.workspace.store.write_tree
    return write([*code.values(), *tests]), write(patched.values())


def without_surroundings(files: PatchedFiles) -> dict[str, TreeEntry]:
    """Return the patched files, with the patch's changes to files that decide how tests run undone."""
    base, patched = files.base, {**files.patched}
    for path in files.patch.paths:
        if not files.tests.is_surrounding(path, base):
            continue
        old = files.old(path)
        content = files.tests.restored(path, base, old, files.new(path))
        entry = base.get(path) or patched[path]
        patched.pop(path, None)
        if content is not None:
            sha = entry.sha if content == old else files.workspace.store.put_blob(content)
            patched[path] = replace(entry, sha=sha)
    return patched
