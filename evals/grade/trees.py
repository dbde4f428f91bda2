"""Build the trees for grading on the host.

No code of a patch runs for this, and none of its files is read as configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from m3agent.agent.verify.review import Finding, changed_macros, findings_of
from m3agent.evals.data.instance import Answer
from m3agent.evals.grade.row_suites import RowSuites, suites_of_row
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore, run_git
from m3agent.tools.runners.python import is_surrounding, is_test_file
from m3agent.tools.runners.suites import RUNNERS, TestFiles, tree_files

C = "C/C++"
"""Language of the runners whose build files a patch may change."""
Kept = dict[str, tuple[bytes | None, bytes | None]]
"""By path, an old and a new content; None where a file is missing."""
MOST_PATCH = 64 << 20
"""Largest patch that is graded, in bytes; far more than any fix needs."""
WAYS = ((), ("--3way",), ("--recount", "-C1"), ("--recount", "-C1", "--ignore-whitespace"))
"""Options of `git apply` to try, strictest first; official graders are lenient about context, too."""


class DoesNotApply(ValueError):
    """A patch does not apply to its tree; the message contains git's error."""


@dataclass(frozen=True)
class Trees:
    """Trees for grading."""

    store: TreeStore
    tree: str
    """The patched code with the instance's tests."""
    changed: tuple[str, ...]
    """Paths that the patch changes."""
    added: tuple[str, ...]
    """Paths among them that the base does not have."""
    undone: tuple[str, ...]
    """Paths among them that were reset."""
    review: tuple[Finding, ...]
    """Lines of the patch that a person must read before its verdict can be believed."""
    tests: tuple[str, ...]
    """Paths of tests and of files that decide how tests run; for other languages than Python only of tests.
    """
    kept: Mapping[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    """By path, the old and the new content of what the patch changes and what was not reset; None where a
    file is missing.
    """
    suites: RowSuites = field(default_factory=RowSuites)
    """The suites that hold the row's tests, if these are not Python's."""


def open_store(checkout: Path, folder: Path) -> tuple[TreeStore, str]:
    """Create a store in `folder` that reads the checkout's objects; return it with the tree of the commit."""
    git_dir = checkout.absolute() / ".git"
    store = TreeStore(folder, git_dir / "objects")
    return store, run_git("rev-parse", "HEAD^{tree}", env={"GIT_DIR": str(git_dir)}).stdout.decode().strip()


def apply(store: TreeStore, tree: str, patch: bytes) -> str:
    """Return the tree after applying a patch.

    Raises:
        DoesNotApply: The patch does not apply, or is too large.
    """
    if not patch.strip():
        return tree
    if len(patch) > MOST_PATCH:
        raise DoesNotApply(
            f"the patch has {len(patch) >> 20} MiB, more than the limit of {MOST_PATCH >> 20} MiB"
        )
    text = patch if patch.endswith(b"\n") else patch + b"\n"
    first = ""
    for way in WAYS:
        try:
            return store.apply(tree, text, *way)
        except GitFailed as error:
            first = first or str(error).removeprefix("git apply failed: ")
    raise DoesNotApply(f"the patch does not apply: {first}")


def grading_trees(store: TreeStore, base: str, answer: Answer, patch: bytes) -> Trees:
    """Return the tree to run the tests on.

    Raises:
        DoesNotApply: The patch does not apply.
        ValueError: The instance's own patches do not apply, or no runner fits its tests. (DoesNotApply is a subclass.)
    """
    try:
        tested = apply(store, base, answer.test_patch.encode(errors="surrogateescape"))
        solved = apply(store, base, answer.reference)
    except DoesNotApply as error:
        raise ValueError(f"the instance itself is faulty: {error}") from None
    patched = apply(store, base, patch)
    changed, of_tests, of_solved = (
        [path for _, path in store.changed_paths(base, tree)] for tree in (patched, tested, solved)
    )
    of_answer = {*of_solved} - {*of_tests}
    before, after, wanted = (entries_of(store, tree) for tree in (base, patched, tested))
    suites = suites_of_row(answer, tree_files(store, tested))
    guard = _Guard(store, answer, suites, before, entries_of(store, solved), of_answer)
    undone = [path for path in changed if path in of_tests or guard.undoes(path, after.get(path))]
    kept = guard.kept([path for path in changed if path not in undone], after)
    review = findings_of(kept) + guard.findings(kept)
    guard.put_back(undone, after)
    review += guard.separate_tests({*changed, *of_answer} - {*undone, *of_tests}, after)
    for path in of_tests:
        put_entry(after, path, wanted.get(path))
    tests = [path for path in after if path in of_tests or guard.may_not_change_in_a_run(path)]
    added = tuple(sorted({*changed} - before.keys()))
    return Trees(
        store,
        store.write_tree(after.values()),
        tuple(changed),
        added,
        tuple(undone),
        review,
        tuple(sorted(tests)),
        kept,
        suites,
    )


@dataclass(frozen=True)
class _Guard:
    """Which files of a patch count, and with which content.

    For Python, `is_guarded` decides, and a guarded file is the base's. For other languages, the runners decide (`TestFiles`).
    There, a file that decides how tests run counts also as the reference leaves it: a fix may need a new dependency.
    """

    store: TreeStore
    answer: Answer
    suites: RowSuites
    base: dict[str, TreeEntry]
    solved: dict[str, TreeEntry]
    of_answer: Collection[str]
    """Paths that the reference changes."""

    @cached_property
    def files(self) -> TestFiles | None:
        """What the suites say about files; None for Python."""
        return TestFiles(self.suites.every) if self.suites.graded else None

    def has(self, path: str) -> bool:
        """Return whether a file is a test, or decides how tests run."""
        if self.files is None:
            return is_guarded(path, self.base, self.answer, self.of_answer)
        return (
            is_fixed(path, self.answer)
            or self.files.is_surrounding(path, self.base)
            or (self.files.is_test(path) and path not in self.of_answer)
        )

    def may_not_change_in_a_run(self, path: str) -> bool:
        """Return whether a file must be the same after the tests. Go and Cargo themselves write manifests and lock files."""
        return self.has(path) and (self.files is None or not self.files.is_surrounding(path, self.base))

    def undoes(self, path: str, patched: TreeEntry | None) -> bool:
        """Return whether a change of a file does not count, or only a part of it."""
        if self.files is not None and path in self.of_answer and patched == self.solved.get(path):
            return False
        return self.has(path) and (self.files is None or self.restored(path, patched) != patched)

    def restored(self, path: str, patched: TreeEntry | None) -> TreeEntry | None:
        """Return what counts of a file that the patch changes; None if it must be missing."""
        base = self.base.get(path)
        if base is None or self.files is None or is_fixed(path, self.answer):
            return base
        if not self.files.is_surrounding(path, self.base):
            return base
        old, new = self._content(base), self._content(patched)
        content = self.files.restored(path, self.base, old, new)
        if content is None or content == old:
            return base if content == old else None
        return replace(base, sha=self.store.put_blob(content))

    def put_back(self, paths: Sequence[str], patched: dict[str, TreeEntry]) -> None:
        """Leave of changed files only what counts."""
        for path in paths:
            put_entry(patched, path, self.restored(path, patched.get(path)))

    def kept(self, paths: Sequence[str], patched: dict[str, TreeEntry]) -> Kept:
        """Return the old and the new content of changed files, by path."""
        return {
            path: (self._content(self.base.get(path)), self._content(patched.get(path))) for path in paths
        }

    def findings(self, kept: Kept) -> tuple[Finding, ...]:
        """Return the lines of changed C and C++ files that redefine the macros of assertions, unless the reference does."""
        if not any(RUNNERS[suite.runner].language == C for suite in self.suites.graded):
            return ()
        return changed_macros(
            {
                path: ((before or b"") + b"\n" + (self._content(self.solved.get(path)) or b""), after)
                for path, (before, after) in kept.items()
            }
        )

    def separate_tests(self, paths: Collection[str], patched: dict[str, TreeEntry]) -> tuple[Finding, ...]:
        """Give files that hold tests beside their code the tests that the reference leaves there.

        Args:
            patched: The files of the patch, which this changes.

        Returns:
            The files whose tests cannot be separated from their code.
        """
        if self.files is None:
            return ()
        findings = []
        for path in sorted(paths):
            code, tests = patched.get(path), self.solved.get(path)
            if code is None or tests is None or code == tests:
                continue
            try:
                content = self.files.combined(path, self._blob(code), self._blob(tests))
            except ValueError:
                if code != self.base.get(path):
                    findings.append(Finding(path, 1, "", "has tests that cannot be told apart from its code"))
                continue
            if content is not None:
                patched[path] = replace(code, sha=self.store.put_blob(content))
        return tuple(findings)

    def _blob(self, entry: TreeEntry) -> bytes:
        return self.store.get_blob(entry.sha)

    def _content(self, entry: TreeEntry | None) -> bytes | None:
        return None if entry is None else self._blob(entry)


def is_fixed(path: str, answer: Answer) -> bool:
    """Return whether the answer says that no patch may change this file."""
    return path in answer.pristine or bool(answer.only and path not in answer.only)


def is_guarded(path: str, base: Collection[str], answer: Answer, of_answer: Collection[str]) -> bool:
    """Return whether a patch must not change this file: a test, or a file that decides how tests run.

    Args:
        of_answer: Paths that the reference changes. They are needed because a folder called `testing` may
            contain the code itself.
    """
    pure = PurePosixPath(path)
    if is_fixed(path, answer):
        return True
    if pure.name == "conftest.py" or is_surrounding(path, base):
        return True
    if pure.suffix in {".pyc", ".pyo"} or "__pycache__" in pure.parts:
        return True
    return is_test_file(path) and path not in of_answer


def entries_of(store: TreeStore, tree: str) -> dict[str, TreeEntry]:
    """Return the files of a tree, by path."""
    return {entry.path: entry for entry in store.list_tree(tree)}


def put_entry(entries: dict[str, TreeEntry], path: str, entry: TreeEntry | None) -> None:
    """Make a file what it is in another tree; None removes it."""
    if entry is None:
        entries.pop(path, None)
    else:
        entries[path] = entry
