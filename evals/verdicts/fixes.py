"""Find fixes in a repository's history, in any language: commits that change code and its tests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from m3agent.evals.create.create import WINDOW
from m3agent.evals.create.history import SUBMODULE, Commit, CommitHistory
from m3agent.evals.create.mine import Bounds, score
from m3agent.sandbox.store.git import GitFailed, TreeEntry
from m3agent.tools.runners.suites import CODE, TestFiles, files_of_tests


@dataclass(frozen=True)
class Fix:
    """A commit that fixes something, with the trees that its variants start from."""

    commit: str
    """Id of the commit."""
    title: str
    """First line of its message."""
    parent: str
    """Id of its parent."""
    base: str
    """Git tree id of the parent."""
    tested: str
    """Git tree id of the parent with the commit's tests."""
    whole: str
    """Git tree id of the commit."""
    code: tuple[str, ...]
    """Changed files with code that are not only tests."""
    tests: tuple[str, ...]
    """Changed files that hold tests."""


def fixes_of(history: CommitHistory, bounds: Bounds) -> Iterator[Fix]:
    """Yield the commits that change code and its tests. Whether these tests show a fix is not known yet.

    The newest come first, and among 200 those whose messages look most like a fix.

    Raises:
        EnvironmentFault: The repository is damaged.
    """
    commits = history.commits()
    while window := [*itertools.islice(commits, WINDOW)]:
        scores = {commit.sha: score((commit.message, *history.messages_merged(commit))) for commit in window}
        for commit in sorted(window, key=lambda commit: -scores[commit.sha]):
            # a shallow or partial clone lacks objects, and the tests in a file of code may be inseparable from it
            with contextlib.suppress(GitFailed, ValueError):
                if commit.parent is not None and (fix := _fix(history, commit, commit.parent, bounds)):
                    yield fix


def _fix(history: CommitHistory, commit: Commit, parent: str, bounds: Bounds) -> Fix | None:
    store = history.store
    changes = history.changes(parent, commit.sha)
    if len(changes) > bounds.files or any(
        SUBMODULE in (change.old_mode, change.new_mode) for change in changes
    ):
        return None
    files = files_of_tests(store, parent)
    old = {entry.path: entry for entry in store.list_tree(parent)}
    new = {entry.path: entry for entry in store.list_tree(commit.sha)}
    tests, code = list[str](), list[str]()
    tested = dict(old)
    for path in (change.path for change in changes):
        entry = _tested_entry(history, files, old.get(path), new.get(path))
        if entry != old.get(path):
            tests.append(path)
        if entry is None:
            tested.pop(path, None)
        else:
            tested[path] = entry
        if entry != new.get(path) and PurePosixPath(path).suffix in CODE:
            code.append(path)
    if not code or not any(path in new and files.has_tests(path) for path in tests):
        return None
    title = commit.message.strip().partition("\n")[0]
    base, with_tests, whole = (store.write_tree(entries.values()) for entries in (old, tested, new))
    return Fix(commit.sha, title, parent, base, with_tests, whole, tuple(code), tuple(tests))


def _tested_entry(
    history: CommitHistory, files: TestFiles, old: TreeEntry | None, new: TreeEntry | None
) -> TreeEntry | None:
    """Return a changed file as it is in the tree with the old code and the new tests; None if it is missing there."""
    path = next(entry.path for entry in (old, new) if entry is not None)
    if files.is_test(path):
        return new
    if old is None or new is None:
        return old
    code, tests = history.store.get_blobs([old.sha, new.sha])
    content = files.combined(path, code, tests)  # such as a module of Rust with its tests
    return old if content is None else TreeEntry(path, old.mode, history.store.put_blob(content))
