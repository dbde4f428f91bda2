"""A command that the repository names, for ecosystems without a runner of their own.

In `pyproject.toml`, table `[tool.m3agent.tests]`, or in `.m3agent.toml`, table `[tests]`:

    command = "./run-tests --junit {report}"   # or a list of words
    report = "junit"                           # or "tap"
    file = "build/report.xml"                  # if the command cannot write to {report}
    leave_out = ["jest", "go:tools"]           # runners or suites that are found here and shall not run

The command runs instead of the suites that other runners find (`suites.running`).

`{report}` is a new path outside the work tree. Without it and without `file`, the report is what the command prints. Only
the report counts: a command that ends with 0 and reports nothing did not run. Nothing is known about the program behind
the command, so code under test that writes a whole false report by itself is found only if the report contradicts itself
or the exit status, or if tests of the base tree are missing in it.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from m3agent.tools.runners import c_files
from m3agent.tools.runners.base import Command, Limits, Output, Reading, Result, Runner, Suite, Tree, Unit
from m3agent.tools.runners.junit import read_junit
from m3agent.tools.runners.programs import read_steps, steps_command, text_of
from m3agent.tools.runners.records import ident_of
from m3agent.tools.runners.tap import read_tap

OWN_FILE = ".m3agent.toml"
REPORTS = ("junit", "tap")
PLACE = "{report}"


class CommandRunner(Runner):
    """A command of the repository."""

    name: ClassVar[str] = "command"
    language: ClassVar[str] = "any"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return the suite that the repository's configuration describes."""
        for path, table in _tables(tree):
            options = _options(table)
            if options:
                return [Suite(self.name, "", f"tests.command in {path}", {**options, "configuration": path})]
        return []

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by the names that most languages use."""
        return c_files.is_test(path)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return path == OWN_FILE or path.rpartition("/")[2] in (
            "Makefile",
            "GNUmakefile",
            "justfile",
            "Taskfile.yml",
        )

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return the command."""
        report = f"{work}/report"
        words = [word.replace(PLACE, report) for word in json.loads(suite.options["command"])]
        file = suite.options.get("file", "")
        step = {
            "name": "tests",
            "argv": words,
            "cwd": suite.folder,
            "report": posixpath.normpath(f"{suite.work_tree}/{file}") if file else report,
        }
        return [steps_command([step], work, "run")]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the report."""
        reading = Reading()
        for output in outputs:
            done, reading.ended = read_steps(output)
            step = done.get("tests", {})
            report = text_of(step, "report")
            if not report and PLACE not in suite.options["command"] and "file" not in suite.options:
                report = text_of(step)
            whole = (_read_junit if suite.options["report"] == "junit" else _read_tap)(
                suite, tree, report, reading
            )
            reading.ended &= whole and step.get("timed_out") is False
            red = any(result.outcome in ("failed", "error") for result in reading.results)
            if step.get("timed_out"):
                reading.problem = "the command did not end in time"
            elif not reading.results:
                reading.problem = f"the command reported no test\n{text_of(step)[-2000:]}"
            elif step.get("exit") != 0 and not red:
                reading.problem = f"no test failed, but the command ended with {step.get('exit')}"
        return reading


def left_out_of(tree: Tree) -> frozenset[str]:
    """Return the names of runners and suites that the repository's configuration leaves out."""
    lists = [_table(table, "leave_out") for _, table in _tables(tree)]
    return frozenset(
        name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)
    )


def _tables(tree: Tree) -> list[tuple[str, Any]]:
    """Return the values of the table, each with the path of its file, the preferred one first."""
    project = tree.toml("pyproject.toml")
    return [
        (OWN_FILE, tree.toml(OWN_FILE).get("tests")),
        ("pyproject.toml", _table(_table(_table(project, "tool"), "m3agent"), "tests")),
    ]


def _table(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


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


def _read_junit(suite: Suite, tree: Tree, report: str, reading: Reading) -> bool:
    cases, ended = read_junit(report.encode())
    for case in cases:
        file, group = _place(suite, tree, case.file, case.group)
        names = [group, case.name] if group else [case.name]
        reading.results.append(Result(ident_of(file, names), case.outcome, case.text))
    return ended


def _place(suite: Suite, tree: Tree, file: str, group: str) -> tuple[str, str]:
    """Return the file of a test, and the name of its group if the file does not say it."""
    path = posixpath.normpath(suite.in_tree(file)) if file else ""
    if path in tree.paths:
        return path, group
    if group in tree.paths:
        return group, ""
    inner = group.replace(".", "/").replace("::", "/")
    found = sorted(p for p in tree.paths if inner and f"/{posixpath.splitext(p)[0]}".endswith(f"/{inner}"))
    return (found[0], "") if len(found) == 1 else (suite.options["configuration"], group)


def _read_tap(suite: Suite, tree: Tree, report: str, reading: Reading) -> bool:
    tap = read_tap(report)
    for point in tap.points:
        ident = ident_of(suite.options["configuration"], [point.name or str(point.number)])
        reading.results.append(Result(ident, point.outcome, point.text))
    reading.tampering += [f"the report contradicts itself: {what}" for what in tap.disorder]
    return tap.complete
