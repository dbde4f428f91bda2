"""Run tests in a sandbox; results come from the program's own report, never from scraped text."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from m3agent.sandbox.backends.sandbox import ExecResult, Sandbox
from m3agent.tools.base import readable
from m3agent.tools.execution_map import Recording
from m3agent.tools.in_sandbox import bootstrap, bytecode, channel, guard, recorder, runner, variants
from m3agent.tools.report_reader import ADDRESS, Reading, read_report
from m3agent.tools.runners.base import Limits, Runner, Suite, Tree
from m3agent.tools.runners.run import MOST_REPORT, NO_VARIABLES, run_suite, taken
from m3agent.tools.runners.suites import RUNNERS, prefix_of, suite_of, with_prefix, without_suite
from m3agent.tools.test_report import EMPTY, TestReport, first_reason, ids_by_outcome, joined
from m3agent.util.portable_source import portable_text


@dataclass(frozen=True)
class Selection:
    """The tests of one run; by default all tests."""

    targets: Sequence[str] = (".",)
    only: Collection[str] = ()
    """Ids of tests, functions, classes, files or folders; of the targets' tests, only these run. Empty for
    all.
    """
    ignore: Collection[str] = ()
    skip: Collection[str] = ()
    """Ids of tests, functions, classes or files that do not run."""
    seconds: float | None = None
    """Time after which no further test starts, and the run is not complete; None for no such time."""

    def has(self, ident: str) -> bool:
        """Return whether a result with this id belongs to the run. The targets are not looked at."""
        names = runner.names_around(ident)
        return (
            names.isdisjoint(self.skip)
            and names.isdisjoint(self.ignore)
            and (not self.only or not names.isdisjoint(self.only))
        )


EVERYTHING = Selection()


PER_TEST = 1 / 30  # share of the whole time limit after which a single test counts as hanging
LEAST_PER_TEST, MOST_PER_TEST = 1.0, 60.0  # bounds of that time, in seconds
MOST_RECORD = 256 << 20  # the same, if the report also says which functions the tests execute
PARTS = (channel, bytecode, guard, recorder, variants)
"""What each test program imports."""

MOST_BYTECODE = 64 << 20  # most bytes of packed bytecode that are kept

Framework = Literal["pytest", "unittest"]


@dataclass
class Bytecode:
    """The bytecode of one tree's Python files. Runs of similar trees need not compile the files again that they share."""

    content: bytes = b""
    """What `m3agent.tools.in_sandbox.bytecode` packs; empty until a run of that tree has kept it."""


@dataclass(frozen=True)
class Variant:
    """Test files with other assertions (`m3agent.tools.in_sandbox.variants`)."""

    files: Mapping[str, str]
    """Sources of test files, by path. They define the same functions as the files in the sandbox."""
    helpers: str = ""
    """Source of functions that they call."""


def standard_input(
    program: ModuleType, request: Mapping[str, object], report: str, key: bytes, python_path: str = ""
) -> bytes:
    """Return the standard input of a test program; `bootstrap.py` explains its keys."""
    given = {
        "key": key.hex(),
        "report": report,
        "sources": [(module.__name__, portable_text(module)) for module in (*PARTS, program)],
        "python_path": python_path,
        "request": request,
    }
    return json.dumps(given).encode() + b"\n"


def per_test_limit(timeout: float) -> float:
    """Return the time limit of one test for a run with this time limit, in seconds."""
    return min(max(LEAST_PER_TEST, timeout * PER_TEST), MOST_PER_TEST)


