"""Find the suites of a tree, and name their tests.

Ids are `file::name`. If the repository has another suite than one at its root, each id starts with the suite's name:
`go:tools::tools/cli_test.go::TestCart`. Files in ids are always paths of the repository.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path, PurePosixPath
from weakref import WeakKeyDictionary

from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.store.git import TreeStore
from m3agent.tools.runners.base import Ecosystem, Suite, Tree, words_of
from m3agent.tools.runners.command import CommandRunner, left_out_of
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.dotnet import Dotnet
from m3agent.tools.runners.elixir import Exunit
from m3agent.tools.runners.go import Go
from m3agent.tools.runners.java import Gradle, Maven
from m3agent.tools.runners.javascript.runners import JAVASCRIPT
from m3agent.tools.runners.other_builds import AutomakeRunner, MesonRunner
from m3agent.tools.runners.php import Phpunit
from m3agent.tools.runners.python import PYTEST, Pytest, is_test_module, with_docstrings
from m3agent.tools.runners.ruby import Minitest, Rspec
from m3agent.tools.runners.rust import Cargo
from m3agent.tools.runners.swift import SwiftPackage
from m3agent.tools.runners.tap_files import BatsRunner, ProveRunner
from m3agent.tools.test_report import TestReport

RUNNERS: Mapping[str, Ecosystem] = {
    each.name: each
    for each in (
        Pytest(),
        Go(),
        Cargo(),
        *JAVASCRIPT.values(),
        CtestRunner(),
        MesonRunner(),
        AutomakeRunner(),
        BatsRunner(),
        ProveRunner(),
        Minitest(),
        Rspec(),
        Phpunit(),
        Maven(),
        Gradle(),
        Exunit(),
        Dotnet(),
        SwiftPackage(),
        CommandRunner(),
    )
}
"""The runners by name, in the order in which suites of the same folder are listed."""
DEFAULT = (Suite(PYTEST, evidence="no other tests were found"),)
"""The suite of a repository in which no tests are found."""


CODE = words_of(
    ".c .cc .cjs .cpp .cs .cts .cxx .ex .exs .fs .go .groovy .java .js .jsx "
    ".kt .mjs .mts .php .phpt .pl .py .rb .rs .sh .swift .t .ts .tsx .vb .bats"
)
"""Suffixes of files that can hold tests."""


def tree_files(store: TreeStore, tree: str) -> Tree:
    """Return the plain files of a git tree, without those of submodules: their suites are other repositories' suites."""
    submodules = tuple(f"{place}/" for place in store.noted_submodules())
    listed = (entry for entry in store.list_tree(tree) if not entry.path.startswith(submodules))
    entries = {entry.path: entry for entry in listed if stat.S_ISREG(entry.mode)}
    return Tree(
        entries.keys(),
        lambda path: store.get_blob(entries[path].sha),
        lambda paths: store.each_blob([entries[path].sha for path in paths]),
    )


@lru_cache(maxsize=64)
def suites_of(store: TreeStore, tree: str) -> tuple[Suite, ...]:
    """Return the suites of a git tree that run; pytest's if the tree has no suite."""
    return running(tree_files(store, tree)) or DEFAULT


@cache
def version() -> str:
    """Return a text that changes whenever a runner or a reporter changes."""
    here = Path(__file__).parent
    files = (path for folder in (here, here.parent / "in_sandbox") for path in folder.rglob("*"))
    return "".join(path.read_text("utf-8") for path in sorted(files) if path.suffix not in ("", ".pyc"))


def find_suites(tree: Tree) -> tuple[Suite, ...]:
    """Return all suites of a tree, those nearest to the root first."""
    suites = [suite for each in RUNNERS.values() for suite in each.detect(tree)]
    return tuple(sorted(suites, key=lambda suite: (suite.root.count("/") + bool(suite.root), suite.root)))


def without_left_out(tree: Tree) -> tuple[Suite, ...]:
    """Return the suites of a tree without those that its configuration leaves out."""
    names = left_out_of(tree)
    return tuple(suite for suite in find_suites(tree) if not names & {suite.runner, suite.name})


