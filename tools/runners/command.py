"""A command that the repository names, for ecosystems without a runner of their own.

In `pyproject.toml`, table `[tool.m3agent.tests]`, or in `.m3agent.toml`, table `[tests]`:

    command = "./run-tests --junit {report}"   # or a list of words
    report = "junit"                           # or "tap"
    file = "build/report.xml"                  # if the command cannot write to {report}
    leave_out = ["jest", "go:tools"]           # runners or suites that are found here and shall not run
    env = {SERVICE_URL = "http://localhost"}   # variables of all commands (`variables.py`)

The command runs instead of the suites that other runners find (`suites.running`).

`{report}` is a new path outside the work tree. Without it and without `file`, the report is what the command prints. Only
the report counts: a command that ends with 0 and reports nothing did not run. Nothing is known about the program behind
the command, so code under test that writes a whole false report by itself is found only if the report contradicts itself
or the exit status, or if tests of the base tree are missing in it.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import Command, Job, Preparation, Reading, Suite, Tree, Unit
from m3agent.tools.runners.javascript import packages
from m3agent.tools.runners.report_formats import read_junit, read_tap
from m3agent.tools.runners.steps import StepRunner, steps_command, text_of
from m3agent.tools.runners.variables import fault_of
from m3agent.util.json_value import items, mapping

OWN_FILE = ".m3agent.toml"
REPORTS = ("junit", "tap")
PLACE = "{report}"


class CommandRunner(StepRunner):
    """A command of the repository."""

    name = "command"
    language = "any"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return the suite that the repository's configuration describes."""
        for path, table in _tables(tree):
            options = _options(table)
            if options:
                return [Suite(self.name, "", f"tests.command in {path}", {**options, "configuration": path})]
        return []

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the packages of a `package.json` at the root: its tests may have a runner that m3agent does not know."""
        return packages.preparation(suite, tree) if "package.json" in tree.paths else Preparation()

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return the command."""
        suite, report = job.suite, f"{job.work}/report"
        words = [word.replace(PLACE, report) for word in json.loads(suite.options["command"])]
        if file := suite.options.get("file", ""):
            report = posixpath.normpath(f"{suite.work_tree}/{file}")
        step = {"name": "tests", "argv": words, "cwd": suite.folder, "report": report}
        return [steps_command([step], job.work, "run")]

    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Read the report."""
        step, options = done.get("tests", {}), job.suite.options
        report = text_of(step, "report")
        if not report and PLACE not in options["command"] and "file" not in options:
            report = text_of(step)
        read = _read_junit if options["report"] == "junit" else _read_tap
        reading.ended &= read(job, report, reading) and step.get("timed_out") is False
        if step.get("timed_out"):
            reading.problem = "the command did not end in time"
        elif not reading.results:
            reading.problem = f"the command reported no test\n{text_of(step)[-2000:]}"
        elif step.get("exit") != 0 and not reading.is_red:
            reading.problem = f"no test failed, but the command ended with {step.get('exit')}"


def left_out_of(tree: Tree) -> frozenset[str]:
    """Return the names of runners and suites that the repository's configuration leaves out."""
    lists = [items(mapping(table).get("leave_out")) for _, table in _tables(tree)]
    return frozenset(name for names in lists for name in names if isinstance(name, str))


def variables_of(tree: Tree) -> dict[str, str]:
    """Return the variables that the repository's configuration declares for its tests; none if the table is wrong."""
    tables = (mapping(table).get("env") for _, table in _tables(tree))
    table: Any = next((table for table in tables if table is not None), {})
    return {} if fault_of(table) else dict(table)


def _tables(tree: Tree) -> list[tuple[str, Any]]:
    """Return the values of the table, each with the path of its file, the preferred one first."""
    project = tree.toml("pyproject.toml")
    return [
        (OWN_FILE, tree.toml(OWN_FILE).get("tests")),
        ("pyproject.toml", mapping(project, "tool", "m3agent").get("tests")),
    ]


def _options(table: Any) -> dict[str, str]:
    """Return the settings of a table; none if they are incomplete."""
    if not isinstance(table, dict) or table.get("report") not in REPORTS:
        return {}
    command = table.get("command")
    if isinstance(command, str):
        command = ["sh", "-c", command] if command.strip() else []
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        return {}
    options = {"command": json.dumps(command), "report": str(table["report"])}
    file = table.get("file")
    if isinstance(file, str) and file and not posixpath.normpath(file).startswith(("/", "..")):
        options["file"] = posixpath.normpath(file)
    return options


def _read_junit(job: Job, report: str, reading: Reading) -> bool:
    cases, ended = read_junit(report.encode())
    for case in cases:
        file, group = _place(job, case.file, case.group)
        reading.add(file, [group, case.name] if group else [case.name], case.outcome, case.text)
    return ended


def _place(job: Job, file: str, group: str) -> tuple[str, str]:
    """Return the file of a test, and the name of its group if the file does not say it."""
    path = posixpath.normpath(job.suite.in_tree(file)) if file else ""
    if path in job.tree.paths:
        return path, group
    if group in job.tree.paths:
        return group, ""
    inner = group.replace(".", "/").replace("::", "/")
    paths = job.tree.paths if inner else ()
    files = sorted(p for p in paths if f"/{posixpath.splitext(p)[0]}".endswith(f"/{inner}"))
    return (files[0], "") if len(files) == 1 else (job.suite.options["configuration"], group)


def _read_tap(job: Job, report: str, reading: Reading) -> bool:
    tap = read_tap(report)
    reading.results += tap.results(job.suite.options["configuration"])
    reading.tampering += [f"the report contradicts itself: {what}" for what in tap.disorder]
    return tap.complete
