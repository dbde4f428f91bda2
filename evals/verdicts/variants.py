"""Find fixes in a repository's history, in any language, and make right and wrong patches of them.

What a wrong patch lacks is known by how it is made, or by the commit's own tests: a missing part and a mutant count as wrong only
if these tests are red with them. Texts are changed by lines, so that one table serves every language.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import Random
from typing import Literal

from m3agent.evals.create.create import WINDOW
from m3agent.evals.create.history import SUBMODULE, Commit, CommitHistory
from m3agent.evals.create.mine import Bounds, score
from m3agent.evals.grade.trees import entries_of, put_entry
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore
from m3agent.tools.runners.suites import CODE, TestFiles, files_of_tests


@dataclass(frozen=True)
class Fix:
    """A commit that fixes something, with the trees that its variants start from."""

    commit: str
    title: str
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
    is_submodule = any(SUBMODULE in (change.old_mode, change.new_mode) for change in changes)
    if is_submodule or len(changes) > bounds.files:
        return None
    files = files_of_tests(store, parent)
    old, new = entries_of(store, parent), entries_of(store, commit.sha)
    tested = dict(old)
    tests, code = list[str](), list[str]()
    for path in (change.path for change in changes):
        entry = _tested_entry(history, files, old.get(path), new.get(path))
        put_entry(tested, path, entry)
        tests += [path] if entry != old.get(path) else []
        code += [path] if entry != new.get(path) and PurePosixPath(path).suffix in CODE else []
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


Kind = Literal[
    "whole",
    "whole, tests changed",
    "code",
    "part missing",
    "mutant",
    "tests removed",
    "tests skipped",
    "tests weakened",
    "test file deleted",
    "no change",
]
KINDS: Mapping[Kind, str] = {
    "whole": "the commit as it is, which only adds lines to tests",
    "whole, tests changed": "the commit as it is, which also changes or removes lines of tests",
    "code": "the commit without its tests, which are in the base and red there",
    "part missing": "the code without one of its changed places",
    "mutant": "the code with another operator in a changed line",
    "tests removed": "no code: the red tests are removed",
    "tests skipped": "no code: the red tests are skipped",
    "tests weakened": "no code: the red tests assert nothing",
    "test file deleted": "the code, and another file of tests is deleted",
    "no change": "an empty line in the code",
}
"""The kinds of patches."""
RIGHT: frozenset[Kind] = frozenset({"whole", "whole, tests changed", "code"})
MUTANTS = 3
"""Mutants of a fix that its tests must detect."""
MOST_MUTANTS = 6
"""Mutants that are tried for that."""

OPERATORS = (
    *((r"==", "!="), (r"!=", "=="), (r"<=", "<"), (r">=", ">"), (r" < ", " <= "), (r" > ", " >= ")),
    *((r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" && ", " || "), (r" \|\| ", " && ")),
    *((r"\band\b", "or"), (r"\bor\b", "and"), (r"\bnot ", ""), (r"\bis not\b", "is")),
    *((r"\bTrue\b", "False"), (r"\bFalse\b", "True"), (r"\btrue\b", "false"), (r"\bfalse\b", "true")),
    *((r"\b0\b", "1"), (r"\b1\b", "2"), (r"!(?=\w)", "")),
)
"""Regular expressions of operators, and what replaces them."""
SKIPS = {
    ".py": (
        r"^([ \t]*)((?:async )?def test\w*\(.*\).*:)[ \t]*$",
        r"\1\2\n\1    import pytest; pytest.skip('later')",
    ),
    ".js": (r"\b(it|test|describe)\(", r"\1.skip("),
    ".go": (r"^(func Test\w*\((\w+) \*testing\.T\) \{)$", r"\1\n\t\2.Skip()"),
    ".rs": (r"^([ \t]*)#\[test\]", r"\1#[test]\n\1#[ignore]"),
    ".rb": (r"^([ \t]*)it ", r"\1xit "),
    ".java": (r"^([ \t]*)@Test", r"\1@org.junit.jupiter.api.Disabled @Test"),
}
"""By suffix, how a test is skipped: a regular expression of its beginning, and what replaces it."""
WEAKENED = {
    ".py": (r"^([ \t]*)(?:assert\b|self\.assert\w*\().*(?<![,(\[{\\])$", r"\1pass"),
    ".js": (r"^([ \t]*)(?:assert|expect|t)\b[.(].*;?$", r"\1;"),
    ".go": (r"\bt\.(?:Error|Fatal)(f?)\(", r"t.Log\1("),
    ".rs": (r"^([ \t]*)assert(?:_eq|_ne)?!\(.*\);$", r"\1;"),
    ".rb": (r"^([ \t]*)(?:assert\w*|expect)\b.*$", r"\1nil"),
    ".java": (r"^([ \t]*)assert\w*\(.*\);$", r"\1;"),
}
"""By suffix, how an assertion is taken out."""
_ON_TESTS: Mapping[Kind, Mapping[str, tuple[str, str]]] = {"tests skipped": SKIPS, "tests weakened": WEAKENED}
LIKE = {**dict.fromkeys((".ts", ".tsx", ".jsx", ".mjs", ".cjs", ".mts", ".cts"), ".js"), ".kt": ".java"}
"""Suffixes that are written like others."""


@dataclass(frozen=True)
class Variant:
    """A patch: the difference of two trees."""

    kind: Kind
    base: str
    tree: str


def variants_of(store: TreeStore, fix: Fix, other_tests: Callable[[], str | None]) -> Iterator[Variant]:
    """Yield the variants of a fix whose label is known by how they are made.

    Args:
        other_tests: Returns another file of tests, which the fix does not change and whose tests pass; None if there is none.
    """
    code, tested, base = (_Tree(store, tree) for tree in (fix.whole, fix.tested, fix.base))
    changed_tests = any(_loses_lines(base.text(path), tested.text(path)) for path in fix.tests)
    yield Variant("whole, tests changed" if changed_tests else "whole", fix.base, fix.whole)
    yield Variant("code", fix.tested, fix.whole)
    if (removed := tested.taking(fix.base, fix.tests)).id != fix.tested:
        yield Variant("tests removed", fix.tested, removed.id)
    for kind, rules in _ON_TESTS.items():
        changed = tested.with_texts(fix.tests, functools.partial(_replaced, rules))
        if changed.id != fix.tested:
            yield Variant(kind, fix.tested, changed.id)
    if (path := other_tests()) is not None:
        yield Variant("test file deleted", fix.tested, code.without(path).id)
    blank = tested.with_texts(fix.code[:1], lambda _, text: text + "\n")
    if blank.id != fix.tested:
        yield Variant("no change", fix.tested, blank.id)


def faulty(store: TreeStore, fix: Fix, random: Random) -> Iterator[Variant]:
    """Yield variants that are wrong only if the commit's tests are red with them: parts that are missing, then mutants."""
    code, tested = _Tree(store, fix.whole), _Tree(store, fix.tested)
    places = list[tuple[str, list[str], tuple[int, int], list[str]]]()
    for path in fix.code:
        old, new = _lines(tested.text(path)), _lines(code.text(path))
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for tag, first, last, start, end in matcher.get_opcodes():
            if tag != "equal":
                places.append((path, new, (start, end), old[first:last]))
    if len(places) > 1:
        path, new, (start, end), before = random.choice(places)
        tree = code.with_texts([path], lambda *_: "".join([*new[:start], *before, *new[end:]]))
        yield Variant("part missing", fix.tested, tree.id)
    mutants = [
        (path, "".join([*new[:number], line, *new[number + 1 :]]))
        for path, new, (start, end), _ in places
        for number in range(start, end)
        for line in _mutated(new[number])
    ]
    random.shuffle(mutants)
    for path, text in mutants[:MOST_MUTANTS]:
        yield Variant("mutant", fix.tested, code.with_texts([path], lambda *_, text=text: text).id)


