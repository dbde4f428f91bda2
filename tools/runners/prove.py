"""Perl tests, as prove runs them: each file by itself, in Perl, with TAP as report. prove itself would only add text.

A module under test can print a whole report and end the process. So a module of m3agent (`M3Witness.pm`) notes which
results Test::Builder gave, from which file, and whether the program came to its end. There is a sign if results were
printed that Test::Builder did not give, if a result comes from a file that is no test, or if the program ended before.
Old tests that print their results have the first sign always; it counts if a run without the patch has none.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from m3agent.tools.runners.base import Command, Job, Preparation, Reading, Suite, Tree, Unit, topmost
from m3agent.tools.runners.file_runner import FileRunner, sandbox_file
from m3agent.tools.runners.path_rules import RULES
from m3agent.tools.runners.programs import PATIENCE, StepRunner, add_end, steps_command, text_of
from m3agent.tools.runners.report_formats import read_tap

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
        tests = (f"/{path}" for path in tree.paths if path.endswith(".t"))
        return topmost(path.rpartition("/t/")[0].removeprefix("/") for path in tests if "/t/" in path)

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files in the folder `t` of a root."""
        start = f"{root}/t/" if root else "t/"
        return sorted(path for path in tree.paths if path.startswith(start) and path.endswith(".t"))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Perl; modules of CPAN must come from the system's packages."""
        code = any(path.endswith(".xs") for path in tree.paths)
        return Preparation(
            system_packages=("perl",),
            notices=("the distribution has XS code, which is not built",) if code else (),
        )

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
            _read(job.suite, path, step, reading)


def _switches(text: str) -> list[str]:
    """Return the switches of a program's first line that must be on the command line too."""
    match = _SHEBANG.match(text)
    return [f"-{letter}" for letter in "tT" if match and letter in (match[1] or "")]


def _read(suite: Suite, path: str, step: Mapping[str, Any], reading: Reading) -> None:
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
