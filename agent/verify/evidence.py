"""What is known about a patch before it is judged: results of test runs, and what its files say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from m3agent.agent.checks.run import CheckResult
from m3agent.agent.verify.flaky import containers, members, without
from m3agent.agent.verify.inverted_runs import CopiesSeen
from m3agent.agent.verify.pair import NO_REPEATS, Repeats
from m3agent.agent.verify.review import Finding
from m3agent.agent.verify.scope import Scope
from m3agent.agent.verify.tree_runs import MadeRun
from m3agent.tools.runners.suites import file_of, function_of, is_named, without_suite
from m3agent.tools.test_report import EMPTY, TestReport
from m3agent.util.sanitize import last_line

NOT_RUN = EMPTY, EMPTY
"""The reports of tests that did not run on the two trees."""


@dataclass(frozen=True)
class Changes:
    """How the results of the same tests differ between the old and the new tree.

    A file that cannot be imported has one red id. Once it can be imported, each of its tests has an id.
    """

    before: TestReport
    after: TestReport

    @cached_property
    def inside(self) -> dict[str, set[str]]:
        """The tests with a result after, by the id of each class, file and folder that contains them."""
        return members(self.after.red | {*self.after.passed})

    def _red_inside(self, ident: str) -> set[str]:
        return self.inside.get(ident, set()) & self.after.red

    @cached_property
    def fixed(self) -> set[str]:
        """Tests that are red before and green after."""
        green = {*self.after.passed} | self.inside.keys()
        return {i for i in self.before.red & green - self.after.red if not self._red_inside(i)}

    @cached_property
    def _stayed(self) -> set[str]:
        stayed = self.before.red - self.fixed
        return stayed.union(*map(self._red_inside, stayed))

    @cached_property
    def lost(self) -> set[str]:
        """Tests that are green before and not green after."""
        return {*self.before.passed} - {*self.after.passed}

    @cached_property
    def _only_after(self) -> set[str]:
        return self.after.red - self.before.red - self._stayed - self.lost

    @cached_property
    def turned(self) -> set[str]:
        """Other tests that are red after only. A run before that was cut short may not have reached them."""
        return self._only_after if self.before.complete else set()

    @cached_property
    def broken(self) -> set[str]:
        """Tests that are green before and not after it, or red after and not before."""
        return self.lost | self.turned

    @cached_property
    def still_red(self) -> set[str]:
        """Tests that are red before and not green after."""
        return self._stayed | self._only_after - self.turned

    @cached_property
    def gone(self) -> set[str]:
        """Tests that are red before and have no result after."""
        return {i for i in self.before.red - self.fixed - self.after.red if not self._red_inside(i)}


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about a patch. `m3agent.agent.verify.gathering` adds to it, step by step."""

    before: TestReport
    """The first run on the old tree: of the old tests, and of the test files that the patch adds."""
    after: TestReport
    """The first run of these tests on the new tree."""
    old_tree: str = ""
    """Git tree id of the old code with the patch's new test files."""
    new_tree: str = ""
    """Git tree id of the new code with the old tests and the new test files."""
    paths: Collection[str] = ()
    added: Collection[str] = ()
    """Paths of the test files that the patch adds."""
    surroundings: Sequence[str] = ()
    """Paths of the patch that decide how tests run. Its changes to them do not count, so it must leave no red test."""
    undone: tuple[str, ...] = ()
    """Sorted paths of the patch whose changes do not count; `trees.changes_undone` says which these are."""
    inseparable: Sequence[str] = ()
    """Paths of code files whose own tests cannot be separated from the code."""
    scope: Scope | None = None
    """The tests that ran, if the suite is large."""
    seconds: float = 0.0
    """Time for the tests of a large suite."""
    own: tuple[TestReport, TestReport] = NOT_RUN
    """The runs on both codes of the test files that the patch changes, as the patch leaves them."""
    rerun_flaky: frozenset[str] = frozenset()
    """Tests that reruns found to be flaky. They count neither way."""
    vacuous: frozenset[str] = frozenset()
    """Tests of the patch that cannot fail once they run, as `tests/test_a.py::test_b`."""
    pinned: frozenset[str] = frozenset()
    """Existing tests that check the behaviour which the issue changes, as the model or `--pinned` named them."""
    lessened: tuple[str, ...] = ()
    """Tests of the base tree that say less in the tree as it is delivered, each with how."""
    copies: CopiesSeen | None = None
    """What inverted copies of the fixed tests show; None if none ran."""
    similar: tuple[Finding, ...] = ()
    """Lines of fixed tests that also pass with a similar value or cannot be tried with one, if the patch changes how values
    compare, and lines of the patch that decide what the fixed tests expect."""
    repeats: Repeats = NO_REPEATS
    checks: tuple[CheckResult, ...] = ()
    """What the declared checks show; empty if they did not run."""
    findings: tuple[Finding, ...] = ()
    related: frozenset[str] = frozenset()
    """Tests that the issue is about, and that stay red although the patch's own tests show a fix."""
    beside: frozenset[str] = frozenset()
    """Tests that stay red and that the issue is not about, although it is about a repaired one."""
    other_python: tuple[str, str] | None = None
    """The version of Python that the project needs, and the other one on which its tests ran."""
    suites: tuple[str, ...] = ()
    """Names of the test suites that ran."""
    left_out: tuple[str, ...] = ()
    """Names of the suites that did not run, because the patch does not affect them."""
    runs: tuple[MadeRun, ...] = ()

    @cached_property
    def stating(self) -> frozenset[str]:
        """Tests that the patch breaks and that, as somebody says, state what the issue changes."""
        if not self.pinned:
            return frozenset()
        broken = Changes(self.before, self.after).broken - self.rerun_flaky
        return frozenset(ident for ident in broken if is_named(ident, self.pinned))

    @cached_property
    def changes(self) -> Changes:
        """How the tests changed, without the flaky ones and those that state what the issue changes."""
        left_out = self.rerun_flaky | self.stating
        return Changes(without(self.before, left_out), without(self.after, left_out))

    @cached_property
    def not_importable(self) -> dict[str, str]:
        """Test files that fail to be imported on both trees for the same reason, with the reason.

        Files that the patch adds are left out: the patch is responsible for them.
        """
        files = {}
        for ident in self.before.red & self.after.red:
            lines = (last_line(report.errors.get(ident, "")) for report in (self.before, self.after))
            reasons = {line.removeprefix("E ").strip() for line in lines}
            is_file = "::" not in without_suite(ident) and file_of(ident) not in self.added
            if is_file and len(reasons) == 1 and reasons != {""}:
                files[ident] = reasons.pop()
        return files

    @cached_property
    def written(self) -> set[str]:
        """Tests that the patch adds to existing files."""
        return self.own[1].ids - {*self.own[1].skipped} - self.before.ids

    @cached_property
    def new_tests(self) -> set[str]:
        """Tests that the patch adds."""
        return self.written | {i for i in self.after.ids - {*self.after.skipped} if file_of(i) in self.added}

    @cached_property
    def shown(self) -> set[str]:
        """Tests that the patch adds to or changes in existing files and that show a fix, if no other test does.

        A changed test must be green on both trees without its change: a test that was red could have been weakened. One that states
        what the issue changes is red on the new tree; it never makes a patch verified. An added one is red on the old code also if its
        file cannot be imported or compiled there, as in a file that the patch adds.
        """
        if not self.own[1].complete or self.turned_green:
            return set()
        red, green = self.own
        changed = {*self.before.passed} & {*self.after.passed} | self.stating
        inside = {ident for ident in self.written if red.red & containers(ident)}
        shown = ((self.written | changed) & red.red | inside) & {*green.passed} - self.rerun_flaky
        return {ident for ident in shown if not self.is_vacuous(ident)}

    @cached_property
    def turned_green(self) -> set[str]:
        """Tests that are red before and green after, without tests that the patch adds and that cannot fail."""
        inside = self.changes.inside
        return {
            ident
            for ident in self.changes.fixed
            if file_of(ident) not in self.added
            or not all(map(self.is_vacuous, inside.get(ident, set()) & {*self.after.passed} or {ident}))
        }

    def is_vacuous(self, ident: str) -> bool:
        """Return whether a test is one of the patch that cannot fail."""
        return function_of(without_suite(ident)) in self.vacuous

    @cached_property
    def fixed(self) -> set[str]:
        """Tests that show a fix. The repository's own tests are better evidence than `shown`."""
        return self.turned_green or self.shown

    @cached_property
    def own_only(self) -> bool:
        """Whether only tests that the patch adds or changes show a fix."""
        return all(file_of(ident) in self.added for ident in self.turned_green) and bool(self.fixed)

    @cached_property
    def own_red(self) -> set[str]:
        """Red tests that the patch adds to or changes in existing files."""
        red = self.own[1].red if self.own[1].complete else set[str]()
        return red - self.rerun_flaky - self.not_importable.keys() - self.before.red

    @cached_property
    def added_red(self) -> set[str]:
        """Red tests that the patch adds or changes."""
        return self.own_red | {i for i in self.after.red - self.rerun_flaky if file_of(i) in self.added}

    @cached_property
    def broken(self) -> set[str]:
        """Tests that the patch breaks, also those that it breaks only sometimes."""
        return self.changes.broken | self.repeats.broken

    @property
    def still_red(self) -> set[str]:
        """Tests that are red before and not green after."""
        return self.changes.still_red

    @property
    def review(self) -> tuple[Finding, ...]:
        """All lines that a person must read."""
        return (*self.findings, *self.similar)

    @cached_property
    def unstable(self) -> set[str]:
        """Fixed tests that are red in some of the further runs."""
        return self.fixed & self.repeats.unstable

    @cached_property
    def always_red(self) -> set[str]:
        """Fixed tests, and tests in a fixed file, that are red in each of the further runs."""
        again = self.repeats.always_red
        return {ident for ident in again if not self.fixed.isdisjoint({ident, *containers(ident)})}

    @cached_property
    def flaky(self) -> frozenset[str]:
        """All flaky tests."""
        return self.rerun_flaky - self.repeats.broken | self.repeats.unstable - self.fixed

    @cached_property
    def tampering(self) -> tuple[str, ...]:
        """Signs that the code under test tampered with the test runs."""
        runs = (self.before, self.after), self.own
        return tuple(sign for old, new in runs for sign in new.signs.beyond(old.signs, self.paths))

    @cached_property
    def worthless(self) -> tuple[str, ...]:
        """Reasons why the fixed tests show nothing, as phrases."""
        return self.copies.reasons(self.findings) if self.copies else ()

    @cached_property
    def errors(self) -> dict[str, str]:
        """Error text of each red test on the new code."""
        own = self.own[1].errors if self.own[1].complete else {}
        repeated = self.repeats.errors if self.repeats.broken else {}
        return {**self.after.errors, **own, **repeated}

    @cached_property
    def unfinished(self) -> str:
        """Why neither run came to its end, if both have the same cause."""
        if self.before.complete or self.after.complete:
            return ""
        same = self.before.cause == self.after.cause or (self.before.timed_out and self.after.timed_out)
        return self.after.cause if same else ""
