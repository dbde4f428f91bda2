"""`test_runner`: run tests in the sandbox; results come from the runner's own report, never from scraped text."""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
from collections.abc import Collection, Mapping, Sequence

from pydantic import Field, field_validator

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import FileProblem, PathEscapes
from m3agent.tools.base import (
    MOST_CHARACTERS,
    Arguments,
    CallContext,
    Tool,
    ToolResult,
    cut,
    refusal,
    visible,
)
from m3agent.tools.execution_map import encodable
from m3agent.tools.files import files_of, path_of
from m3agent.tools.report_reader import ADDRESS
from m3agent.tools.run_tests import Framework, Selection, run_in_sandbox, run_tests
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.python import PYTEST
from m3agent.tools.runners.suites import DEFAULT, file_of, suites_of, tree_files, without_suite
from m3agent.tools.test_report import NO_TESTS, TestReport, error_line
from m3agent.tools.test_targets import (
    EVERYTHING,
    MOST,
    BadTargets,
    Targets,
    has_title,
    names_of_tests,
    near_names,
    near_paths,
    path_of_dotted,
    targets_in,
)
from m3agent.util.counted import first_of

FIRST_ERROR_LINES = 12  # last lines of a test's error that the model gets
LISTED = 100  # most failed tests that are listed
NOT_FOUND = "unittest.loader._FailedTest"
"""In the id of a test that unittest reports in place of one that it cannot find."""
UNITTEST: Framework = "unittest"
PYTHON_FRAMEWORKS: tuple[Framework, ...] = ("pytest", UNITTEST)
KNOWN = "[These are the results of all tests in a fresh copy of the unchanged work tree. Nothing ran again.]"
"""Marks results that were known before the call."""

SAME_ERROR = "red before your change, too, with the same error"
OTHER_ERROR = "red before your change, too, with another error"
LEFT_OUT = "[The errors of tests that had the same error before your change are left out: give a test's id to see its error.]"

WAIT_FOR_MARKS = 2.0
"""Most seconds that red tests wait for the known result of all tests, which says whether they were red before."""
WAIT = 30.0
"""Most seconds that a call waits for the known result of all tests."""


class TestRunnerArguments(Arguments):
    """Arguments of test_runner."""

    __test__ = False  # not a test class, despite its name

    test_file: str = Field(
        description="Test files, node ids (tests/test_a.py::test_b) or folders, separated by blanks, or . for all; "
        "-k EXPRESSION selects by name."
    )
    framework: str = Field(
        "",
        description="Leave it out: the repository's own test runners run. For Python also: pytest, unittest.",
    )
    timeout: int = Field(300, ge=1, le=1800, description="Seconds for the whole run.")

    @field_validator("test_file", mode="before")
    @classmethod
    def joined(cls, given: object) -> object:
        """Take a list of strings, too."""
        words = [item for item in given if isinstance(item, str)] if isinstance(given, list) else []
        return " ".join(words) if words and words == given else given


def first_error(text: str) -> list[str]:
    """Return the most useful lines of an error: the last ones, which have the assertion or the exception."""
    lines = [line.rstrip() for line in text.strip().splitlines() if line.strip()]
    return lines[-FIRST_ERROR_LINES:]


def red_before(report: TestReport, before: TestReport) -> dict[str, str]:
    """Return the red tests of a report that were red without the change, each with `SAME_ERROR` or `OTHER_ERROR`."""

    def line(of: TestReport, ident: str) -> str:
        return ADDRESS.sub("0x", error_line(of.errors.get(ident, "")))

    both = sorted(report.red & before.red)
    return {i: SAME_ERROR if line(report, i) == line(before, i) else OTHER_ERROR for i in both}


def summary(report: TestReport, timeout: float) -> str:
    """Return the number of tests by outcome, in one line."""
    counts = (
        f"{len(report.passed)} passed, {len(report.failed)} failed, "
        f"{len(report.errored)} errors, {len(report.skipped)} skipped"
    )
    if report.timed_out:
        counts += f" (timed out after {timeout:g} s: tests after the last one listed did not run)"
    elif not report.complete:
        counts += f" (the test process ended early with exit code {report.exit})"
    return counts