def running(tree: Tree) -> tuple[Suite, ...]:
    """Return the suites of a tree that run: the command that its configuration names, else those that are not left out."""
    return running_among(without_left_out(tree))


def running_among(suites: tuple[Suite, ...]) -> tuple[Suite, ...]:
    """Return the suites that run, of those that are not left out."""
    return tuple(suite for suite in suites if suite.runner == CommandRunner.name) or suites


def needs_of(tree: Tree, suites: Iterable[Suite]) -> tuple[SuiteNeeds, ...]:
    """Return suites of a tree with what their environments need."""
    needed = []
    for suite in suites:
        runner = RUNNERS[suite.runner]
        needs = runner.prepare(suite, tree)
        needed.append(SuiteNeeds(suite.name, runner.language, suite.evidence, suite.root, needs))
    return tuple(needed)


def described(suites: Collection[Suite]) -> str:
    """Return the suites for people and models: `go in tools (found by tools/go.mod), pytest (found by tests/test_cart.py)`."""
    return ", ".join(
        f"{suite.runner}{f' in {suite.root}' if suite.root else ''} (found by {suite.evidence})"
        for suite in suites
    )


def prefix_of(suite: Suite, suites: Collection[Suite]) -> str:
    """Return the text before the ids of a suite's tests; empty for a single suite at the root."""
    return "" if len(suites) == 1 and not suite.root else f"{suite.name}::"


def suite_of(ident: str) -> str:
    """Return the name of the suite that an id starts with; empty if it starts with a file."""
    first = ident.partition("::")[0]
    return first if ":" in first and first.partition(":")[0] in RUNNERS else ""


def without_suite(ident: str) -> str:
    """Return an id without the name of its suite."""
    name = suite_of(ident)
    return ident[len(name) + 2 :] or "." if name else ident


def file_of(ident: str) -> str:
    """Return the path of the file that a test id names."""
    return without_suite(ident).partition("::")[0]


def function_of(ident: str) -> str:
    """Return the id of a test without its parameters."""
    return ident.partition("[")[0]


def is_named(ident: str, names: AbstractSet[str]) -> bool:
    """Return whether some names have a test's id, with or without its parameters."""
    return not names.isdisjoint({ident, function_of(ident)})


def with_prefix(report: TestReport, prefix: str) -> TestReport:
    """Return a report whose ids start with a text."""
    if not prefix:
        return report

    def full(ident: str) -> str:  # the id of everything in the suite is `.`
        return prefix + ident if ident != "." else prefix.removesuffix("::")

    def table(given: Mapping[str, str]) -> dict[str, str]:
        return {full(ident): text for ident, text in given.items()}

    executed = report.executed
    if executed is not None:
        elsewhere = tuple(map(full, executed.elsewhere))
        executed = replace(executed, executed=table(executed.executed), elsewhere=elsewhere)
    return replace(
        report.with_lists(lambda ids: map(full, ids)),
        errors=table(report.errors),
        registrations=table(report.registrations),
        executed=executed,
    )


def of_suites(report: TestReport, names: Collection[str]) -> TestReport:
    """Return the part of a report that is about some of a repository's several suites, given by their names."""

    def wanted(ident: str) -> bool:
        return suite_of(ident) in names

    def table(given: Mapping[str, str]) -> dict[str, str]:
        return {ident: text for ident, text in given.items() if wanted(ident)}

    return replace(
        report.only(wanted),
        errors=table(report.errors),
        registrations=table(report.registrations),
        not_run=table(report.not_run),
    )


COLLECTED = (".py", ".rst", ".txt", ".md", ".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts")
"""Ends of the names of files from which tests are collected. Files of other languages have tests beside their code."""


@dataclass
class Collected:
    """What runs of the tests have shown about the files of a repository, in all its trees."""

    tests: set[str] = field(default_factory=set)
    """Paths of files from which tests were collected, and which no runner takes for test files."""
    examples: set[str] = field(default_factory=set)
    """Paths of Python files with code and with examples in docstrings, which ran as tests."""
    files: dict[str, TestFiles] = field(default_factory=dict)


