"""Run the tests of a tree: those of all its suites, or a part of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.tools.execution_map import Recording
from m3agent.tools.failure_reason import first_reason
from m3agent.tools.run_tests import Bytecode, per_test_limit, run_in_sandbox
from m3agent.tools.runners.base import Limits, Runner, Suite, Tree
from m3agent.tools.runners.run import NO_VARIABLES, run_suite
from m3agent.tools.runners.suites import RUNNERS, prefix_of, suite_of, with_prefix, without_suite
from m3agent.tools.selection import EVERYTHING, Selection
from m3agent.tools.test_report import EMPTY, TestReport, joined


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
                *part.targets,
                timeout=timeout,
                per_test=per_test,
                log=own_log,
                only=part.only,
                ignore=part.ignore,
                skip=part.skip,
                until=part.seconds,
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
        found = []
        for ident in given:
            name, rest = suite_of(ident), without_suite(ident)
            if name == suite.name or (not name and (alone or _may_have(suite, _plain(rest)))):
                found.append(rest)
        return found

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