async def suggest(sandbox: Sandbox, target: str) -> list[str]:
    """Return lines with the files or ids that a target without tests may mean; empty if nothing is similar."""
    path, _, inner = target.partition("::")
    files = await asyncio.to_thread(sandbox.workspace.entries, await sandbox.checkpoint())
    path = posixpath.normpath(path)
    if path not in files:
        is_folder = any(file.startswith(f"{path}/") for file in files)
        return [] if is_folder else _titled("Near files:", near_paths(path, files))
    try:
        source = (await sandbox.read(path)).decode("utf-8", "replace")
    except (FileProblem, PathEscapes):
        return []
    names = await asyncio.to_thread(names_of_tests, source)
    if inner in names:
        return []  # the id is right, and something else is wrong
    if inner and names:
        near = near_names(inner, names)
        title = "Near ids:" if near else f"{path} defines {len(names)} classes and tests, such as:"
        return _titled(title, [f"{path}::{name}" for name in near or names[:MOST]])
    return [] if names else _titled(f"{path} defines no tests. Near files:", near_paths(path, files))


def _titled(title: str, names: Sequence[str]) -> list[str]:
    return [title, *(f"- {name}" for name in names)] if names else []


def _one_line(text: str) -> str:
    """Return a text with file names, which may contain any character, as one line that can be encoded."""
    return visible(encodable(text)).replace("\n", "\\x0a")


def _in_brackets(mark: str) -> str:
    return f" ({mark})" if mark else ""


async def _known(context: CallContext, targets: Targets, arguments: TestRunnerArguments) -> TestReport | None:
    """Return the result of the whole suite if the work tree is unchanged and a fresh copy of it ran; else None.

    A run under way gets `WAIT` seconds to finish: a second run at the same time would slow both.
    """
    if targets != EVERYTHING or arguments.framework not in ("", PYTEST) or await _is_changed(context.sandbox):
        return None
    return await _baseline(context, min(arguments.timeout, WAIT))


async def _is_changed(sandbox: Sandbox) -> bool:
    return await sandbox.checkpoint() != sandbox.workspace.base


async def _baseline(context: CallContext, seconds: float) -> TestReport | None:
    """Return the result of all tests on the base tree if it is known in time."""
    if context.baseline is None:
        return None
    try:
        async with asyncio.timeout(seconds):
            return await context.baseline()
    except TimeoutError:
        return None


async def _marks(context: CallContext, report: TestReport) -> dict[str, str]:
    """Return the red tests of a changed tree that were red before; see `red_before`."""
    if not report.red or not await _is_changed(context.sandbox):
        return {}
    before = await _baseline(context, WAIT_FOR_MARKS)
    return {} if before is None else red_before(report, before)


async def _suites(sandbox: Sandbox) -> Sequence[Suite]:
    """Return the suites of the repository: those before the session, or those of the work tree if there were none."""
    store, base = sandbox.workspace.store, sandbox.workspace.base
    suites = await asyncio.to_thread(suites_of, store, base)
    if suites == DEFAULT:
        suites = await asyncio.to_thread(suites_of, store, await sandbox.checkpoint())
    return suites


async def _run(
    context: CallContext,
    suites: Sequence[Suite],
    targets: Targets,
    arguments: TestRunnerArguments,
    only: Collection[str] = (),
) -> TestReport:
    """Run the tests that the targets name, with the repository's runners or with one of Python.

    Of the targets' tests, only those with the ids `only` run, if there are any.
    """
    sandbox, timeout, log = context.sandbox, arguments.timeout, context.log
    wanted = Selection(targets.paths, only)
    every = await _suites(sandbox)
    only_python = [suite.runner for suite in every] == [PYTEST]
    for framework in PYTHON_FRAMEWORKS:
        if (arguments.framework or (PYTEST if only_python else "")) == framework:
            keyword = targets.keyword if framework == PYTEST else ""
            report = await run_in_sandbox(
                sandbox, wanted, framework=framework, timeout=timeout, log=log, keyword=keyword
            )
            return report if keyword else targets.selected(report)
    tree = await asyncio.to_thread(tree_files, sandbox.workspace.store, await sandbox.checkpoint())
    return targets.selected(
        await run_tests(sandbox, suites, tree, wanted, timeout=timeout, log=log, among=every)
    )


