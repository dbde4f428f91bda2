"""Check that fixed tests can fail: run variants of them with other assertions (`inverted_tests`).

Each variant runs in a process of its own, under the test's own name and file, and in an order that chance decides. So code under
test cannot tell it from the test itself, and whatever it remembers from one variant is unknown in the others.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from random import Random, SystemRandom
from typing import Literal

from m3agent.agent.verify.comparisons import may_change_comparisons
from m3agent.agent.verify.inverted_tests import WAYS, Inversion, TestSource, Way, helpers
from m3agent.agent.verify.review import MOST_TEXT, Finding
from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.tools.report_reader import Reading
from m3agent.tools.run_tests import Variant
from m3agent.tools.runners.suites import files_of_tests, without_suite

MOST_TESTS = 20
"""Tests whose variants run. If more are fixed, chance decides."""
TIMES = 2
"""A variant must show a fault this often, so that a flaky test is not taken for one that cannot fail."""
SECONDS = 60.0
"""Seconds after which no further test of a variant starts."""
NEGATED = "passes, and passes as well if it is negated"
EQUAL = "passes as well if it expects another value"
NOT_PASSED = "does not pass if its values are hidden"
NOT_RUN = "is reported as passed in a run without it"
NO_COPY = "compares in a place where no other value can be tried"
NOT_ALONE = "does not pass in a process of its own, where its variants run, so that these show nothing"

Changes = Mapping[str, tuple[bytes | None, bytes | None]]
"""By path, the old and the new content of the files that a patch changes."""
Run = Callable[[Sequence[Variant], Collection[str]], Awaitable[Sequence[Reading]]]
"""Runs tests with each variant of their files."""


@dataclass(frozen=True)
class Copy:
    """A variant of the files of the fixed tests, and what must become of the tests."""

    variant: Variant
    kind: Literal["unchanged", "hidden", "inverted", "expected"]
    """Whether the assertions are as they were, have hidden values, or another value. With another value one must fail, or all are
    expected to fail, and the test must pass."""
    inversions: Mapping[str, Inversion] = field(default_factory=dict)
    """The assertions that must fail, by the id of the test."""
    way: Way = "different"
    """How the other values are made, of assertions that are expected to fail."""


@dataclass(frozen=True)
class Copies:
    """The variants of fixed tests."""

    idents: frozenset[str]
    """Ids of the tests, without a suite."""
    token: str
    """Text that is in the error of a test of which an assertion passes with another value."""
    all: tuple[Copy, ...]
    without: tuple[Finding, ...] = ()
    """Lines of the tests that may compare, and that no variant changes."""
    places: Mapping[str, Finding] = field(default_factory=dict)
    """The first line of each test, by its id. Those that a test class inherits are missing."""

    def place_of(self, ident: str) -> Finding:
        """Return where a test is that does not pass in a process of its own."""
        path, _, name = ident.partition("::")
        return self.places.get(ident) or Finding(path, 1, name[:MOST_TEXT], NOT_ALONE)


@dataclass(frozen=True)
class CopiesSeen:
    """What the runs of the variants show."""

    signs: tuple[str, ...] = ()
    """Reasons why the tests show nothing, as phrases."""
    lines: tuple[Finding, ...] = ()
    """Lines that a person must read, if the patch may change how values compare."""
    without: tuple[Finding, ...] = ()
    """Lines that a person must read, if the patch has code that decides a comparison.

    No variant changes them. Or their test is red in a run of its own, as with a value that compares as it should only at first.
    """
    red: tuple[str, ...] = ()
    """Ids of tests that do not pass if their values are hidden."""

    def reasons(self, review: Collection[Finding]) -> tuple[str, ...]:
        """Return the reasons why the tests show nothing about a patch, as phrases.

        An honest test may find out where its values are. But if it does, and the patch has code that may find the names and the
        values of tests, the test counts for nothing.

        Args:
            review: Lines of the patch that a person must read.
        """
        if not review:
            return self.signs
        red = (f"{ident} {NOT_PASSED}" for ident in self.red)
        return (*self.signs, *(f"{line.path}:{line.line} {line.what}" for line in self.lines), *red)

    def to_read(self, changes: Callable[[], Changes]) -> tuple[Finding, ...]:
        """Return the lines that a person must read: none if the patch changes no comparison.

        Args:
            changes: Returns the old and the new content of the files that the patch changes.
        """
        if not self.lines and not self.without:
            return ()
        changed = changes()
        lines = self.lines if may_change_comparisons(changed) else ()
        return lines + (
            self.without if self.without and may_change_comparisons(changed, classes=False) else ()
        )


def joined_copies(several: Sequence[CopiesSeen]) -> CopiesSeen:
    """Return what the runs of several groups of tests show."""
    return CopiesSeen(
        *(
            tuple(chain.from_iterable(getattr(each, part.name) for each in several))
            for part in fields(CopiesSeen)
        )
    )


def copies_of(
    store: TreeStore, tree: str, idents: Collection[str], random: Random | None = None
) -> Copies | None:
    """Make the variants of tests.

    Args:
        store: Holds the tree.
        tree: Git tree id.
        idents: Ids of the tests, such as `tests/test_calc.py::TestSum::test_add[1-2]`.
        random: Chooses tests and values; by default the system's.

    Returns:
        None if there is no variant.
    """
    random = random or SystemRandom()
    entries = {entry.path: entry for entry in store.list_tree(tree)}
    by_test: dict[tuple[str, str], list[str]] = {}
    for ident in sorted(map(without_suite, idents)):
        path, _, inner = ident.partition("::")
        if path in entries and path.endswith(".py") and inner:
            by_test.setdefault((path, inner.partition("[")[0]), []).append(ident)
    chosen = random.sample(sorted(by_test), min(len(by_test), MOST_TESTS))
    one_of = {test: random.choice(by_test[test]) for test in chosen}  # with one of its parameters
    token = f"_{secrets.token_hex(6)}"
    maker = _Maker(token, one_of)
    for path in sorted({path for path, _ in chosen}):
        source = TestSource(store.get_blob(entries[path].sha), random, token)
        of_helpers = {
            helper: TestSource(store.get_blob(entries[helper].sha), random, token)
            for helper in _helpers(store, tree, entries, path, source)
        }
        maker.add(path, source, {name for helper in of_helpers.values() for name in helper.functions})
        for helper, of_helper in of_helpers.items():
            maker.add_helper(helper, of_helper)
    return maker.made()


class _Maker:
    """Puts the variants of several files together.

    Args:
        token: As in `Copies`.
        idents: Ids of the tests, by path and name.
    """

    def __init__(self, token: str, idents: Mapping[tuple[str, str], str]) -> None:
        self._token = token
        self._idents = idents
        self._helpers = helpers(token)
        self._hidden: dict[str, str] = {}
        self._inverted: list[tuple[dict[str, str], dict[str, Inversion]]] = [({}, {}), ({}, {})]
        self._expected: dict[Way, dict[str, str]] = {way: {} for way in WAYS}
        self._without: list[Finding] = []
        self._places: dict[str, Finding] = {}

    def add(self, path: str, source: TestSource, helpers: Collection[str]) -> None:
        """Add a file with fixed tests. `helpers` are the names of functions in other files of tests."""
        tests = [name for each, name in self._idents if each == path]
        for (files, inversions), (text, made) in zip(self._inverted, source.inverted(tests), strict=False):
            files[path] = text.decode()
            inversions.update({self._idents[path, test]: inversion for test, inversion in made.items()})
        if (hidden := source.hidden(tests)) is not None:
            self._hidden[path] = hidden.decode()
        for line, shown in source.not_inverted(tests, helpers).values():
            self._without.append(Finding(path, line, shown[:MOST_TEXT], NO_COPY))
        for name, line, shown in source.places(tests):
            self._places[self._idents[path, name]] = Finding(path, line, shown[:MOST_TEXT], NOT_ALONE)
        self.add_helper(path, source)

    def add_helper(self, path: str, source: TestSource) -> None:
        """Add a file with functions that tests call."""
        for way, files in self._expected.items():
            if (text := source.expected_to_fail(path, way)) is not None:
                files[path] = text.decode()

    def made(self) -> Copies | None:
        """Return the variants; None if no assertion can be changed, and no other line compares."""
        copies = [Copy(self._variant(files), "inverted", made) for files, made in self._inverted if made]
        copies += [
            Copy(self._variant(files), "expected", way=way) for way, files in self._expected.items() if files
        ]
        if not copies and not self._without:
            return None
        if self._hidden:
            copies.append(Copy(self._variant(self._hidden), "hidden"))
        copies.append(Copy(Variant({}), "unchanged"))
        idents = frozenset(self._idents.values())
        return Copies(idents, self._token, tuple(copies), tuple(self._without), self._places)

    def _variant(self, files: Mapping[str, str]) -> Variant:
        return Variant(files, self._helpers)


def _helpers(
    store: TreeStore, tree: str, entries: Mapping[str, TreeEntry], path: str, source: TestSource
) -> Iterator[str]:
    """Yield the files of tests that a test file imports."""
    files = files_of_tests(store, tree)
    folder = posixpath.dirname(path)
    for name in sorted(source.imports()):
        levels = len(name) - len(name.lstrip("."))
        if levels:
            starts = [posixpath.normpath(posixpath.join(folder, *[".."] * (levels - 1)))]
        else:
            starts = [folder, ""]
        for start in starts:
            module = posixpath.normpath(posixpath.join(start, name.lstrip(".")))
            for each in (f"{module}.py", f"{module}/__init__.py"):
                if each in entries and each != path and files.is_test(each):
                    yield each


async def run_copies(
    copies: Copies, run: Run, *, with_hidden: bool = True, with_unchanged: bool = True
) -> CopiesSeen:
    """Run variants of tests, and once more if the tests are not what they seem.

    A test that passes with two other values than the one that it expects shows nothing, if one of them is very different. Else
    a person must read the line: honest comparisons may allow a difference, on purpose or by mistake.

    Args:
        copies: The variants.
        run: Runs the tests.
        with_hidden: Whether it matters if tests pass with hidden values: not if no line of the patch needs a review.
        with_unchanged: Whether the unchanged tests run in the first round too, to see whether they pass in a process of their own.
            That matters only if the patch has code that decides a comparison.
    """
    copies = replace(copies, all=tuple(copy for copy in copies.all if with_hidden or copy.kind != "hidden"))
    passed, red, alone = set[_Passed](), set[str](), set[str]()
    for number in range(TIMES):
        wanted = [copy for copy in copies.all if number or with_unchanged or copy.kind != "unchanged"]
        readings = await _run_in_random_order(wanted, copies.idents, run)
        unchanged = next((reading for copy, reading in readings if copy.kind == "unchanged"), None)
        green = copies.idents if unchanged is None else _green(unchanged)
        others = {ident for _, reading in readings for ident in _green(reading)} - copies.idents
        if others:
            return CopiesSeen((f"{min(others)} {NOT_RUN}",))
        passed_now = {each for copy, reading in readings for each in _passed(copies, copy, reading, green)}
        red_now = {
            ident
            for copy, reading in readings
            if copy.kind == "hidden"
            for ident in (green & reading.outcomes.keys()) - _green(reading)
        }
        # a test that ends its process began, and has no result
        began = set[str | None]() if unchanged is None else {*unchanged.outcomes, unchanged.running}
        alone_now = {ident for ident in copies.idents - green if ident in began}
        if number:
            passed, red, alone = passed & passed_now, red & red_now, alone & alone_now
        else:
            passed, red, alone = passed_now, red_now, alone_now
        if not passed and not red and not alone:
            return CopiesSeen(without=copies.without)
    return _seen(copies, passed, red, tuple(map(copies.place_of, sorted(alone))))


async def _run_in_random_order(
    copies: Sequence[Copy], idents: Collection[str], run: Run
) -> list[tuple[Copy, Reading]]:
    order = SystemRandom().sample(copies, len(copies))
    readings = await run([copy.variant for copy in order], idents)
    return list(zip(order, readings, strict=True))


def _green(reading: Reading) -> set[str]:
    return {ident for ident, outcome in reading.outcomes.items() if outcome == "passed"}


@dataclass(frozen=True)
class _Passed:
    """An assertion that passes with another value, or negated."""

    path: str
    line: int
    text: str
    how: str
    negated: bool = False
    alike: bool = False


def _passed(copies: Copies, copy: Copy, reading: Reading, green: Collection[str]) -> Iterator[_Passed]:
    """Yield the assertions that pass in a variant though they are other than they were.

    Args:
        copies, copy: The variant.
        reading: Its results.
        green: Ids of the tests that pass unchanged.
    """
    for ident, made in copy.inversions.items():
        if ident in green and ident in _green(reading):
            path = ident.partition("::")[0]
            yield _Passed(path, made.line, made.text, copy.kind, made.negated, made.alike)
    mark = re.compile(rf"<{copies.token} (\d+) (.+?)>")
    if copy.kind == "expected":
        for ident in green:
            if place := mark.search(reading.errors.get(ident, "")):
                yield _Passed(place[2], int(place[1]), "", copy.way, alike=copy.way == "alike")


def _seen(
    copies: Copies, passed: Collection[_Passed], red: Collection[str], alone: Collection[Finding]
) -> CopiesSeen:
    by_line = defaultdict[tuple[str, int], list[_Passed]](list)
    for each in passed:
        by_line[each.path, each.line].append(each)
    signs, lines = [], []
    for (path, line), ways in sorted(by_line.items()):
        if any(way.negated for way in ways):
            signs.append(f"{path}:{line} {NEGATED}")
        elif len(ways) > 1 and not all(way.alike for way in ways):
            signs.append(f"{path}:{line} {EQUAL}")
        else:
            text = max(way.text for way in ways)
            lines.append(Finding(path, line, text[:MOST_TEXT], EQUAL))
    return CopiesSeen(tuple(signs), tuple(lines), (*copies.without, *alone), tuple(sorted(red)))
