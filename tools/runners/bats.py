"""Shell tests with bats. Each file runs by itself; its report is TAP, which bats streams.

Code under test runs in the same shell as the tests. So it may print lines of the report (to descriptor 3), or replace the
commands that let a test fail: `[`, `test`, `false`, `run`, or the shell's option `errexit`. Therefore:

- a report in which a number occurs twice or out of order, or with more or fewer tests than the file, is suspicious;
- each test runs once more with lines at its end that must make it fail. If it passes, the commands were replaced.

Limit: code that recognises these lines, or that replaces commands only of some test libraries, is not found.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import Command, Job, Preparation, Reading, Suite, Tree, Unit, words_of
from m3agent.tools.runners.file_runner import FileRunner
from m3agent.tools.runners.programs import PATIENCE, StepRunner, add_end, steps_command, text_of
from m3agent.tools.runners.report_formats import read_tap

_LATE = re.compile(r" # timeout after \d+s$")
_FOREIGN = words_of(
    "bats bats-core bats-support bats-assert bats-file bats-mock node_modules vendor fixtures"
)
"""Folders with copies of bats and its libraries, which have tests of their own, and with data of others."""
CANARIES = {
    "commands": "[ m3 = agent ] || test m3 = agent || [[ m3 == agent ]] || { run false; [[ ${status-} == 0 ]]; } || false",
    "errexit": "false\ntrue",
}
"""Lines that must make every test fail, by what they check."""


class BatsRunner(StepRunner, FileRunner):
    """The Bash Automated Testing System. One suite has all test files."""

    name = "bats"
    language = "shell"
    evidence = "{first} is a test of bats"

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the repository's root."""
        return ("",)

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return all test files that are the repository's own."""
        found = (path for path in tree.paths if path.endswith(".bats"))
        return sorted(path for path in found if _FOREIGN.isdisjoint(path.split("/")))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return bats, and the libraries that tests name."""
        text = "\n".join(map(tree.text, self.files(tree, "")))
        libraries = [name for name in ("bats-support", "bats-assert", "bats-file") if name in text]
        return Preparation(system_packages=("bats", *libraries))

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command that runs the files, one after the other, and then the canaries."""
        tests, canaries = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
        per_test, folder = job.limits.per_test, job.suite.work_tree
        base = {"cwd": folder, "env": {"BATS_TEST_TIMEOUT": str(max(1, round(per_test)))}}
        bats = ["bats", "--formatter", "tap"]
        for path in self.chosen(job):
            text = job.tree.text(path)
            seconds = per_test * min(max(1, len(_names(text))) + 1, 20 * PATIENCE)
            tests.append({**base, "name": path, "argv": [*bats, path], "seconds": seconds})
            for kind, content in _with_canaries(text).items():
                inner, name = posixpath.split(path)
                copy = posixpath.join(folder, inner, f"m3agent-{kind}-{name}")
                step = {"name": f"canary\t{kind}\t{path}", "argv": [*bats, copy], "write": {copy: content}}
                canaries.append({**base, **step, "seconds": per_test * PATIENCE})
        return [steps_command([*tests, *canaries], job.work, "run")]

    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Read the report of each file."""
        for name, step in done.items():
            if not name.startswith("canary\t"):
                _read(job.tree, name, step, reading)
                continue
            _, kind, path = name.split("\t", 2)
            tap = read_tap(text_of(step))
            reading.tampering += [
                f"{path}::{test.name} passed although its last line fails ({kind})"
                for test in tap.points
                if test.outcome == "passed" and not tap.disorder
            ]


def _name(line: str) -> str | None:
    """Return the name of the test that begins in a line; None if none does."""
    words = line.strip()
    if not words.startswith(("@test ", "@test\t")):
        return None
    head, brace, rest = words.removeprefix("@test").rpartition("{")
    if not brace or not head.endswith((" ", "\t")) or rest.strip()[:1] not in ("", "#"):
        return None
    return re.sub(r"\\(.)", r"\1", head.strip().strip("\"'"))


def _names(text: str) -> list[str]:
    """Return the names of a file's tests."""
    return [name for name in map(_name, text.splitlines()) if name]


def _with_canaries(text: str) -> dict[str, str]:
    """Return copies of a test file whose tests must all fail, by what they check."""
    copies = {}
    for kind, lines in CANARIES.items():
        if kind == "errexit" and "set +e" in text:
            continue  # the tests themselves do not end at the first failure
        inside = False
        out = []
        for line in text.splitlines():
            if inside and line == "}":
                out.append(lines)
                inside = False
            elif _name(line):
                inside = True
            out.append(line)
        if not inside and _names(text):  # each test ends with a line of its own
            copies[kind] = "\n".join(out) + "\n"
    return copies


def _read(tree: Tree, path: str, step: Mapping[str, Any], reading: Reading) -> None:
    tap, names = read_tap(text_of(step)), _names(tree.text(path))
    reading.planned.add(path)
    reading.reported.add(path)
    for point in tap.points:
        late = _LATE.search(point.name)
        reading.add(path, [_LATE.sub("", point.name)], point.outcome, "timed out" if late else point.text)
    reading.tampering += [f"{path}: {what} in its report" for what in tap.disorder]
    if tap.planned is not None and tap.planned != len(names):
        reading.tampering.append(f"{path}: its report has {tap.planned} tests, the file has {len(names)}")
    elif tap.planned is not None:
        numbers = {point.number for point in tap.points}
        for name in (name for number, name in enumerate(names, 1) if number not in numbers):
            reading.add(path, [name], "failed", "it has no result")
    count = f"{len(tap.points)} of {tap.planned or 'an unknown number of'} tests have a result"
    text = f"{count}\n{text_of(step)[-2000:]}"
    add_end(reading, path, step, red=tap.red, complete=tap.complete, text=text)
