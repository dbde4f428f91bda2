"""Check that fixed tests can fail: run copies of them in which an assertion is inverted (`inverted_tests`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from random import Random, SystemRandom

from m3agent.agent.verify.comparisons import may_change_comparisons
from m3agent.agent.verify.inverted_tests import Copy, with_inverted_copies
from m3agent.agent.verify.review import MOST_TEXT, Finding
from m3agent.sandbox.store.git import TreeStore
from m3agent.tools.runners.suites import file_of, without_suite

MOST_TESTS = 20
"""Tests whose copies run. If more are fixed, chance decides."""
TIMES = 2
"""A copy must pass this often, so that a flaky test is not taken for one that cannot fail."""
NEGATED = "passes, and passes as well if it is negated"
EQUAL = "passes as well if it expects another value"
NOT_PASSED = "does not pass"
NOT_RUN = "is reported as passed in a run without it"


@dataclass(frozen=True)
class InvertedTree:
    """A tree whose test files have inverted copies.

    Attributes:
        tree: Git tree id.
        copies: The copies to run, by test id.
    """

    tree: str
    copies: Mapping[str, Copy]


def inverted_tree(
    store: TreeStore, tree: str, idents: Collection[str], random: Random | None = None
) -> InvertedTree | None:
    """Write a tree with inverted copies of tests.

    Args:
        store: Holds the tree.
        tree: Git tree id.
        idents: Ids of the tests, such as `tests/test_calc.py::TestSum::test_add[1-2]`.
        random: Chooses tests and values; by default the system's.

    Returns:
        None if none of the tests can be inverted.
    """
    random = random or SystemRandom()
    entries = {entry.path: entry for entry in store.list_tree(tree)}
    by_test: dict[tuple[str, str], list[str]] = {}
    prefix = ""
    for ident in sorted(idents):
        test = without_suite(ident)
        path, _, inner = test.partition("::")
        if path in entries and path.endswith(".py") and inner:
            name, bracket, parameters = inner.partition("[")
            by_test.setdefault((path, name), []).append(bracket + parameters)
            prefix = ident.removesuffix(test)  # only one suite has Python's tests
    chosen = random.sample(sorted(by_test), min(len(by_test), MOST_TESTS))
    copies: dict[str, Copy] = {}
    for path in sorted({path for path, _ in chosen}):
        tests = [name for each, name in chosen if each == path]
        source, made = with_inverted_copies(store.get_blob(entries[path].sha), tests, random)
        if made:
            entries[path] = replace(entries[path], sha=store.put_blob(source))
        parameters_of = {test: random.choice(by_test[path, test]) for test in tests}
        copies |= {f"{prefix}{path}::{name}{parameters_of[copy.test]}": copy for name, copy in made.items()}
    return InvertedTree(store.write_tree(entries.values()), copies) if copies else None


@dataclass(frozen=True)
class CopiesSeen:
    """What the runs of inverted copies show.

    Attributes:
        signs: Reasons why the tests show nothing, as phrases.
        lines: Lines that a person must read, if the patch may change how values compare.
        red: Ids of copies with the assertions of the test itself that did not pass, though the test did.
    """

    signs: tuple[str, ...] = ()
    lines: tuple[Finding, ...] = ()
    red: tuple[str, ...] = ()

    def reasons(self, review: Collection[Finding]) -> tuple[str, ...]:
        """Return the reasons why the tests show nothing about a patch, as phrases.

        An honest test may depend on its name. But if it does, and the patch has code that may find the names and the values of
        tests, the test counts for nothing.

        Args:
            review: Lines of the patch that a person must read.
        """
        if not review:
            return self.signs
        red = (f"{ident}, a copy with the same assertions, {NOT_PASSED}" for ident in self.red)
        return (*self.signs, *(f"{line.path}:{line.line} {line.what}" for line in self.lines), *red)

    def to_read(
        self, changes: Callable[[], Mapping[str, tuple[bytes | None, bytes | None]]]
    ) -> tuple[Finding, ...]:
        """Return the lines that a person must read: none if the patch changes no comparison.

        Args:
            changes: Returns the old and the new content of the files that the patch changes, as for
                `may_change_comparisons`.
        """
        return self.lines if self.lines and may_change_comparisons(changes()) else ()


async def run_copies(
    inverted: InvertedTree,
    run: Callable[[Collection[str]], Awaitable[tuple[Collection[str], Collection[str]]]],
) -> CopiesSeen:
    """Run inverted copies of tests. All of them fail if the tests are what they seem.

    A test that passes with two other values than the one that it expects shows nothing, if one of them is very different. Else
    a person must read the line: honest comparisons may allow a difference, on purpose or by mistake.

    Args:
        inverted: The tree with the copies.
        run: Runs the tests of the tree with these ids. Returns those that passed by the run's report, and all with a result.
    """
    left = {ident: copy for ident, copy in inverted.copies.items() if not copy.kept}
    equal = {ident for ident, copy in inverted.copies.items() if not copy.line}
    for _ in range(TIMES):
        passed, ran = await run(sorted({*left, *equal}))
        green = set(passed)
        if others := green - inverted.copies.keys():
            return CopiesSeen((f"{min(others)} {NOT_RUN}",))
        equal = (equal - green) & {*ran}  # there was no time for others, or the file cannot have copies
        steady = {
            (file_of(ident), copy.test) for ident, copy in left.items() if not copy.line and ident in green
        }
        left = {i: copy for i, copy in left.items() if i in green and (file_of(i), copy.test) in steady}
        if not equal and not any(copy.line for copy in left.values()):
            return CopiesSeen()
    signs, lines = [], []
    compared = {i: copy for i, copy in inverted.copies.items() if copy.line and not copy.negated}
    # of the copies of an assertion, the first has a very different value
    different = {(file_of(i), copy.line): i for i, copy in reversed(compared.items())}
    values = Counter((file_of(i), copy.line) for i, copy in left.items() if i in compared)
    for ident, copy in sorted(left.items()):
        path = file_of(ident)
        if not copy.line:
            continue
        if copy.negated:
            signs.append(f"{path}:{copy.line} {NEGATED}")
        elif values[path, copy.line] > 1 and different[path, copy.line] in left:
            signs.append(f"{path}:{copy.line} {EQUAL}")
        else:
            lines.append(Finding(path, copy.line, copy.text[:MOST_TEXT], EQUAL))
    return CopiesSeen(tuple(signs), tuple(lines), tuple(sorted(equal)))