class TestFiles:
    """Which files of a repository belong to its tests, and which decide how they run.

    Args:
        suites: The suites of the tree without the patch.
        known: What runs have shown about files of the repository.
        tree: The files, for what their contents say about others.
    """

    __test__ = False  # not a test class, despite its name

    def __init__(
        self, suites: Iterable[Suite], known: Collected | None = None, tree: Tree | None = None
    ) -> None:
        self._ecosystems = [RUNNERS[name] for name in dict.fromkeys(suite.runner for suite in suites)]
        known = known or Collected()
        self._collected, self._documented = known.tests, known.examples
        self._tree = tree

    def learn(self, idents: Collection[str]) -> set[str]:
        """Take a file with these tests for a test file, whatever its name. A Python file with examples is code and tests.

        Returns:
            The paths of the files about which that was not known.
        """
        known = self._collected | self._documented
        for ident in idents:
            path, _, inner = without_suite(ident).partition("::")
            if not path.endswith(COLLECTED) or self.is_test(path):
                continue
            module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            parts = inner.split(".")
            names = (".".join(parts[:number]) for number in range(1, len(parts) + 1))
            is_example = path.endswith(".py") and any(f".{module}".endswith(f".{name}") for name in names)
            (self._documented if is_example else self._collected).add(path)
        return (self._collected | self._documented) - known

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests."""
        return path in self._collected or self._is_named_test(path) or path in self._helpers

    def _is_named_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests by its path."""
        return any(each.is_test(path) for each in self._ecosystems)

    @cached_property
    def _helpers(self) -> frozenset[str]:
        """Files that only tests use although their paths do not say so."""
        if self._tree is None:
            return frozenset()
        return frozenset(path for each in self._ecosystems for path in each.helpers(self._tree))

    @cached_property
    def _texts(self) -> Sequence[bytes]:
        """The contents of the files that belong to the tests by their paths."""
        if self._tree is None:
            return ()
        paths = [path for path in self._tree.paths if self._is_named_test(path)]
        return [content for _, content in self._tree.contents(paths)]

    def has_tests(self, path: str) -> bool:
        """Return whether a file that belongs to the tests can hold tests, and not only data or helpers of tests."""
        if path in self._collected:
            return True
        if path.endswith(".py"):
            return is_test_module(path)
        return PurePosixPath(path).suffix.lower() in CODE and self._is_named_test(path)

    def is_expected(self, path: str) -> bool:
        """Return whether a file belongs to the tests, or is data that a test names."""
        if self.is_test(path):
            return True
        pure = PurePosixPath(path)
        return pure.suffix.lower() not in CODE and any(pure.name.encode() in text for text in self._texts)

    def is_surrounding(self, path: str, base: Collection[str]) -> bool:
        """Return whether a file decides how tests run. `base` has all paths of the tree without the patch."""
        return any(each.surroundings(path, base) for each in self._ecosystems)

    def restored(
        self, path: str, base: Collection[str], old: bytes | None, new: bytes | None
    ) -> bytes | None:
        """Return the content of a file that decides how tests run, for a run with the patch (`Ecosystem.restored`)."""
        contents = [
            each.restored(path, old, new) for each in self._ecosystems if each.surroundings(path, base)
        ]
        return contents[0] if len(set(contents)) == 1 else old

    def combined(self, path: str, code: bytes, tests: bytes) -> bytes | None:
        """Return a file with the code of one version and the tests of another (`Ecosystem.combined`)."""
        if path in self._documented:
            return with_docstrings(code, tests)
        for each in self._ecosystems:
            if (content := each.combined(path, code, tests)) is not None:
                return content
        return None


_COLLECTED = WeakKeyDictionary[TreeStore, Collected]()
"""What runs have shown, as long as the store is in use: a session, or the grading of an instance."""


def files_of_tests(store: TreeStore, tree: str) -> TestFiles:
    """Return which files belong to the tests of a git tree, those of suites that do not run included.

    A command may start the runners that it replaces. What `TestFiles.learn` is told holds for all trees of the store.
    """
    known = _COLLECTED.setdefault(store, Collected())
    if tree not in known.files:
        files = tree_files(store, tree)
        known.files[tree] = TestFiles(find_suites(files) or DEFAULT, known, files)
    return known.files[tree]