def _without_test(target: str) -> str:
    """Return a target without its test: a file or a folder, after the name of its suite if it has one."""
    return target[: len(target) - len(without_suite(target))] + file_of(target)


async def _without_result(
    context: CallContext, targets: Targets, arguments: TestRunnerArguments, report: TestReport
) -> list[str]:
    """Return lines about the targets of several that no result belongs to, because they name nothing."""
    if len(targets.paths) < 2:
        return []
    ids = [*map(without_suite, report.ids)]
    collected = report.complete and (report.ran > 0 or report.exit == NO_TESTS) and not report.not_run
    selects = collected and not targets.keyword and arguments.framework != UNITTEST
    lines = list[str]()
    for target in targets.paths:
        path, _, title = without_suite(target).partition("::")
        wanted = Selection(only=(posixpath.normpath(path) + f"::{title}" * bool(title),))
        if any(map(wanted.has, ids)):
            continue
        exists = await context.sandbox.exec(["sh", "-c", 'test -e "$1"', "sh", path])
        if exists.exit:
            lines.append(f"NOT RUN {target}: no such file")
        elif title and selects and path not in ids:
            lines.append(f"NOT RUN {target}: no test has this id")
        else:
            continue
        lines += await suggest(context.sandbox, target)
    return lines


async def _by_title(
    context: CallContext, suites: Sequence[Suite], targets: Targets, arguments: TestRunnerArguments
) -> tuple[TestReport | None, list[str]]:
    """Run the file of an id that names no test: the id may lack the class or the group around its test.

    Returns:
        The results of the tests that the id means, None if there are none; and a note, or near ids.
    """
    path, _, title = targets.paths[0].partition("::")
    has_ids = any("::" in target for target in targets.paths)
    if len(targets.paths) > 1 and has_ids and arguments.framework != UNITTEST:
        # one wrong id is in the way of all others, unless it only selects
        files = Targets(tuple(dict.fromkeys(map(_without_test, targets.paths))), targets.keyword)
        return await _run(context, suites, files, arguments, targets.paths), []
    if len(targets.paths) > 1 or not title or targets.keyword:
        return None, []
    whole = await _run(context, suites, Targets((path,)), arguments)
    meant = whole.only(lambda ident: has_title(ident, title))
    if meant.ran:
        return meant, [f"note: '{title}' was read as {first_of(sorted(meant.ids), MOST)}"]
    near = near_names(title, sorted({ident.partition("::")[2] for ident in whole.ids} - {""}))
    return None, _titled("Near ids:", [f"{path}::{name}" for name in near])


async def _results(
    context: CallContext, suites: Sequence[Suite], targets: Targets, arguments: TestRunnerArguments
) -> tuple[TestReport, list[str]]:
    """Run the tests; return their report and notes about it."""
    report = await _run(context, suites, targets, arguments)
    if report.ran or report.timed_out:
        return report, []
    titled, notes = await _by_title(context, suites, targets, arguments)
    return titled or report, notes


async def _near(context: CallContext, targets: Targets, report: TestReport) -> list[str]:
    """Return what the call may mean if its tests were not found."""
    if report.ran and not any(NOT_FOUND in ident for ident in report.errored):
        return []
    return [line for path in targets.paths for line in await suggest(context.sandbox, path)]