def _mutated(line: str) -> Iterator[str]:
    """Yield a line with another operator, for each operator in it. A comment has none."""
    if line.lstrip().startswith(("#", "//", "*", "/*")):
        return
    for pattern, replacement in OPERATORS:
        for match in re.finditer(pattern, line):
            yield line[: match.start()] + replacement + line[match.end() :]


def _replaced(rules: Mapping[str, tuple[str, str]], path: str, text: str) -> str:
    """Return a text with each match of its language's rule replaced."""
    suffix = PurePosixPath(path).suffix
    rule = rules.get(LIKE.get(suffix, suffix))
    return text if rule is None else re.sub(rule[0], rule[1], text, flags=re.MULTILINE)


def _loses_lines(old: str, new: str) -> bool:
    matcher = difflib.SequenceMatcher(None, _lines(old), _lines(new), autojunk=False)
    return any(tag in ("replace", "delete") for tag, *_ in matcher.get_opcodes())


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


class _Tree:
    """A tree that is changed file by file. Each change returns another one."""

    def __init__(self, store: TreeStore, tree: str) -> None:
        self._store = store
        self.id = tree
        self._entries = entries_of(store, tree)

    def text(self, path: str) -> str:
        """Return the text of a file; an empty one if it is missing. Bytes that are not UTF-8 stay as they are."""
        entry = self._entries.get(path)
        return "" if entry is None else self._store.get_blob(entry.sha).decode(errors="surrogateescape")

    def taking(self, other: str, paths: tuple[str, ...]) -> _Tree:
        """Return the tree with some files as they are in another one."""
        theirs = entries_of(self._store, other)
        entries = {path: entry for path, entry in self._entries.items() if path not in paths}
        return self._with(entries | {path: theirs[path] for path in paths if path in theirs})

    def without(self, path: str) -> _Tree:
        """Return the tree without a file."""
        return self._with({name: entry for name, entry in self._entries.items() if name != path})

    def with_texts(self, paths: tuple[str, ...] | list[str], changed: Callable[[str, str], str]) -> _Tree:
        """Return the tree with other texts. `changed` gets the path and the text of a file."""
        entries = dict(self._entries)
        for path in (path for path in paths if path in entries):
            text = changed(path, self.text(path)).encode(errors="surrogateescape")
            entries[path] = TreeEntry(path, entries[path].mode, self._store.put_blob(text))
        return self._with(entries)

    def _with(self, entries: Mapping[str, TreeEntry]) -> _Tree:
        return _Tree(self._store, self._store.write_tree(entries.values()))
