"""Tests in files that print TAP: shell tests with bats, and Perl's as prove runs them. Each file runs by itself.

Code under test of bats runs in the same shell as the tests. So it may print lines of the report (to descriptor 3), or replace the
commands that let a test fail: `[`, `test`, `false`, `run`, or the shell's option `errexit`. Therefore:

- a report in which a number occurs twice or out of order, or with more or fewer tests than the file, is suspicious;
- each test runs once more with lines at its end that must make it fail. If it passes, the commands were replaced.

Limit: code that recognises these lines, or that replaces commands only of some test libraries, is not found.

Perl runs the files itself; prove would only add text. A module under test can print a whole report and end the process. So a
module of m3agent (`M3Witness.pm`) notes which results Test::Builder gave, from which file, and whether the program came to its
end. There is a sign if results were printed that Test::Builder did not give, if a result comes from a file that is no test, or if
the program ended before. Old tests that print their results have the first sign always; it counts if a run without the patch has
none.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from m3agent.tools.runners.base import (
    Command,
    Job,
    Preparation,
    Reading,
    Suite,
    Tree,
    Unit,
    topmost,
    words_of,
)
from m3agent.tools.runners.file_runner import FileRunner, sandbox_file
from m3agent.tools.runners.path_rules import RULES
from m3agent.tools.runners.programs import PATIENCE
from m3agent.tools.runners.report_formats import read_tap
from m3agent.tools.runners.steps import StepRunner, add_end, steps_command, text_of

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
        return [path for path in tree.below("", ".bats") if _FOREIGN.isdisjoint(path.split("/"))]

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
                _read_bats(job.tree, name, step, reading)
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


def _read_bats(tree: Tree, path: str, step: Mapping[str, Any], reading: Reading) -> None:
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


_PERL = re.compile(r"^#!.*\bperl\b|^[ \t]*use[ \t]+(?:strict|warnings|Test|v?5)", re.MULTILINE)
_SHEBANG = re.compile(r"^#!.*\bperl\d*(?:\s+-([A-Za-z]+))?")


class ProveRunner(StepRunner, FileRunner):
    """Perl's prove."""

    name = "prove"
    language = "Perl"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each folder that has a folder `t` with Perl tests."""
        suites = []
        for root in self.roots(tree):
            first = next((path for path in self.files(tree, root) if _PERL.search(tree.text(path))), None)
            suites += [Suite(self.name, root, f"{first} is a Perl test")] if first else []
        return suites

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the topmost folders that have a folder `t` with tests."""
        tests = (f"/{path}" for path in tree.below("", ".t"))
        return topmost(path.rpartition("/t/")[0].removeprefix("/") for path in tests if "/t/" in path)

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files in the folder `t` of a root."""
        return tree.below(posixpath.join(root, "t"), ".t")

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Perl; modules of CPAN must come from the system's packages."""
        code = tree.below("", ".xs")
        notices = ("the distribution has XS code, which is not built",) if code else ()
        return Preparation(system_packages=("perl",), notices=notices)

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command that runs the files, one after the other."""
        steps = []
        for number, path in enumerate(job.targets or self.files(job.tree, job.suite.root)):
            inner, events = job.suite.within(path), f"{job.work}/events-{number}"
            env = {"PERL5OPT": f"-I{job.work} -MM3Witness", "M3AGENT_TEST": inner, "M3AGENT_EVENTS": events}
            argv = ["perl", *_switches(job.tree.text(path)), "-Ilib", inner]
            step = {"name": path, "argv": argv, "cwd": job.suite.folder, "env": env, "report": events}
            steps.append({**step, "seconds": job.limits.per_test * PATIENCE})
        witness = {f"{job.work}/M3Witness.pm": sandbox_file("M3Witness.pm")}
        command = steps_command(steps, job.work, "run")
        return [replace(command, files={**command.files, **witness})]

    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Read the report of each file."""
        for path, step in done.items():
            _read_prove(job.suite, path, step, reading)


def _switches(text: str) -> list[str]:
    """Return the switches of a program's first line that must be on the command line too."""
    match = _SHEBANG.match(text)
    return [f"-{letter}" for letter in "tT" if match and letter in (match[1] or "")]


def _read_prove(suite: Suite, path: str, step: Mapping[str, Any], reading: Reading) -> None:
    reading.planned.add(path)
    reading.reported.add(path)
    tap = read_tap(text_of(step))
    names = Counter[str]()
    for point in tap.points:
        name = point.name or f"test {point.number}"
        names[name] += 1
        part = f"{name} #{names[name]}" if names[name] > 1 else name
        reading.add(path, [part], point.outcome, point.text)
    if tap.planned == 0 and step.get("exit") == 0 and not step.get("timed_out"):
        reading.add(path, [], "skipped", tap.reason)
    else:
        add_end(reading, path, step, red=tap.red, complete=tap.complete)
    reading.tampering += [f"{path}: {what} in its report" for what in tap.disorder]
    if not tap.red and step.get("exit") == 0:
        events = text_of(step, "report").splitlines()
        reading.tampering += [f"{path}: {sign}" for sign in _signs(suite, events, len(tap.points))]


def _signs(suite: Suite, events: Sequence[str], printed: int) -> Iterator[str]:
    """Yield signs of tampering in the events of a program that printed a number of results and ended with 0."""
    if events[-1:] != ["end"]:
        yield "the program ended before its end"
    results = [event.split(" ", 2) for event in events if event.startswith("result ")]
    if len(results) != printed:
        yield "it printed results that Test::Builder did not give"
    for place in sorted({result[2] for result in results if len(result) == 3}):
        inner = suite.path(posixpath.normpath(suite.in_tree(place)))
        if not RULES["prove"].is_test(inner):
            yield f"results come from {inner}, which is no test"
