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
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from m3agent.tools.runners.base import (
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Result,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.programs import PATIENCE, read_steps, steps_command, text_of
from m3agent.tools.runners.records import ident_of
from m3agent.tools.runners.tap import Tap, read_tap

_LATE = re.compile(r" # timeout after \d+s$")
_FOREIGN = frozenset({"bats", "bats-core", "bats-support", "bats-assert", "bats-file", "bats-mock"})
"""Folders with copies of bats and its libraries, which have tests of their own."""
CANARIES = {
    "commands": "[ m3 = agent ] || test m3 = agent || [[ m3 == agent ]] || { run false; [[ ${status-} == 0 ]]; } || false",
    "errexit": "false\ntrue",
}
"""Lines that must make every test fail, by what they check."""


class BatsRunner(Runner):
    """The Bash Automated Testing System."""

    name: ClassVar[str] = "bats"
    language: ClassVar[str] = "shell"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return one suite with all test files."""
        files = _files(tree)
        return [Suite(self.name, "", f"{files[0]} is a test of bats")] if files else []

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return bats, and the libraries that tests name."""
        text = "\n".join(tree.text(path) for path in _files(tree))
        libraries = [name for name in ("bats-support", "bats-assert", "bats-file") if name in text]
        return Preparation(system_packages=("bats", *libraries))

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        *folders, name = path.split("/")
        return name.endswith((".bats", ".bash")) or any(f in ("test", "tests", "spec") for f in folders)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return path.rpartition("/")[2] in (
            ".batsrc",
            ".bash_profile",
            ".bashrc",
            ".env",
        ) or ".bats" in path.split("/")

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the test files of the wanted tests."""
        places = {target.partition("::")[0] for target in wanted}
        return tuple(
            path
            for path in _files(tree)
            if any(path == place or place in ("", ".") or path.startswith(f"{place}/") for place in places)
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
        """Return one command that runs the files, one after the other, and then the canaries."""
        files = targets or _files(tree)
        steps: list[Mapping[str, Any]] = []
        env = {"BATS_TEST_TIMEOUT": str(max(1, round(limits.per_test)))}
        for path in files:
            count = max(1, len(_names(tree.text(path))))
            seconds = limits.per_test * min(count + 1, 20 * PATIENCE)
            base = {"cwd": suite.work_tree, "seconds": seconds, "env": env}
            steps.append({**base, "name": path, "argv": ["bats", "--formatter", "tap", path]})
        for path in files:
            for kind, text in _with_canaries(tree.text(path)).items():
                folder = posixpath.join(suite.work_tree, posixpath.dirname(path))
                copy = posixpath.join(folder, f"m3agent-{kind}-{posixpath.basename(path)}")
                argv = ["bats", "--formatter", "tap", copy]
                seconds = limits.per_test * PATIENCE
                canary = {
                    "name": f"canary\t{kind}\t{path}",
                    "argv": argv,
                    "cwd": suite.work_tree,
                    "seconds": seconds,
                    "env": env,
                }
                steps.append({**canary, "write": {copy: text}})
        return [steps_command(steps, work, "run")]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the report of each file."""
        reading = Reading(ended=bool(outputs))
        for output in outputs:
            done, ended = read_steps(output)
            reading.ended &= ended
            for name, step in done.items():
                if name.startswith("canary\t"):
                    _, kind, path = name.split("\t", 2)
                    canaries = read_tap(text_of(step))
                    for test in canaries.points:
                        if test.outcome == "passed" and not canaries.disorder:
                            reading.tampering.append(
                                f"{path}::{test.name} passed although its last line fails ({kind})"
                            )
                else:
                    _read(tree, name, step, reading)
        return reading


def _files(tree: Tree) -> tuple[str, ...]:
    found = [
        path for path in tree.paths if path.endswith(".bats") and _FOREIGN.isdisjoint(path.split("/")[:-1])
    ]
    return tuple(
        sorted(path for path in found if {"node_modules", "vendor", "fixtures"}.isdisjoint(path.split("/")))
    )


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
    tap = read_tap(text_of(step))
    reading.planned.add(path)
    for point in tap.points:
        ident = ident_of(path, [_LATE.sub("", point.name)])
        reading.results.append(
            Result(ident, point.outcome, "timed out" if _LATE.search(point.name) else point.text)
        )
    reading.tampering += [f"{path}: {what} in its report" for what in tap.disorder]
    names = _names(tree.text(path))
    if tap.planned is not None and tap.planned != len(names):
        reading.tampering.append(f"{path}: its report has {tap.planned} tests, the file has {len(names)}")
    elif tap.planned is not None:
        numbers = {point.number for point in tap.points}
        lost = [name for number, name in enumerate(names, 1) if number not in numbers]
        reading.results += [Result(ident_of(path, [name]), "failed", "it has no result") for name in lost]
    reading.reported.add(path)
    red = any(point.outcome == "failed" for point in tap.points)
    if not tap.complete or step.get("timed_out") or (step.get("exit") != 0 and not red):
        reading.results.append(Result(path, "error", _why(tap, step)))
    elif step.get("exit") == 0 and red:
        reading.tampering.append(f"{path}: bats ended with 0 although a test failed")


def _why(tap: Tap, step: Mapping[str, Any]) -> str:
    if step.get("timed_out"):
        return "timed out"
    return f"{len(tap.points)} of {tap.planned or 'an unknown number of'} tests have a result\n{text_of(step)[-2000:]}"
