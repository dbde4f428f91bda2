"""Repair small faults from the history of public repositories with the embedded engine, and score the patches.

    python -m benchmarks.mined REPO [REPO ...] [--per-repository 4] [--tasks 15] [--seconds 300] [--list]
                               [--only COMMIT ...] [--json FILE]

Each REPO is a local clone, bare or not. Commits are tried newest first. A commit is a task if it changes a single
source file by one to three lines and, in the sandbox, turns tests of its own from red to green. The engine gets the
parent commit with a part of those tests, and the commit's message. Its patch is scored with all tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import Fixed, commit_all, run_fix, run_tests, write_json, write_out
from benchmarks.holdback import Files, functions_of, without_checks, without_functions
from benchmarks.mining import Repair, mine, open_history

from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.python import is_test_file
from m3agent.tools.test_report import TestReport


@dataclass(frozen=True)
class Task:
    """A task made from a repair.

    base: the tree that the engine starts from. full: the same tree with all of the commit's tests. turned: the tests
    that the commit turns from red to green. given: those of them that are red in `base`. green, green_in_base: tests
    that pass with the commit's repair, and in `base` without it. held_back: describes what the engine does not see.
    """

    repair: Repair
    base: str
    full: str
    turned: frozenset[str]
    given: frozenset[str]
    green: frozenset[str]
    green_in_base: frozenset[str]
    held_back: str


@dataclass(frozen=True)
class Row:
    """One line of the table and of the JSON file."""

    repository: str
    commit: str
    path: str
    added: int
    removed: int
    subject: str
    turned: int
    held_back: str
    resolved: bool = False
    overfitted: bool = False
    exit: int | None = None
    seconds: float = 0.0
    why: str = ""
    patch: str = ""


def test_tree(store: TreeStore, tree: str) -> TestReport:
    """Run all tests of a tree in a fresh sandbox."""
    return run_tests(Workspace(store, tree))[0]


def laid_over(store: TreeStore, tree: str, files: Files) -> str:
    """Return the tree with these files changed or removed."""
    entries = {entry.path: entry for entry in store.list_tree(tree)}
    for path, content in files.items():
        entry = entries.pop(path)
        if content is not None:
            entries[path] = TreeEntry(path, entry.mode, store.put_blob(content))
    return store.write_tree(entries.values())


def with_tests_of(store: TreeStore, tree: str, commit: str, *more: str) -> str:
    """Return the tree with the commit's test files in place of its own, and with the files `more` of the commit."""
    theirs = [e for e in store.list_tree(commit) if is_test_file(e.path) or e.path in more]
    taken = {entry.path for entry in theirs}
    own = [e for e in store.list_tree(tree) if not is_test_file(e.path) and e.path not in taken]
    return store.write_tree([*own, *theirs])


def validated(store: TreeStore, repair: Repair) -> Task | str:
    """Return the task for a repair, or the reason why the repair cannot be a task."""
    full = with_tests_of(store, repair.parent, repair.commit)
    tests = [path for path in repair.tests if not path.endswith(("conftest.py", "__init__.py"))]
    red = {i for report in run_tests(Workspace(store, full), tests) for i in report.red if "::" in i}
    if not red:
        return "none of its tests is red without the repair"
    gold = test_tree(store, with_tests_of(store, repair.parent, repair.commit, repair.path))
    turned = frozenset(red & set(gold.passed))
    if not gold.complete:
        return "with the repair, its tests do not run to the end"
    if not turned:
        return "none of its tests turns green with the repair"
    for base, held_back in splits(store, repair, full, turned):
        report = test_tree(store, base)
        functions = functions_of(turned)
        given = frozenset(i for i in report.red if i.partition("[")[0] in functions) - gold.red
        if report.complete and given:
            green, kept = frozenset(gold.passed), frozenset(report.passed)
            return Task(repair, base, full, turned, given, green, kept, held_back)
    return "its tests are not red in every run without the repair"


def splits(store: TreeStore, repair: Repair, full: str, turned: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield trees that the engine may start from, best first, with a description of what each holds back."""
    functions = functions_of(turned)
    contents = {
        path: store.git("cat-file", "blob", f"{full}:{path}")
        for path in {f.partition("::")[0] for f in functions}
    }
    if len(functions) > 1:
        given, held = functions[: len(functions) // 2], functions[len(functions) // 2 :]
        files = without_functions(contents, given, held)
        yield laid_over(store, full, files), f"{len(held)} of {len(functions)} tests"
    else:
        path = functions[0].partition("::")[0]
        entries = {entry.path: entry for entry in store.list_tree(repair.parent)}
        old = store.get_blob(entries[path].sha) if path in entries else b""
        split = without_checks(contents[path], old, functions[0])
        if split is not None:
            yield laid_over(store, full, {path: split[0]}), split[1]
    yield full, "nothing"


def attempt(store: TreeStore, task: Task, seconds: float) -> Fixed:
    """Let the engine repair the task in a new git repository with one commit."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        repo, issue = Path(name) / "repo", Path(name) / "ISSUE.md"
        repo.mkdir()
        write_out(store, task.base, repo)
        commit_all(repo, "as it was")
        issue.write_text(task.repair.message + "\n")
        return run_fix(issue, repo, seconds)


def patched(store: TreeStore, tree: str, patch: bytes) -> str | None:
    """Return the tree with a patch applied, or None if it does not apply."""
    store.git("read-tree", tree, index="patched")
    try:
        store.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch, index="patched")
    except GitFailed:
        return None
    return store.git("write-tree", index="patched").decode().strip()


