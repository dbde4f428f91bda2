"""`test_runner`: run tests in the sandbox; results come from the runner's own report, never from scraped text."""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import FileProblem, PathEscapes
from m3agent.tools import in_sandbox_runner
from m3agent.tools.base import (
    MOST_CHARACTERS,
    Arguments,
    CallContext,
    Tool,
    ToolResult,
    cut,
    readable,
    refusal,
    visible,
)
from m3agent.tools.execution_map import ExecutionMap, MapReader, Recording
from m3agent.tools.files import plain
from m3agent.tools.near_tests import MOST, names_of_tests, near_names, near_paths
from m3agent.tools.test_report import TestReport

PER_TEST = 1 / 30  # share of the whole time limit after which a single test counts as hanging
LEAST_PER_TEST, MOST_PER_TEST = 1.0, 60.0  # bounds of that time, in seconds
FIRST_ERROR_LINES = 12  # last lines of a test's error that the model gets
LISTED = 100  # most failed tests that are listed
MOST_REPORT = 64 << 20  # most bytes of the report that are read
MOST_RECORD = 256 << 20  # the same, if the report also says which functions the tests execute
CUT_SHORT = frozenset({2, 3})  # pytest's exit codes for an interruption and for an internal error
NOT_FOUND = "unittest.loader._FailedTest"
"""In the id of a test that unittest reports in place of one that it cannot find."""
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
"""Address of an object in an id or an error. It differs in every run."""

KNOWN = "[These are the results of all tests in a fresh copy of the unchanged work tree. Nothing ran again.]"
"""Marks results that were known before the call."""

WAIT = 30.0
"""Most seconds that a call waits for the known result of all tests."""

Framework = Literal["pytest", "unittest"]


class TestRunnerArguments(Arguments):
    """Arguments of test_runner."""

    __test__ = False  # not a test class, despite its name

    test_file: str = Field(
        description="A test file, a node id (tests/test_a.py::test_b), a folder, or . for all."
    )
    framework: Framework = Field("pytest", description="pytest also runs unittest's test cases.")
    timeout: int = Field(300, ge=1, le=1800, description="Seconds for the whole run.")


