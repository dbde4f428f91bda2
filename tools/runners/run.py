"""Run a suite in a sandbox: build, run, read, and decide whether the run is complete.

Exit codes prove nothing about tests: many runners end with 0 if the code under test ends their process. A run is complete
only if all of this holds:

- each command ended by itself, within its time;
- the runner's own end record arrived;
- each test that began has a result;
- each planned unit reported.

A unit that could not be built, a unit without any report and a test without an end are red.
"""

from __future__ import annotations

import json
import posixpath
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from weakref import WeakKeyDictionary

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.tools.base import readable
from m3agent.tools.runners.base import (
    RED,
    Command,
    Job,
    Limits,
    Output,
    Reading,
    Result,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.test_report import Signs, TestReport, ids_by_outcome

WORK = "m3agent-tests"
"""Folder for builds and reports in the sandbox's temporary folder. A sandbox belongs to one tree, so no build is of another."""
WRITE = 'rm -f "$1" && set -C && cat > "$1"'
"""Writes a new file: with `-C`, the shell opens no file that is there already, such as a link."""
MOST_REPORT = 64 << 20
"""Most bytes of a report that are read."""
ENVIRONMENT = {"CI": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
"""Variables of every command. `CI` turns questions and watch modes off, also in jest and vitest."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
RANK = ("passed", "skipped", "failed", "error")
"""Outcomes from the best to the worst: of results with the same id, the worst counts."""
NOT_ENDED = "the test process ended during this test"
NO_REPORT = "not all of its tests ran: the test process ended early"
_STARTED: WeakKeyDictionary[Sandbox, set[str]] = WeakKeyDictionary()
"""Names of the suites that have run in each sandbox. Their builds are kept for their next runs."""
_SLUG = re.compile("[^A-Za-z0-9]+")


async def run_suite(
    sandbox: Sandbox,
    runner: Runner,
    suite: Suite,
    tree: Tree,
    wanted: Sequence[str] = (),
    *,
    limits: Limits,
    log: Path | None = None,
    env: Mapping[str, str] = NO_VARIABLES,
) -> TestReport:
    """Run a suite, or a part of it.

    Args:
        wanted: Ids, files or folders, without the suite's name; empty for all tests. Others may run as well.
        log: File for the complete output of the last command.
        env: Variables of every command, unless the command itself sets them.

    Raises:
        SandboxError: The sandbox itself failed. A failing, hanging or unbuildable test does not raise.
    """
    started = time.monotonic()
    suite = replace(suite, work_tree=sandbox.folders.work_tree)
    work = f"{sandbox.folders.temporary}/{WORK}/{_SLUG.sub('-', suite.name)}"
    job = Job(suite, tree, runner.select(suite, tree, wanted), limits, work)
    outputs: list[Output] = []
    units: list[Unit] = []
    ran = list[Output]()

    async def execute(command: Command) -> Output:
        left = limits.total - (time.monotonic() - started)
        return await _execute(sandbox, command, work, max(1.0, left), log, env)

    whole = False
    try:
        if suite.name not in _STARTED.setdefault(sandbox, set()):
            # code of another suite may have put builds there
            await _checked(sandbox, ["rm", "-rf", work], work)
            _STARTED[sandbox].add(suite.name)
        build = runner.build(job)
        if build is not None:
            built = await execute(build)
            units = runner.units(job, built)
            outputs.append(built)
        commands = runner.commands(job, units)
        for command in commands:
            if time.monotonic() - started > limits.total:
                break
            ran.append(await execute(command))
        whole = len(ran) == len(commands)
        reading = runner.read(job, units, ran)
    except _NotWritten as error:
        reading = Reading(problem=str(error), tampering=[str(error)])
    outputs += ran
    return report_of(reading, units, outputs, whole=whole, seconds=time.monotonic() - started)


class _NotWritten(Exception):
    """A file of the runner could not be written."""


async def _checked(sandbox: Sandbox, argv: list[str], path: str, stdin: bytes = b"") -> None:
    """Run a command that prepares a path.

    Raises:
        _NotWritten: The command failed, so a program in the sandbox may have put something in the place of the path.
    """
    if (await sandbox.exec(argv, stdin=stdin)).exit != 0:
        raise _NotWritten(f"{path} could not be written for the test runner")


async def _execute(
    sandbox: Sandbox, command: Command, work: str, left: float, log: Path | None, env: Mapping[str, str]
) -> Output:
    key = secrets.token_bytes(32)
    files = dict(command.files)
    if command.key_file is not None:
        files[command.key_file] = key.hex().encode()
    await _checked(sandbox, ["mkdir", "-p", work, *{posixpath.dirname(path) for path in files}], work)
    for path, content in files.items():
        await _checked(sandbox, ["sh", "-c", WRITE, "sh", path], path, content)
    result = await sandbox.exec(
        list(command.argv),
        cwd=command.cwd or ".",
        env={**ENVIRONMENT, **env, **command.env},
        timeout=left if command.seconds is None else min(left, command.seconds),
        log=log,
        keep=MOST_REPORT if command.report is None else 32 << 10,
    )
    report = result.stdout
    if command.report is not None:
        report = await taken(sandbox, command.report)
    return Output(
        command,
        result.exit,
        report,
        stdout=b"" if command.report is None else result.stdout,
        stderr=result.stderr,
        timed_out=result.timed_out,
        key=key,
    )


async def taken(sandbox: Sandbox, path: str, most: int = MOST_REPORT) -> bytes:
    """Return the content of a file, which is removed; empty if it is missing. Of a longer file, the middle is missing."""
    raw = await sandbox.exec(["sh", "-c", 'cat "$1" 2>/dev/null; rm -f "$1"', "sh", path], keep=most)
    return raw.stdout


def report_of(
    reading: Reading,
    units: Sequence[Unit],
    outputs: Sequence[Output],
    *,
    whole: bool = True,
    seconds: float = 0.0,
) -> TestReport:
    """Return the report of a run.

    Args:
        outputs: What the commands left behind, the build first.
        whole: Whether all commands ran.
    """
    timed_out = any(output.timed_out for output in outputs)
    results, each_ended = _results(reading, units, timed_out)
    worst: dict[str, Result] = {}
    for result in sorted(results, key=lambda result: RANK.index(result.outcome), reverse=True):
        worst.setdefault(result.ident, result)
    red = (result for result in worst.values() if result.outcome in RED)
    return TestReport(
        **ids_by_outcome({ident: result.outcome for ident, result in worst.items()}),
        errors={result.ident: readable(result.text.encode("utf-8", "replace")) for result in red},
        complete=reading.ended and whole and each_ended and not timed_out and not reading.problem,
        timed_out=timed_out,
        seconds=seconds,
        exit=outputs[-1].exit if outputs else 0,
        output="\n".join(filter(None, (reading.problem, _printed(outputs)))),
        truncated=False,
        signs=Signs(forged=tuple(reading.tampering)),
        commands=tuple(dict.fromkeys(output.command.argv for output in outputs)),
        registrations={
            unit.name: json.dumps(registration, sort_keys=True)
            for unit in units
            if (registration := unit.registration())
        },
    )


def _printed(outputs: Sequence[Output]) -> str:
    parts = chain.from_iterable((output.stdout, output.stderr) for output in outputs)
    return readable(b"\n".join(filter(None, parts))).strip()


def _results(reading: Reading, units: Sequence[Unit], timed_out: bool) -> tuple[list[Result], bool]:
    """Return all results, and whether each test that began and each planned unit came to its end."""
    results = list(reading.results)
    ended = Counter(result.ident for result in results)
    open_tests = [ident for ident, times in Counter(reading.started).items() if times > ended[ident]]
    results += [Result(ident, "failed", "timed out" if timed_out else NOT_ENDED) for ident in open_tests]
    # these did not report their end and have no red result by themselves
    silent = sorted(reading.planned - reading.reported - {result.ident for result in results})
    unbuilt = (unit for unit in units if not unit.built)
    results += [Result(unit.name, "error", unit.text or "it could not be built") for unit in unbuilt]
    results += [Result(name, "error", NO_REPORT) for name in silent]
    return results, not open_tests and not silent
