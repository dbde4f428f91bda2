"""Run the tests of a tree in a fresh sandbox, which the session never touched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.git import TreeStore
from m3agent.tools.execution_map import Recording
from m3agent.tools.report_reader import Reading
from m3agent.tools.run_tests import (
    EVERYTHING,
    Bytecode,
    Selection,
    Variant,
    run_in_sandbox,
    run_tests,
    run_variants,
)
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.suites import files_of_tests, suites_of, tree_files
from m3agent.tools.test_report import TestReport

TEST_TIMEOUT = 600.0
"""Timeout of a run of all tests, in seconds, unless set otherwise."""
IMPORT_TIMEOUT = 1200.0
"""Timeout of importing all tests while that is recorded, in seconds."""
GRACE = 300.0
"""Seconds that a run with its own time may take longer: the last test ends, and then the process."""
PER_TEST = 20.0
"""Limit of one test, in seconds."""
PER_RECORDED_TEST = 4 * PER_TEST
"""Limit of one test while it is recorded, which makes it slower, and of one that is compared with its recorded run."""
BASELINE = "baseline"
"""Name of the run of all tests on the base tree."""


@dataclass(frozen=True)
class MadeRun:
    """A test run that was made, for the record."""

    name: str
    patched: bool | None
    """Whether the tree has the code of the patch; None for a tree with copies of tests."""
    passed: tuple[str, ...]
    red: tuple[str, ...]
    """Ids of the tests that failed or could not run."""
    commands: tuple[tuple[str, ...], ...] = ()
    """The commands that ran the tests."""

    @classmethod
    def of(cls, name: str, patched: bool | None, report: TestReport) -> MadeRun:
        """Return the record of a run."""
        return cls(name, patched, report.passed, (*report.failed, *report.errored), report.commands)


@dataclass(frozen=True)
class TreeRuns:
    """Runs tests of trees, each run in its own sandbox."""

    sandboxes: SandboxesAhead
    folder: Path
    """Where the logs of the test runs go."""
    timeout: float = TEST_TIMEOUT
    """Timeout of a run whose selection has no time, in seconds."""
    suites: Sequence[Suite] = ()
    """The suites that run, of the base tree. A patch can neither add nor remove one. Empty: those of each tree."""
    among: Sequence[Suite] = ()
    """All suites of the base tree, which decide how ids start; empty if they are `suites`."""
    kept: dict[Hashable, TestReport] = field(default_factory=dict)
    """Complete results of `run_once`, by tree, suites and selection."""
    base: str = ""
    """The base tree, whose bytecode the runs of all trees use; empty if it is not known."""
    bytecode: Bytecode = field(default_factory=Bytecode)
    checks: Sequence[str] = ()
    """Commands that the patch must not make worse."""
    made: list[MadeRun] = field(default_factory=list)
    """The runs that were made."""
    sides: dict[str, bool] = field(default_factory=dict)
    """Whether a tree that is compared has the code of the patch, by its id."""

    @property
    def store(self) -> TreeStore:
        """Holds the trees."""
        return self.sandboxes.store

    async def run_once(
        self, tree: str, name: str, selection: Selection, *, added: Collection[str] = ()
    ) -> TestReport:
        """Run tests of one tree, unless an earlier run of the same tests has a complete result. Otherwise like `run`."""
        parts = selection.targets, selection.only, selection.ignore, selection.skip
        names = frozenset(suite.name for suite in self.suites)
        key = tree, names, selection.seconds, *(frozenset(part) for part in parts)
        if key not in self.kept:
            report = await self.run(tree, name, selection, added=added)
            if not report.complete:
                return report
            self.kept[key] = report
        return self.kept[key]

    async def run(
        self,
        tree: str,
        name: str,
        selection: Selection = EVERYTHING,
        record: Recording | None = None,
        *,
        added: Collection[str] = (),
    ) -> TestReport:
        """Run tests of one tree.

        Args:
            name: Name of the run, for its log `NAME.log`.
            record: When to record which functions each test executes; None for never.

        Raises SandboxError: The sandbox failed, so nothing is known about the tests.
        """
        async with self.sandboxes.sandbox(tree) as sandbox:
            keeps = tree == self.base
            return await self._run_in(sandbox, name, selection, record, added, keep_bytecode=keeps)

    async def repeat(
        self,
        tree: str,
        name: str,
        selection: Selection,
        times: int,
        seconds: float,
        enough: Callable[[TestReport], bool] = lambda _: False,
    ) -> list[TestReport]:
        """Run the same tests of one tree several times, one run after the other in one sandbox.

        Args:
            seconds: Time for all runs. A run that would probably end later does not start, except for the first one.
            enough: Gets each report, and returns whether no further run is needed.

        Raises SandboxError: The sandbox failed.
        """
        reports = list[TestReport]()
        async with self.sandboxes.sandbox(tree) as sandbox:
            spent = last = 0.0
            while len(reports) < times and spent + last <= seconds:
                reports.append(await self._run_in(sandbox, f"{name}-{len(reports) + 1}", selection))
                last = reports[-1].seconds
                spent += last
                if enough(reports[-1]):
                    break
        return reports

    async def _run_in(
        self,
        sandbox: Sandbox,
        name: str,
        selection: Selection,
        record: Recording | None = None,
        added: Collection[str] = (),
        *,
        keep_bytecode: bool = False,
    ) -> TestReport:
        seconds, tree = selection.seconds, sandbox.workspace.base
        report = await run_tests(
            sandbox,
            self.suites or suites_of(self.store, tree),
            tree_files(self.store, tree),
            selection,
            timeout=self.timeout if seconds is None else seconds + GRACE,
            per_test=PER_TEST if seconds is None or record is not None else PER_RECORDED_TEST,
            log=self.folder / f"{name}.log",
            record=record,
            guarded=added,
            among=self.among,
            bytecode=self.bytecode,
            keep_bytecode=keep_bytecode,
        )
        files = files_of_tests(self.store, self.base or tree)
        changes = await changes_while_running(sandbox, files.is_expected)
        report = replace(report, signs=replace(report.signs, forged=(*report.signs.forged, *changes)))
        self.made.append(MadeRun.of(name, self.sides.get(tree), report))
        return report

    async def run_variants(
        self, tree: str, name: str, variants: Sequence[Variant], idents: Collection[str], seconds: float
    ) -> list[Reading]:
        """Run tests of Python with each variant of their files.

        Args:
            seconds: Time after which no further test starts.

        Raises SandboxError: The sandbox failed.
        """
        async with self.sandboxes.sandbox(tree) as sandbox:
            readings = await run_variants(
                sandbox,
                variants,
                idents,
                per_test=PER_RECORDED_TEST,
                seconds=seconds,
                log=self.folder / f"{name}.log",
                bytecode=self.bytecode,
            )
        commands = {("python3", "-m", "pytest", *reading.arguments) for reading in readings}
        self.made.append(MadeRun(name, None, (), (), tuple(sorted(commands))))
        return readings

    async def run_recorded(self, tree: str, seconds: float, record: Recording) -> TestReport:
        """Run all tests of the base tree, and record what a large suite executes.

        Args:
            record: When the recording begins. If it does, the tests are imported once more: what runs at import
                belongs to no single test.

        Raises SandboxError: The sandbox failed.
        """
        report = await self.run(tree, BASELINE, Selection(seconds=seconds), record)
        if report.executed is None:
            return report
        async with self.sandboxes.sandbox(tree) as sandbox:
            imports = await run_in_sandbox(
                sandbox,
                framework="collect",
                timeout=IMPORT_TIMEOUT,
                log=self.folder / "baseline-imports.log",
                record=Recording(),
            )
        if imports.executed is None:  # it is not known what runs at import: then nothing can be left out
            return replace(report, executed=None)
        return replace(report, executed=replace(report.executed, imports=imports.executed))


async def changes_while_running(sandbox: Sandbox, is_test: Callable[[str], bool]) -> list[str]:
    """Return the files of tests that changed during a run, restored or not, as signs of tampering.

    Raises SandboxError: The sandbox failed.
    """
    return [
        f"{path} was changed while the tests ran" for path in sorted(await sandbox.touched()) if is_test(path)
    ]
