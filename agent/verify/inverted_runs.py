"""Check that fixed tests can fail: run variants of them with other assertions (`inverted_tests`).

Each variant runs in a process of its own, under the test's own name and file, and in an order that chance decides. So code under
test cannot tell it from the test itself, and whatever it remembers from one variant is unknown in the others.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, product
from random import Random, SystemRandom
from typing import Literal, NamedTuple

from m3agent.agent.verify.comparisons import comparison_changes
from m3agent.agent.verify.inverted_tests import (
    NOT_COPIED,
    NOT_PLAIN,
    NOT_REACHED,
    SAME,
    WAYS,
    Inversion,
    TestSource,
    Way,
    helpers,
)
from m3agent.agent.verify.patched_files import Contents
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

Kind = Literal["unchanged", "hidden", "plain", "stopped", "input", "copied", "inverted", "expected"]
"""Whether the assertions are as they were, have hidden or plain values (`plain_tests`), raise an error, or have another value.

With another value one must fail, or all are expected to fail, and the test must pass.
"""
MUST_PASS: Mapping[Kind, str] = {"plain": NOT_PLAIN, "copied": NOT_COPIED}
"""Variants with which tests must pass, each with what a person must know if one does not."""
MUST_FAIL: Mapping[Kind, str] = {"stopped": NOT_REACHED, "input": SAME}
"""Variants with which tests must not pass, each with what a person must know if one does."""
Run = Callable[[Sequence[Variant], Collection[str]], Awaitable[Sequence[Reading]]]
"""Runs tests with each variant of their files."""


@dataclass(frozen=True)
class Copy:
    """A variant of the files of the fixed tests, and what must become of the tests."""

    variant: Variant
    kind: Kind
    inversions: Mapping[str, Inversion] = field(default_factory=dict)
    """The assertions that must fail, by the id of the test."""
    changed: frozenset[str] = frozenset()
    """Ids of the tests that a variant of `MUST_FAIL` or `MUST_PASS` changes."""
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
    """Where each test is, by its id."""


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
    odd: tuple[Finding, ...] = ()
    """Tests that a person must read, because variants of them have another result than they should have."""

    def reasons(self, review: Collection[Finding]) -> tuple[str, ...]:
        """Return the reasons why the tests show nothing about a patch, as phrases.

        An honest test may find out where its values are. But if it does, and the patch has code that may find the names and the
        values of tests, the test counts for nothing.
        """
        if not review:
            return self.signs
        red = (f"{ident} {NOT_PASSED}" for ident in self.red)
        return (*self.signs, *(f"{line.path}:{line.line} {line.what}" for line in self.lines), *red)

    def to_read(self, changes: Callable[[], Contents]) -> tuple[Finding, ...]:
        """Return the lines that a person must read: none if the patch changes no comparison."""
        if not self.lines and not self.without:
            return self.odd
        changed = comparison_changes(changes())
        return (
            *(self.lines if changed else ()),
            *(self.without if "code" in changed else ()),
            *self.odd,
        )


def joined_copies(several: Sequence[CopiesSeen]) -> CopiesSeen:
    """Return what the runs of several groups of tests show."""
    parts = ([getattr(each, part.name) for each in several] for part in fields(CopiesSeen))
    return CopiesSeen(*(tuple(chain.from_iterable(part)) for part in parts))


@dataclass
class _Files:
    """The files of a variant, while it is made. The other fields are those of `Copy`."""

    texts: dict[str, str] = field(default_factory=dict)
    inversions: dict[str, Inversion] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def add(self, path: str, text: bytes | None, changed: Iterable[str] = ()) -> None:
        """Add a file, if anything in it changes, and the tests that change."""
        if text is not None:
            self.texts[path] = text.decode()
        self.changed.update(changed)

    def copy(self, token: str, kind: Kind, way: Way) -> Copy:
        """Return the variant of which these are the files."""
        variant = Variant(self.texts, helpers(token))
        return Copy(variant, kind, self.inversions, frozenset(self.changed), way)


def copies_of(
    store: TreeStore,
    tree: str,
    idents: Collection[str],
    random: Random | None = None,
    *,
    plain: bool = False,
) -> Copies | None:
    """Make the variants of tests.

    Args:
        idents: Ids of the tests, such as `tests/test_calc.py::TestSum::test_add[1-2]`.
        plain: Whether the patch may change how values compare, so that a variant with plain values is needed.

    Returns None if there is no variant.
    """
    random = random or SystemRandom()
    entries = {entry.path: entry for entry in store.list_tree(tree)}
    chosen = _chosen(entries, idents, random)
    token = f"_{secrets.token_hex(6)}"
    made = defaultdict[tuple[Kind, Way], _Files](_Files)
    without, places = list[Finding](), dict[str, Finding]()

    def read(path: str) -> TestSource:
        return TestSource(path, store.get_blob(entries[path].sha), random, token)

    for path, tests in sorted(chosen.items()):
        source = read(path)
        of_helpers = [read(helper) for helper in _helpers(store, tree, entries, source)]
        _add_variants(made, source, of_helpers, tests, plain=plain)
        without += source.not_inverted(tests, {name for each in of_helpers for name in each.functions})
        places |= {ident: source.place_of(test) for test, ident in tests.items()}
    copies = [files.copy(token, *key) for key, files in made.items() if files.texts]
    if not without and all(copy.kind == "hidden" for copy in copies):
        return None
    copies.append(Copy(Variant({}, helpers(token)), "unchanged"))
    return Copies(frozenset(places), token, tuple(copies), tuple(without), places)


def _add_variants(
    made: Mapping[tuple[Kind, Way], _Files],
    source: TestSource,
    of_helpers: Sequence[TestSource],
    tests: Mapping[str, str],
    *,
    plain: bool,
) -> None:
    """Add the variants of a test file, and of the files of tests that it imports."""
    for way, (text, inversions) in zip(WAYS, source.inverted(tests), strict=False):
        made["inverted", way].add(source.path, text)
        made["inverted", way].inversions |= {tests[test]: each for test, each in inversions.items()}
    for way, each in product(WAYS, (source, *of_helpers)):
        made["expected", way].add(each.path, each.expected_to_fail(way))
    made["hidden", "different"].add(source.path, source.hidden(tests))
    variants: dict[Kind, tuple[bytes | None, set[str]]] = {
        "stopped": source.stopped(tests),
        "input": source.with_other_input(tests),
        "copied": source.with_copies(tests),
    }
    for kind, (variant, names) in variants.items():
        made[kind, "different"].add(source.path, variant, {tests[name] for name in names})
    for each in (source, *of_helpers) if plain else ():
        made["plain", "different"].add(each.path, each.plain(), tests.values())


def _chosen(entries: Collection[str], idents: Collection[str], random: Random) -> dict[str, dict[str, str]]:
    """Return by file the tests whose variants run, by name, each with the id of one of its parameters."""
    by_test: dict[tuple[str, str], list[str]] = {}
    for ident in sorted(map(without_suite, idents)):
        path, _, inner = ident.partition("::")
        if path in entries and path.endswith(".py") and inner:
            by_test.setdefault((path, inner.partition("[")[0]), []).append(ident)
    chosen = defaultdict[str, dict[str, str]](dict)
    for path, name in random.sample(sorted(by_test), min(len(by_test), MOST_TESTS)):
        chosen[path][name] = random.choice(by_test[path, name])
    return chosen


def _helpers(
    store: TreeStore, tree: str, entries: Mapping[str, TreeEntry], source: TestSource
) -> Iterator[str]:
    """Yield the files of tests that a test file imports."""
    files = files_of_tests(store, tree)
    folder = posixpath.dirname(source.path)
    for name in sorted(source.imports()):
        levels = len(name) - len(name.lstrip("."))
        if levels:
            starts = [posixpath.normpath(posixpath.join(folder, *[".."] * (levels - 1)))]
        else:
            starts = [folder, ""]
        for start in starts:
            module = posixpath.normpath(posixpath.join(start, name.lstrip(".")))
            for each in (f"{module}.py", f"{module}/__init__.py"):
                if each in entries and each != source.path and files.is_test(each):
                    yield each


async def run_copies(
    copies: Copies, run: Run, *, with_hidden: bool = True, with_unchanged: bool = True
) -> CopiesSeen:
    """Run variants of tests, and once more if the tests are not what they seem.

    A test that passes with two other values than the one that it expects shows nothing, if one of them is very different. Else
    a person must read the line: honest comparisons may allow a difference, on purpose or by mistake.

    Args:
        with_hidden: Whether it matters if tests pass with hidden values: not if no line of the patch needs a review.
        with_unchanged: Whether the unchanged tests run in the first round too, to see whether they pass in a process of their own.
            That matters only if the patch has code that decides a comparison.
    """
    copies = replace(copies, all=tuple(copy for copy in copies.all if with_hidden or copy.kind != "hidden"))
    faults = _Faults(set(), set(), set(), set())
    for number in range(TIMES):
        wanted = [copy for copy in copies.all if number or with_unchanged or copy.kind != "unchanged"]
        order = SystemRandom().sample(wanted, len(wanted))
        readings = await run([copy.variant for copy in order], copies.idents)
        others = {ident for reading in readings for ident in _green(reading)} - copies.idents
        if others:
            return CopiesSeen((f"{min(others)} {NOT_RUN}",))
        now = _faults(copies, list(zip(order, readings, strict=True)))
        faults = faults.both(now) if number else now
        if not any(faults):
            return CopiesSeen(without=copies.without)
    return _seen(copies, faults)


def _green(reading: Reading) -> set[str]:
    return {ident for ident, outcome in reading.outcomes.items() if outcome == "passed"}


class _Faults(NamedTuple):
    """What one round of runs shows."""

    passed: set[Inversion]
    """Assertions that pass though they are other than they were."""
    red: set[str]
    """Ids of tests that do not pass if their values are hidden."""
    alone: set[str]
    """Ids of tests that do not pass in a process of their own."""
    odd: set[tuple[str, str]]
    """Ids of tests with another result than a variant of `MUST_FAIL` or `MUST_PASS` should have, each with what that means."""

    def both(self, other: _Faults) -> _Faults:
        """Return what this round and another one show."""
        passed, red, alone, odd = self
        return _Faults(passed & other.passed, red & other.red, alone & other.alone, odd & other.odd)


def _faults(copies: Copies, readings: Sequence[tuple[Copy, Reading]]) -> _Faults:
    unchanged = next((reading for copy, reading in readings if copy.kind == "unchanged"), None)
    green = copies.idents if unchanged is None else _green(unchanged)
    # a test that ends its process began, and has no result
    began = set[str]() if unchanged is None else {*unchanged.outcomes, unchanged.running or ""}
    passed, red, odd = set[Inversion](), set[str](), set[tuple[str, str]]()
    mark = re.compile(rf"<{copies.token} (\d+) (.+?)>")
    for copy, reading in readings:
        again = green & _green(reading)
        lost = (green & reading.outcomes.keys()) - again
        passed |= {made for ident, made in copy.inversions.items() if ident in again}
        wrong, table = (lost, MUST_PASS) if copy.kind in MUST_PASS else (again, MUST_FAIL)
        odd |= {(ident, table[copy.kind]) for ident in wrong & copy.changed}
        if copy.kind == "hidden":
            red |= lost
        if copy.kind == "expected":
            places = filter(None, (mark.search(reading.errors.get(ident, "")) for ident in green))
            passed |= {Inversion(place[2], int(place[1]), "", copy.way) for place in places}
    alone = {*copies.idents} & began - green
    return _Faults(passed, red, alone, odd)


def _seen(copies: Copies, faults: _Faults) -> CopiesSeen:
    by_line = defaultdict[tuple[str, int], list[Inversion]](list)
    for each in faults.passed:
        by_line[each.path, each.line].append(each)
    signs, lines = [], []
    for (path, line), ways in sorted(by_line.items()):
        if any(way.negated for way in ways):
            signs.append(f"{path}:{line} {NEGATED}")
        elif len(ways) > 1 and any(way.way != "alike" for way in ways):
            signs.append(f"{path}:{line} {EQUAL}")
        else:
            text = max(way.text for way in ways)
            lines.append(Finding(path, line, text[:MOST_TEXT], EQUAL))
    alone = (copies.places[ident] for ident in sorted(faults.alone))
    red = tuple(sorted(faults.red))
    marked = (replace(copies.places[ident], what=what) for ident, what in sorted(faults.odd))
    return CopiesSeen(tuple(signs), tuple(lines), (*copies.without, *alone), red, tuple(marked))