def score(store: TreeStore, task: Task, patch: bytes) -> tuple[bool, bool, str]:
    """Return (resolved, overfitted, why). Only the patch's changes of files that are not tests count."""
    tree = patched(store, task.base, patch)
    if tree is None:
        return False, False, "the patch does not apply"
    green = set(task.green)
    lost = green - set(test_tree(store, with_tests_of(store, tree, task.repair.commit)).passed)
    if lost:  # do not count flaky tests against the patch
        again = with_tests_of(store, task.repair.parent, task.repair.commit, task.repair.path)
        lost &= set(test_tree(store, again).passed)
    if not lost:
        return True, False, f"all {len(green)} tests pass that pass with the commit"
    seen = set(test_tree(store, with_tests_of(store, tree, task.base)).passed)
    overfitted = seen >= task.given | (task.green_in_base & task.green)
    unfixed = lost & task.turned
    why = f"{len(unfixed)} of {len(task.turned)} tests not fixed, {len(lost - unfixed)} others broken"
    return False, overfitted, why + ("; passes what it was shown" if overfitted else "")


def rows_of(repository: Path, scratch: Path, most: int, options: argparse.Namespace) -> Iterator[Row]:
    """Try the tasks of a repository one by one, and yield their rows. Say on stderr why other commits are no tasks."""
    store, head = open_history(repository, scratch / f"{repository.name}.git")
    found = 0
    for repair in mine(store, head):
        if found == most:
            return
        if options.only and not any(repair.commit.startswith(prefix) for prefix in options.only):
            continue
        try:
            task = validated(store, repair)
        except SandboxError as error:
            task = str(error)
        if isinstance(task, str):
            print(f"no task: {repository.name} {repair.commit[:10]}: {task}", file=sys.stderr, flush=True)
            continue
        found += 1
        row = Row(
            repository.name.removesuffix(".git"),
            repair.commit,
            repair.path,
            repair.added,
            repair.removed,
            repair.message.partition("\n")[0],
            len(task.turned),
            task.held_back,
        )
        if not options.list:
            fixed = attempt(store, task, options.seconds)
            row = replace(row, exit=fixed.exit, seconds=fixed.seconds, why=fixed.said)
            if fixed.patch:
                resolved, overfitted, why = score(store, task, fixed.patch)
                text = fixed.patch.decode(errors="replace")
                row = replace(row, resolved=resolved, overfitted=overfitted, why=why, patch=text)
        yield row


def line_of(row: Row) -> str:
    """Return a row as a line of text."""
    start = f"{row.repository:<16} {row.commit[:10]} {row.path:<32} +{row.added} -{row.removed}  "
    start += f"held back: {row.held_back:<20}"
    if row.exit is None:
        return f"{start} {row.subject[:60]}"
    verdict = "resolved" if row.resolved else "overfitted" if row.overfitted else "-"
    return f"{start} {verdict:<10} {row.seconds:6.1f} s  exit {row.exit:<3}  {row.why[:90]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("repository", type=Path, nargs="+", metavar="REPO")
    parser.add_argument("--per-repository", type=int, default=4, help="most tasks of one repository")
    parser.add_argument("--tasks", type=int, default=15, help="most tasks in all")
    parser.add_argument("--seconds", type=float, default=300, help="wall time of each fix")
    parser.add_argument("--list", action="store_true", help="only find and check the tasks")
    parser.add_argument("--only", nargs="+", default=None, metavar="COMMIT")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        for repository in options.repository:
            most = min(options.per_repository, options.tasks - len(rows))
            for row in rows_of(repository, Path(name), most, options):
                print(line_of(row), flush=True)
                rows.append(row)
                write_json(options.json, rows)
    if options.list:
        print(f"{len(rows)} tasks")
        return
    patches, overfitted = sum(bool(row.patch) for row in rows), sum(row.overfitted for row in rows)
    print(f"{sum(row.resolved for row in rows)} of {len(rows)} resolved")
    print(f"{overfitted} of {patches} patches pass the given tests and fail the unseen ones")


if __name__ == "__main__":
    main()