async def run_program(
    sandbox: Sandbox,
    program: ModuleType,
    request: Mapping[str, object],
    *,
    timeout: float,
    interpreter: Sequence[str] = ("python3",),
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    most: int = MOST_REPORT,
    bytecode: Bytecode | None = None,
    keep_bytecode: bool = False,
) -> tuple[Reading, ExecResult]:
    """Run a test program and read its report.

    Args:
        program: The program's last module.
        request: What the module's `main` gets.
        interpreter: Python and its options.
        most: Most bytes of the report that are read.
        bytecode, keep_bytecode: As for `run_in_sandbox`; only the runner of pytest and unittest uses them.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    kept = None
    if bytecode is not None and bytecode.content:
        request = {**request, "bytecode": base64.b64encode(bytecode.content).decode()}
    elif bytecode is not None and keep_bytecode:
        kept = f"{sandbox.folders.temporary}/bytecode-{secrets.token_hex(8)}"
        request = {**request, "keep": kept}
    key = secrets.token_bytes(32)
    report = f"{sandbox.folders.temporary}/report-{secrets.token_hex(8)}"
    variables = {**sandbox.environment, **(env or {})}
    given = standard_input(program, request, report, key, variables.get("PYTHONPATH", ""))
    result = await sandbox.exec(
        [*interpreter, "-c", portable_text(bootstrap)],
        timeout=timeout,
        log=log,
        stdin=given,
        env={**(env or {}), "PYTHONPATH": ""},
    )
    if bytecode is not None and kept is not None:
        bytecode.content = await taken(sandbox, kept, MOST_BYTECODE)
    raw = await taken(sandbox, report, most)
    if len(raw) < 1 << 20:
        return read_report(raw, key), result
    return await asyncio.to_thread(read_report, raw, key), result  # reading takes seconds


async def run_variants(
    sandbox: Sandbox,
    variants: Sequence[Variant],
    only: Collection[str],
    *,
    per_test: float,
    seconds: float,
    interpreter: Sequence[str] = ("python3",),
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    bytecode: Bytecode | None = None,
) -> list[Reading]:
    """Run tests with each variant of their files, and return what each report says. For pytest only.

    Args:
        variants: The variants, in the order in which they run.
        seconds: Time after which no further test starts.
        options: More options of pytest.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    folder = f"{sandbox.folders.temporary}/variants-{secrets.token_hex(8)}"
    keys = [secrets.token_bytes(32) for _ in variants]
    parts = [
        {
            "report": f"{folder}-{number}",
            "key": key.hex(),
            "files": dict(variant.files),
            "helpers": variant.helpers,
        }
        for number, (variant, key) in enumerate(zip(variants, keys, strict=True))
    ]
    request: dict[str, object] = {
        "framework": "pytest",
        "limit": per_test,
        "targets": sorted({f"./{ident.partition('::')[0]}" for ident in only}),
        "options": options,
        "only": sorted(only),
        "until": seconds,
        "unstable": ADDRESS.pattern,
        "variants": parts,
    }
    collected, _ = await run_program(
        sandbox,
        runner,
        request,
        timeout=seconds + len(variants) * per_test,
        interpreter=interpreter,
        env=env,
        log=log,
        bytecode=bytecode,
    )
    reports = await sandbox.exec(
        ["sh", "-c", 'cat "$1"-* 2>/dev/null; rm -f "$1"-*', "sh", folder], keep=MOST_REPORT
    )
    # each line counts for the report with its key only
    readings = [read_report(reports.stdout, key) for key in keys]
    for reading in readings:
        reading.arguments = collected.arguments
    return readings


async def run_in_sandbox(
    sandbox: Sandbox,
    selection: Selection = EVERYTHING,
    *,
    framework: Framework | Literal["collect"] = "pytest",
    timeout: float = 300,
    log: Path | None = None,
    record: Recording | None = None,
    per_test: float | None = None,
    guarded: Collection[str] | None = None,
    bytecode: Bytecode | None = None,
    keep_bytecode: bool = False,
    keyword: str = "",
) -> TestReport:
    """Run tests and read the runner's report.

    Args:
        selection: The tests. Missing targets are left out if others exist. No target, or ".", means those that the
            repository's settings name. unittest takes only the targets.
        framework: The test framework. `collect` runs no test: the report has only the files that cannot be imported.
        record: When to begin to record which functions each test executes. None: never. For pytest only.
        per_test: Time limit of one test, in seconds; None for a share of `timeout`.
        guarded: Look for tampering by the code under test. Paths of the files that the patch adds. For pytest only.
        bytecode: Bytecode of a similar tree, which makes the run faster.
        keyword: An expression for pytest's option `-k`; empty for none.
        keep_bytecode: Keep this run's bytecode in `bytecode`, if that is empty. No patch may have changed the tree,
            because the bytecode decides what later runs execute.

    Raises:
        SandboxError: The sandbox itself failed. A failing or hanging test does not raise.
    """
    if per_test is None:
        per_test = per_test_limit(timeout)
    request: dict[str, Any] = {
        "framework": framework,
        "limit": per_test,
        "targets": selection.targets,
        "only": sorted(selection.only),
        "ignore": sorted({*selection.ignore, *_submodules_beside(selection.targets, sandbox)}),
        "skip": sorted(selection.skip),
        "until": selection.seconds,
        "unstable": ADDRESS.pattern,
        "options": ["-k", keyword] if keyword else [],
        "record": None if record is None else asdict(record),
        "guard": None if guarded is None else {"wanted": (), "added": sorted(guarded)},
    }
    read, result = await run_program(
        sandbox,
        runner,
        request,
        timeout=timeout,
        log=log,
        most=MOST_REPORT if record is None else MOST_RECORD,
        bytecode=bytecode,
        keep_bytecode=keep_bytecode,
    )
    outcomes, errors = read.outcomes, read.errors
    if read.running is not None:
        outcomes[read.running] = "failed"
        how = (
            f"timed out after {timeout:g} s"
            if result.timed_out
            else "the test process ended during this test"
        )
        errors[read.running] = f"{how} (exit {result.exit})"
    text = readable(result.stdout + b"\n" + result.stderr).strip()
    return TestReport(
        **ids_by_outcome(outcomes),
        errors=errors,
        complete=read.ended and not result.timed_out,
        timed_out=result.timed_out,
        seconds=result.seconds,
        exit=result.exit,
        output=text,
        truncated=any(result.omitted),
        stopped=read.stopped,
        executed=None if record is None else read.executed,
        signs=read.signs,
        commands=(("python3", "-m", "pytest", *read.arguments),) if read.arguments else (),
    )


