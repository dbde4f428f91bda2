"""Perl tests, as prove runs them: each file by itself, in Perl, with TAP as report. prove itself would only add text.

A module under test can print a whole report and end the process. So a module of m3agent (`M3Witness.pm`) notes which
results Test::Builder gave, from which file, and whether the program came to its end. There is a sign if results were
printed that Test::Builder did not give, if a result comes from a file that is no test, or if the program ended before.
Old tests that print their results have the first sign always; it counts if a run without the patch has none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
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
from m3agent.tools.runners.driver import sandbox_file
from m3agent.tools.runners.programs import PATIENCE, read_steps, steps_command, text_of
from m3agent.tools.runners.records import ident_of
from m3agent.tools.runners.tap import read_tap

MANIFESTS = ("Makefile.PL", "Build.PL", "cpanfile", "dist.ini", "META.json", "META.yml", "MANIFEST")
_PERL = re.compile(r"^#!.*\bperl\b|^[ \t]*use[ \t]+(?:strict|warnings|Test|v?5)", re.MULTILINE)
_SHEBANG = re.compile(r"^#!.*\bperl\d*(?:\s+-([A-Za-z]+))?")


class ProveRunner(Runner):
    """Perl's prove."""

    name: ClassVar[str] = "prove"
    language: ClassVar[str] = "Perl"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each folder that has a folder `t` with Perl tests."""
        roots = {
            path.rpartition("/t/")[0] if "/t/" in path else ""
            for path in sorted(tree.paths)
            if _is_file(path)
        }
        suites = []
        for root in sorted(roots):
            suite = Suite(self.name, root)
            first = next((path for path in _files(suite, tree) if _PERL.search(tree.text(path))), None)
            if first and not any(root.startswith(f"{other}/") or not other for other in roots - {root}):
                suites.append(Suite(self.name, root, f"{first} is a Perl test"))
        return suites

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Perl; modules of CPAN must come from the system's packages."""
        code = any(path.endswith(".xs") for path in tree.paths)
        return Preparation(
            system_packages=("perl",),
            notices=("the distribution has XS code, which is not built",) if code else (),
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        *folders, name = path.split("/")
        return name.endswith(".t") or any(folder in ("t", "xt") for folder in folders)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return path.rpartition("/")[2] in (".proverc", ".perldb", "sitecustomize.pl")

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the test files of the wanted tests."""
        places = {target.partition("::")[0] for target in wanted}
        return tuple(
            path
            for path in _files(suite, tree)
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
        """Return one command that runs the files, one after the other."""
        steps = []
        for number, path in enumerate(targets or _files(suite, tree)):
            events = f"{work}/events-{number}"
            env = {
                "PERL5OPT": f"-I{work} -MM3Witness",
                "M3AGENT_TEST": suite.within(path),
                "M3AGENT_EVENTS": events,
            }
            steps.append(
                {
                    "name": path,
                    "argv": ["perl", *_switches(tree.text(path)), "-Ilib", suite.within(path)],
                    "cwd": suite.folder,
                    "env": env,
                    "seconds": limits.per_test * PATIENCE,
                    "report": events,
                }
            )
        witness = sandbox_file("M3Witness.pm")
        command = steps_command(steps, work, "run")
        return [replace(command, files={**command.files, f"{work}/M3Witness.pm": witness})]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the report of each file."""
        reading = Reading(ended=bool(outputs))
        for output in outputs:
            done, ended = read_steps(output)
            reading.ended &= ended
            for path, step in done.items():
                _read(self, suite, path, step, reading)
        return reading


def _switches(text: str) -> list[str]:
    """Return the switches of a program's first line that must be on the command line too."""
    match = _SHEBANG.match(text)
    return [f"-{letter}" for letter in "tT" if match and letter in (match[1] or "")]


def _is_file(path: str) -> bool:
    return path.endswith(".t") and "t" in path.split("/")[:-1]


def _files(suite: Suite, tree: Tree) -> tuple[str, ...]:
    start = suite.path("t/")
    return tuple(sorted(path for path in tree.paths if path.startswith(start) and path.endswith(".t")))


def _read(runner: ProveRunner, suite: Suite, path: str, step: Mapping[str, Any], reading: Reading) -> None:
    reading.planned.add(path)
    reading.reported.add(path)
    tap = read_tap(text_of(step))
    names: dict[str, int] = {}
    for point in tap.points:
        name = point.name or f"test {point.number}"
        names[name] = names.get(name, 0) + 1
        part = f"{name} #{names[name]}" if names[name] > 1 else name
        reading.results.append(Result(ident_of(path, [part]), point.outcome, point.text))
    red = any(point.outcome == "failed" for point in tap.points)
    if step.get("timed_out"):
        reading.results.append(Result(path, "error", "timed out"))
    elif tap.planned == 0 and step.get("exit") == 0:
        reading.results.append(Result(path, "skipped", tap.reason))
    elif not tap.complete or (step.get("exit") != 0 and not red):
        reading.results.append(Result(path, "error", text_of(step)[-2000:]))
    elif step.get("exit") == 0 and red:
        reading.tampering.append(f"{path}: it ended with 0 although a test failed")
    reading.tampering += [f"{path}: {what} in its report" for what in tap.disorder]
    if red or step.get("exit") != 0:
        return
    events = text_of(step, "report").splitlines()
    results = [event.split(" ", 2) for event in events if event.startswith("result ")]
    if not events or events[-1] != "end":
        reading.tampering.append(f"{path}: the program ended before its end")
    if len(results) != len(tap.points):
        reading.tampering.append(f"{path}: it printed results that Test::Builder did not give")
    for place in sorted({result[2] for result in results if len(result) == 3}):
        inner = suite.path(posixpath.normpath(suite.in_tree(place)))
        if not runner.is_test(inner):
            reading.tampering.append(f"{path}: results come from {inner}, which is no test")
