"""Runs without a sandbox: trees in memory, and reports as the program in the sandbox signs them."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import Command, Job, Limits, Output, Runner, Tree, Unit
from m3agent.tools.runners.run import report_of
from m3agent.tools.runners.suites import RUNNERS
from m3agent.tools.test_report import TestReport

KEY = b"k" * 32
WORK = "/tmp/m3agent-tests/suite"


def tree_of(files: Mapping[str, str | bytes]) -> Tree:
    """Return a tree in memory."""
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    return Tree(contents, contents.__getitem__)


def runner_of(name: str) -> Runner:
    """Return the runner with a name."""
    runner = RUNNERS[name]
    assert isinstance(runner, Runner)
    return runner


def job_of(
    runner: Runner, files: Mapping[str, str | bytes], targets: Sequence[str] = (), **limits: float
) -> Job:
    """Return a run of the only suite of these files."""
    tree = tree_of(files)
    (suite,) = runner.detect(tree)
    return Job(suite, tree, targets, Limits(**limits), WORK)


def signed(*records: object, key: bytes = KEY, first: int = 1) -> bytes:
    """Return records as lines of a report, from the number `first` on."""
    lines = []
    for number, record in enumerate(records, first):
        body = f"{number}\t{json.dumps(record)}".encode()
        lines.append(body + b"\t" + hmac.new(key, body, hashlib.sha256).hexdigest().encode())
    return b"\n".join(lines) + b"\n"


def output_of(
    command: Command | None, done: Mapping[str, Mapping[str, Any]], *, ended: bool = True
) -> Output:
    """Return what a command of steps left behind: what each step did, by its name."""
    assert command is not None
    ordinary = {"exit": 0, "timed_out": False, "output": "", "report": ""}
    records: list[object] = [["step", name, {**ordinary, **what}] for name, what in done.items()]
    return Output(command, 0, signed(*records, *([["end"]] if ended else [])), key=KEY)


def report_from(
    runner: Runner,
    job: Job,
    done: Mapping[str, Mapping[str, Any]],
    units: Sequence[Unit] = (),
    *,
    ended: bool = True,
) -> TestReport:
    """Return the report of a run whose steps left this behind."""
    (command,) = runner.commands(job, units)
    outputs = [output_of(command, done, ended=ended)]
    return report_of(runner.read(job, units, outputs), units, outputs)


def outcomes(report: TestReport) -> dict[str, str]:
    """Return each test's outcome."""
    names = {"errored": "error"}
    return {ident: names.get(name, name) for name, idents in report.sets.items() for ident in idents}