@dataclass
class Reading:
    """What the runner's report says.

    Attributes:
        outcomes: By id.
        errors: Error texts of the tests that failed or could not run, by id.
        running: Id of the last test that began.
        ended: Whether the run came to its end.
        stopped: Whether the time for starting tests was over before all of them had started.
        executed: Which functions each test executed, if that was recorded.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    running: str | None = None
    ended: bool = False
    stopped: bool = False
    executed: ExecutionMap | None = None


def _ident(raw: str) -> str:
    # file names that are not UTF-8 contain lone surrogates, which a request to the model cannot contain
    return ADDRESS.sub("0x", raw.encode("utf-8", "backslashreplace").decode())


def read_report(report: bytes) -> Reading:
    """Read the report. Its lines about executed functions may hold anything."""
    reading = Reading()
    started = Counter[str]()
    executed = MapReader()
    for line in report.splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            executed.lost()
            continue  # a kill cut this line off
        if not isinstance(entry, dict):
            executed.lost()
        elif "code" in entry:
            executed.add_function(entry["code"])
        elif "ran" in entry:
            if isinstance(entry["ran"], str):
                executed.add_test(_ident(entry["ran"]), entry.get("codes"), entry.get("elsewhere"))
        elif "end" in entry:
            reading.ended = entry["end"] not in CUT_SHORT
            reading.stopped = entry.get("stopped") is True
        elif "start" in entry:
            reading.running = _ident(entry["start"])
            started[reading.running] += 1
        elif reading.outcomes.get(ident := _ident(entry.get("id", ""))) not in {"failed", "error"}:
            reading.outcomes[ident] = entry["outcome"]
            if entry["outcome"] in {"failed", "error"}:
                reading.errors[ident] = readable(entry["text"].encode("utf-8", "replace"))
    reading.executed = executed.map(started)
    return reading


async def run_in_sandbox(
    sandbox: Sandbox,
    *targets: str,
    framework: Framework | Literal["collect"] = "pytest",
    timeout: float = 300,
    log: Path | None = None,
    only: Collection[str] = (),
    ignore: Collection[str] = (),
    skip: Collection[str] = (),
    until: float | None = None,
    record: Recording | None = None,
    per_test: float | None = None,
) -> TestReport:
    """Run tests and read the runner's report.

    Args:
        sandbox: The sandbox.
        targets: Files, node ids or folders. Missing ones are left out if others exist. None means those that the
            repository's settings name.
        framework: The test framework. `collect` runs no test: the report has only the files that cannot be imported.
        timeout: Time limit of the run, in seconds.
        log: File for the complete output.
        only: Ids of tests, functions, classes, files or folders: of all tests in the targets, only these run. Empty
            for all. Unknown ids are ignored. For pytest only.
        ignore: Paths of files whose tests do not run. For pytest only.
        skip: Ids as in `only`, of tests that do not run. For pytest only.
        until: Seconds after which no further test starts. The run is then not complete. For pytest only.
        record: When to begin to record which functions each test executes. None: never. For pytest only.
        per_test: Time limit of one test, in seconds; None for a share of `timeout`.

    Raises:
        SandboxError: The sandbox itself failed. A failing or hanging test does not raise.
    """
    report = f"/tmp/report-{secrets.token_hex(8)}.jsonl"  # noqa: S108 - inside the sandbox
    source = Path(in_sandbox_runner.__file__).read_text()
    if per_test is None:
        per_test = min(max(LEAST_PER_TEST, timeout * PER_TEST), MOST_PER_TEST)
    argv = ["python3", "-c", source, framework, report, str(per_test), *targets]
    given = b""
    if only or ignore or skip or until is not None or record is not None:
        wanted = {"only": sorted(only), "ignore": sorted(ignore), "skip": sorted(skip), "until": until}
        recording = None if record is None else asdict(record)
        given = json.dumps({**wanted, "record": recording, "unstable": ADDRESS.pattern}).encode()
    result = await sandbox.exec(argv, timeout=timeout, log=log, stdin=given)
    raw = await sandbox.exec(
        ["sh", "-c", 'cat "$1" 2>/dev/null; rm -f "$1"', "sh", report],
        keep=MOST_REPORT if record is None else MOST_RECORD,
    )
    if record is None:
        read = read_report(raw.stdout)
    else:  # such a report is large, and reading it takes seconds
        read = await asyncio.to_thread(read_report, raw.stdout)
    outcomes, errors = read.outcomes, read.errors
    if read.running is not None and read.running not in outcomes:
        outcomes[read.running] = "failed"
        how = (
            f"timed out after {timeout:g} s"
            if result.timed_out
            else "the test process ended during this test"
        )
        errors[read.running] = f"{how} (exit {result.exit})"
    by = {kind: tuple(sorted(i for i, o in outcomes.items() if o == kind)) for kind in set(outcomes.values())}
    text = readable(result.stdout + b"\n" + result.stderr).strip()
    return TestReport(
        passed=by.get("passed", ()),
        failed=by.get("failed", ()),
        errored=by.get("error", ()),
        skipped=by.get("skipped", ()),
        errors=errors,
        complete=read.ended and not result.timed_out,
        timed_out=result.timed_out,
        seconds=result.seconds,
        exit=result.exit,
        output=text,
        truncated=any(result.omitted),
        stopped=read.stopped,
        executed=None if record is None else read.executed,
    )


def first_error(text: str) -> list[str]:
    """Return the most useful lines of an error: the last ones, which have the assertion or the exception."""
    lines = [line.rstrip() for line in text.strip().splitlines() if line.strip()]
    return lines[-FIRST_ERROR_LINES:]


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
        if any(file.startswith(f"{path}/") for file in files):
            return []
        near = near_paths(path, files)
        return ["Near files:", *(f"- {name}" for name in near)] if near else []
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
        return [title, *(f"- {path}::{name}" for name in near or names[:MOST])]
    near = [] if names else near_paths(path, files)
    return [f"{path} defines no tests. Near files:", *(f"- {name}" for name in near)] if near else []


def _one_line(text: str) -> str:
    """Return a text with file names, which may contain any character, as one line that can be encoded."""
    return visible(text.encode("utf-8", "backslashreplace").decode()).replace("\n", "\\x0a")


async def _known(context: CallContext, target: str, arguments: TestRunnerArguments) -> TestReport | None:
    """Return the result of the whole suite if the work tree is unchanged and a fresh copy of it ran; else None.

    A run under way gets `WAIT` seconds to finish: a second run at the same time would slow both.
    """
    if context.baseline is None or target != "." or arguments.framework != "pytest":
        return None
    if await context.sandbox.checkpoint() != context.sandbox.workspace.base:
        return None
    try:
        return await asyncio.wait_for(context.baseline(), min(arguments.timeout, WAIT))
    except TimeoutError:
        return None


async def run(context: CallContext, arguments: TestRunnerArguments) -> ToolResult:
    """Run the tests. Failing tests are a normal result of the tool."""
    target = plain(arguments.test_file) or "."
    if target.startswith("-"):
        return refusal(f"test_file takes a path or node id, not options: {target}")
    known = await _known(context, target, arguments)
    report = known or await run_in_sandbox(
        context.sandbox, target, framework=arguments.framework, timeout=arguments.timeout, log=context.log
    )
    lines = [summary(report, arguments.timeout)]
    for kind, ids in (("FAILED", report.failed), ("ERROR", report.errored)):
        for ident in ids[:LISTED]:
            lines.append(f"{kind} {ident}")
        if len(ids) > LISTED:
            lines.append(f"[{len(ids) - LISTED} more {kind} not listed]")
    # Errors follow their ids as long as there is room. All listed ids are shown in any case.
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in lines)
    shown: list[str] = []
    for line in lines:
        shown.append(_one_line(line))
        ident = line.partition(" ")[2]
        if line.startswith(("FAILED ", "ERROR ")) and ident in report.errors:
            block = [f"    {text}" for text in first_error(report.errors[ident])]
            size = sum(len(text) + 1 for text in block)
            if size <= room:
                room -= size
                shown += block
    if not report.ran:
        shown.append(
            f"no tests ran. The runner said:\n{cut(report.output, 4000)}"
            if report.output
            else "no tests ran."
        )
    if known is not None:
        shown.append(KNOWN)
    if not report.timed_out and (not report.ran or any(NOT_FOUND in ident for ident in report.errored)):
        shown += map(_one_line, await suggest(context.sandbox, target))
    # Durations and temporary names differ in every run, so the digest covers only outcomes and errors.
    stable = ADDRESS.sub("0x", json.dumps([report.sets, sorted(report.errors.items())], sort_keys=True))
    digest = hashlib.sha256(stable.encode()).hexdigest()
    return ToolResult(
        "\n".join(shown),
        is_error=bool(report.red) or not report.ran,
        exit_code=report.exit,
        digest=digest,
        truncated=report.truncated,
        full_path=str(context.log) if known is None else None,
        data={
            **report.sets,
            "complete": report.complete,
            "timed_out": report.timed_out,
        },
    )


TOOL = Tool(
    "test_runner",
    "Run tests in the sandbox: which passed, failed, could not run, and the first error of each. For a wrong path or id "
    "it names similar ones.",
    TestRunnerArguments,
    run,
    kind="execute",
    path_argument="test_file",
)