def _submodules_beside(targets: Collection[str], sandbox: Sandbox) -> Collection[str]:
    """Return the repository's submodules, whose tests are not its own; none if a target is in one."""
    submodule_of = sandbox.workspace.submodule_of
    files = (target.removeprefix("./").partition("::")[0] for target in targets)
    return frozenset[str]() if any(map(submodule_of, files)) else sandbox.workspace.submodules


async def run_tests(
    sandbox: Sandbox,
    suites: Sequence[Suite],
    tree: Tree,
    selection: Selection = EVERYTHING,
    *,
    timeout: float,
    per_test: float | None = None,
    log: Path | None = None,
    record: Recording | None = None,
    guarded: Collection[str] | None = None,
    among: Sequence[Suite] = (),
    env: Mapping[str, str] = NO_VARIABLES,
    bytecode: Bytecode | None = None,
    keep_bytecode: bool = False,
) -> TestReport:
    """Run tests of several suites, one suite after the other, and return one report.

    Args:
        suites: The suites that the repository has. Those without a selected test do not run.
        timeout: Time limit of each suite, in seconds.
        per_test: Time limit of one test, in seconds; None for a share of `timeout`.
        log: File for the complete output; each further suite has one with its number.
        record: When to begin to record which functions each test executes, for Python's tests.
        among: All suites of the repository, which decide how ids start; empty if they are `suites`.
        env: Further variables of the tests of other languages than Python.

    Raises:
        SandboxError: The sandbox itself failed. A failing or hanging test does not raise.
    """
    reports = list[TestReport]()
    among = among or suites
    for suite in suites:
        part = part_of(selection, suite, among)
        if part is None:
            continue
        runner = RUNNERS[suite.runner]
        own_log = log if log is None or not reports else log.with_suffix(f".{len(reports) + 1}{log.suffix}")
        if isinstance(runner, Runner):
            limits = Limits(
                timeout if part.seconds is None else part.seconds,
                per_test_limit(timeout) if per_test is None else per_test,
            )
            report = await _run_part(sandbox, runner, suite, tree, part, limits, own_log, env)
            if not report.ran and not report.complete and not report.timed_out:
                reason = first_reason(report.output) or "its runner ended without a result"
                report = replace(report, complete=True, not_run={suite.name: reason})
        else:
            report = await run_in_sandbox(
                sandbox,
                part,
                timeout=timeout,
                per_test=per_test,
                log=own_log,
                record=record,
                guarded=guarded,
                bytecode=bytecode,
                keep_bytecode=keep_bytecode,
            )
        reports.append(with_prefix(report, prefix_of(suite, among)))
    return reduce(joined, reports) if reports else EMPTY


async def _run_part(
    sandbox: Sandbox,
    runner: Runner,
    suite: Suite,
    tree: Tree,
    part: Selection,
    limits: Limits,
    log: Path | None,
    env: Mapping[str, str],
) -> TestReport:
    """Run a part of a suite. Runners may run more tests than that; their results are left out."""
    wanted = [*part.only] or [target for target in map(_plain, part.targets) if target != "."]
    report = await run_suite(sandbox, runner, suite, tree, wanted, limits=limits, log=log, env=env)
    if not part.only and wanted:
        part = replace(part, only=wanted)

    # what cannot be built or loaded counts, because it may contain a selected test
    report = report.only(lambda ident: part.has(ident) or "::" not in ident)
    return replace(report, stopped=report.timed_out and part.seconds is not None)


def part_of(selection: Selection, suite: Suite, suites: Sequence[Suite]) -> Selection | None:
    """Return the selection for one suite, with ids that lack its name; None if it has no test of the suite."""
    alone = len(suites) == 1

    def mine(given: Collection[str]) -> list[str]:
        idents = []
        for ident in given:
            name, rest = suite_of(ident), without_suite(ident)
            if name == suite.name or (not name and (alone or _may_have(suite, _plain(rest)))):
                idents.append(rest)
        return idents

    targets, only = mine(selection.targets), mine(selection.only)
    if not targets or (selection.only and not only):
        return None
    return Selection(targets, only, mine(selection.ignore), mine(selection.skip), selection.seconds)


def _plain(target: str) -> str:
    return target.removeprefix("./") or "."


def _may_have(suite: Suite, ident: str) -> bool:
    """Return whether a file, a folder or a test in a file may belong to a suite of several."""
    path = ident.partition("::")[0]
    if path == "." or suite.root == path or suite.root.startswith(f"{path}/"):
        return True
    if suite.root and not path.startswith(f"{suite.root}/"):
        return False
    is_file = "." in path.rpartition("/")[2]
    return not is_file or RUNNERS[suite.runner].is_test(path)