async def run(context: CallContext, arguments: TestRunnerArguments) -> ToolResult:
    """Run the tests. Failing tests are a normal result of the tool."""
    try:
        files = await files_of(context.sandbox)
        given = targets_in(arguments.test_file, files)
        paths = [await path_of(context.sandbox, path_of_dotted(path, files)) or "." for path in given.paths]
        targets = Targets(tuple(paths), given.keyword)
    except BadTargets as error:
        return refusal(f"test_file takes a path or node id, not options: {error}")
    suites = await _suites(context.sandbox)
    if arguments.framework not in ("", *PYTHON_FRAMEWORKS):
        names = sorted({suite.runner for suite in suites})
        suites = [suite for suite in suites if suite.runner == arguments.framework]
        if not suites:
            return refusal(
                f"test_runner: this repository has no tests of '{arguments.framework}': leave framework out, or give "
                f"one of {', '.join(names)}"
            )
    known = await _known(context, targets, arguments)
    if known is not None:
        shown = [*_red_tests(known, arguments, {}, targets), *_silence(known, known.output), KNOWN]
        return _result(known, shown, None)
    report, notes = await _results(context, suites, targets, arguments)
    unnamed, near = list[str](), list[str]()
    if not report.timed_out:
        unnamed = await _without_result(context, targets, arguments, report)
        near = [] if unnamed else await _near(context, targets, report)
    shown = _red_tests(report, arguments, await _marks(context, report), targets)
    shown += _silence(report, "" if unnamed else report.output)
    shown += map(_one_line, unnamed + near)
    shown += [] if "Near ids:" in shown else map(_one_line, notes)
    return _result(report, shown, str(context.log))


def _result(report: TestReport, shown: Sequence[str], log: str | None) -> ToolResult:
    # Durations and temporary names differ in every run, so the digest covers only outcomes and errors.
    stable = ADDRESS.sub("0x", json.dumps([report.sets, sorted(report.errors.items())], sort_keys=True))
    return ToolResult(
        "\n".join(shown),
        is_error=bool(report.red) or not report.ran,
        exit_code=report.exit,
        digest=hashlib.sha256(stable.encode()).hexdigest(),
        truncated=report.truncated,
        full_path=log,
        data={**report.sets, "complete": report.complete, "timed_out": report.timed_out},
    )


def _silence(report: TestReport, output: str) -> list[str]:
    """Return why no tests ran, and what the runner printed; nothing if some ran."""
    if report.ran:
        return []
    printed = [f"The runner said:\n{cut(output, 4000)}"] if output else []
    return [f"no tests ran{f': {report.obstacle}' if report.obstacle else ''}.", *printed]


def _red_tests(
    report: TestReport, arguments: TestRunnerArguments, marks: Mapping[str, str], targets: Targets
) -> list[str]:
    """Return the summary, all listed red tests, and behind each the first lines of its error, as long as there is room.

    An error that was there before the change is left out, unless the call names single tests.
    """
    is_named = "::" in "".join(targets.paths)
    lines = [(summary(report, arguments.timeout), "")]
    for kind, ids in (("FAILED", report.failed), ("ERROR", report.errored)):
        lines += [(f"{kind} {ident}" + _in_brackets(marks.get(ident, "")), ident) for ident in ids[:LISTED]]
        lines += [(f"[{len(ids) - LISTED} more {kind} not listed]", "")] if len(ids) > LISTED else []
    room = MOST_CHARACTERS - sum(len(line) + 1 for line, _ in lines)
    shown = list[str]()
    for line, ident in lines:
        shown.append(line)
        if ident in report.errors and (is_named or marks.get(ident) != SAME_ERROR):
            block = [f"    {text}" for text in first_error(report.errors[ident])]
            size = sum(len(text) + 1 for text in block)
            if size <= room:
                room -= size
                shown += block
    shown += [LEFT_OUT] if not is_named and SAME_ERROR in marks.values() else []
    shown += [f"NOT RUN {name}: {reason}" for name, reason in report.not_run.items()]
    return [*map(_one_line, shown)]


TOOL = Tool(
    "test_runner",
    "Run tests in the sandbox: which passed, failed, could not run, and the first error of each; it marks those that were red "
    "before your change. For a wrong path or id it names similar ones.",
    TestRunnerArguments,
    run,
    kind="execute",
    verb="test",
    path_argument="test_file",
)
