"""Build the trees for grading on the host.

No code of a patch runs for this, and none of its files is read as configuration.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from m3agent.agent.verify.review import Finding, findings_of
from m3agent.evals.data.instance import Answer
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore, run_git
from m3agent.tools.runners.python import is_surrounding, is_test_file

MOST_PATCH = 64 << 20
"""Largest patch that is graded, in bytes; far more than any fix needs."""
WAYS = ((), ("--3way",), ("--recount", "-C1"), ("--recount", "-C1", "--ignore-whitespace"))
"""Options of `git apply` to try, strictest first; official graders are lenient about context, too."""


class DoesNotApply(ValueError):
    """A patch does not apply to its tree; the message contains git's error."""


@dataclass(frozen=True)
class Trees:
    """Trees for grading.

    Attributes:
        store: The store that contains them.
        tree: The patched code with the instance's tests.
        changed: Paths that the patch changes.
        added: Paths among them that the base does not have.
        undone: Paths among them that were reset.
        review: Lines of the patch that a person must read before its verdict can be believed.
        tests: Paths of tests and of files that decide how tests run.
    """

    store: TreeStore
    tree: str
    changed: tuple[str, ...]
    added: tuple[str, ...]
    undone: tuple[str, ...]
    review: tuple[Finding, ...]
    tests: tuple[str, ...]


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
        ValueError: The instance's own patches do not apply. (DoesNotApply is a subclass.)
    """
    try:
        tested = apply(store, base, answer.test_patch.encode(errors="surrogateescape"))
        solved = apply(store, base, answer.patch.encode(errors="surrogateescape"))
    except DoesNotApply as error:
        raise ValueError(f"the instance itself is faulty: {error}") from None
    patched = apply(store, base, patch)
    changed = [path for _, path in store.changed_paths(base, patched)]
    of_tests = {path for _, path in store.changed_paths(base, tested)}
    of_answer = {path for _, path in store.changed_paths(base, solved)} - of_tests
    before, after, wanted = (_entries(store, tree) for tree in (base, patched, tested))
    undone = [path for path in changed if path in of_tests or is_guarded(path, before, answer, of_answer)]

    def content(entries: dict[str, TreeEntry], path: str) -> bytes | None:
        return store.get_blob(entries[path].sha) if path in entries else None

    kept = {path: (content(before, path), content(after, path)) for path in changed if path not in undone}
    review = findings_of(kept)
    for path in undone:
        _set(after, path, before.get(path))
    for path in of_tests:
        _set(after, path, wanted.get(path))
    tests = [path for path in after if path in of_tests or is_guarded(path, before, answer, of_answer)]
    added = tuple(path for path in changed if path not in before)
    return Trees(
        store,
        store.write_tree(after.values()),
        tuple(changed),
        added,
        tuple(undone),
        review,
        tuple(sorted(tests)),
    )


def is_guarded(path: str, base: Collection[str], answer: Answer, of_answer: Collection[str]) -> bool:
    """Return whether a patch must not change this file: a test, or a file that decides how tests run.

    Args:
        path: The path.
        base: All paths of the base.
        answer: The instance's answer.
        of_answer: Paths that the reference changes. They are needed because a folder called `testing` may
            contain the code itself.
    """
    pure = PurePosixPath(path)
    if path in answer.pristine or (answer.only and path not in answer.only):
        return True
    if pure.name == "conftest.py" or is_surrounding(path, base):
        return True
    if pure.suffix in {".pyc", ".pyo"} or "__pycache__" in pure.parts:
        return True
    return is_test_file(path) and path not in of_answer


def _entries(store: TreeStore, tree: str) -> dict[str, TreeEntry]:
    return {entry.path: entry for entry in store.list_tree(tree)}


def _set(entries: dict[str, TreeEntry], path: str, entry: TreeEntry | None) -> None:
    if entry is None:
        entries.pop(path, None)
    else:
        entries[path] = entry
