"""Find small repairs in a repository's history: commits with one source file, few lines of code, and a test."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.sandbox.store.git import TreeStore, run_git
from m3agent.tools.runners.python import is_test_file

MOST_LINES = 3
"""The most lines of code that a repair may add, and may remove."""
REPAIRS = re.compile(r"\b(?:bug|crash|fail|fix|regress|incorrect|wrong|broken)", re.IGNORECASE)
"""Words in the message of a repair. Without them, a small change with a test may also be a feature."""
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


@dataclass(frozen=True)
class Repair:
    """A commit that makes a small change to one source file, and changes tests.

    tests: the test files that it adds or changes; added, removed: lines of code; message: the whole commit message.
    """

    commit: str
    parent: str
    path: str
    tests: tuple[str, ...]
    added: int
    removed: int
    message: str


def open_history(repo: Path, git_dir: Path) -> tuple[TreeStore, str]:
    """Create a store at `git_dir` that reads the objects of `repo` (bare or not); return it and the commit of HEAD.

    Raises:
        GitFailed: `repo` is not a git repository, or has no commit.
    """
    theirs = repo / ".git" if (repo / ".git").exists() else repo
    named = {"GIT_DIR": str(theirs.absolute())}
    head = run_git("rev-parse", "--verify", "HEAD^{commit}", env=named).stdout.decode().strip()
    objects = run_git("rev-parse", "--git-path", "objects", env=named).stdout.decode().strip()
    return TreeStore(git_dir, (repo / objects).resolve()), head


def mine(store: TreeStore, head: str) -> Iterator[Repair]:
    """Yield every small repair in the history of `head`, newest first, without merges."""
    log = store.git(
        "log", "--no-merges", "--no-renames", "--name-status", "--no-ext-diff", "--format=%x01%H %P", head
    )
    for block in log.decode(errors="surrogateescape").split("\x01")[1:]:
        heading, *lines = block.strip("\n").split("\n")
        changes = [line.split("\t", 1) for line in lines if line]
        if (repair := _repair(store, heading.split(), changes)) is not None:
            yield repair


def _repair(store: TreeStore, commits: Sequence[str], changes: Sequence[Sequence[str]]) -> Repair | None:
    """Return the small repair that a commit is; None if it is none.

    Args:
        commits: The commit and its parents.
        changes: Status and path of each changed file.
    """
    python = [(status, path) for status, path in changes if path.endswith(".py")]
    sources = [(status, path) for status, path in python if not is_test_file(path)]
    tests = [path for status, path in python if is_test_file(path) and status in "AM"]
    if len(commits) != 2 or len(sources) != 1 or sources[0][0] != "M" or not tests:
        return None
    (commit, parent), path = commits, sources[0][1]
    message = store.git("log", "-1", "--format=%B", commit).decode(errors="replace").strip()
    size = _size(store, parent, commit, path) if REPAIRS.search(message) else None
    if size is None or max(size) > MOST_LINES:
        return None
    return Repair(commit, parent, path, tuple(sorted(tests)), *size, message)


def _size(store: TreeStore, parent: str, commit: str, path: str) -> tuple[int, int] | None:
    """Return the lines of code added and removed, or None if the syntax is unchanged or invalid in this Python."""
    old = _code(store.git("cat-file", "blob", f"{parent}:{path}"))
    new = _code(store.git("cat-file", "blob", f"{commit}:{path}"))
    if old is None or new is None or old[0] == new[0]:
        return None
    diff = store.git("diff-tree", "-p", "-U0", "--no-renames", "--no-ext-diff", parent, commit, "--", path)
    added = removed = 0
    for match in HUNK.finditer(diff.decode(errors="replace")):
        start, count, new_start, new_count = (1 if group is None else int(group) for group in match.groups())
        removed += len(old[1] & set(range(start, start + count)))
        added += len(new[1] & set(range(new_start, new_start + new_count)))
    return added, removed


def _code(content: bytes) -> tuple[str, set[int]] | None:
    """Return the syntax without docstrings and the numbers of lines with code, or None if it does not parse."""
    text = content.decode(errors="replace").replace("\r\n", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old code has invalid escapes and the like
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    code = {
        number
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.strip().startswith("#")
    }
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body.pop(0)
            code -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return ast.dump(tree), code
