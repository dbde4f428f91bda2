"""Run tests of Swift packages (`swift test`). Untried: written by the documentation.

XCTest's results are read from what it prints, because SwiftPM's own report shows skipped tests as passed (before Swift 6.1)
and exists only for parallel runs. Swift Testing's are read from SwiftPM's report. Both run in the process of the code under
test, which can print or write the same. So the results must agree with the summary and with the exit status.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import Command, Job, Preparation, Reading, Result, Suite, Tree, Unit, ident_of
from m3agent.tools.runners.records import OUTCOMES
from m3agent.tools.runners.report_formats import read_junit
from m3agent.tools.runners.steps import StepRunner, files_in, first_errors, steps_command, text_of

MANIFEST = "Package.swift"
_CASE = re.compile(r"^Test Case '(\w[\w.]*)\.(\w+)' (started|passed|failed|skipped)\b", re.MULTILINE)
_ERROR = re.compile(r"^(.+?:\d+: error: (\w[\w.]*)\.(\w+) : .*)$", re.MULTILINE)
_SUMMARY = re.compile(
    r"^\t? *Executed (\d+) tests?, with (?:(\d+) tests? skipped and )?(\d+) failures?", re.MULTILINE
)


class SwiftPackage(StepRunner):
    """`swift test`."""

    name = "swift"
    language = "Swift"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each package with a test target."""
        return [
            Suite(self.name, posixpath.dirname(path), f"a test target in {path}")
            for path in tree.named(MANIFEST)
            if ".testTarget(" in tree.text(path) and ".build" not in path.split("/")
        ]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the command that fetches the dependencies, if there are any."""
        manifest, lock = suite.path(MANIFEST), suite.path("Package.resolved")
        if ".package(" not in tree.text(manifest):
            return Preparation(system_packages=("swiftlang",))
        return Preparation(
            system_packages=("swiftlang", "git"),
            commands=(("swift", "package", "resolve"),),
            inputs=tree.present(manifest, lock),
            keep=(".build",),
        )

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for the whole package: its tests are one program."""
        log, report = f"{job.work}/tests.log", f"{job.work}/tests.xml"
        shell = 'log=$1; shift; rm -f "${log%.log}"*; exec "$@" > "$log" 2>&1'
        argv = [
            *("sh", "-c", shell, "sh", log, "swift", "test", "--disable-automatic-resolution"),
            *("--no-parallel", "--xunit-output", report),
        ]
        steps: list[Mapping[str, Any]] = [
            {"name": "tests", "argv": argv, "cwd": job.suite.folder, "seconds": job.limits.total},
            {"name": "reports", "collect": [log, f"{job.work}/tests*.xml"]},
        ]
        return [steps_command(steps, job.work, "swift")]

    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Read what the tests printed, and SwiftPM's report."""
        step, files = done.get("tests", {}), files_in(done, "reports")
        log = next((text for path, text in files.items() if path.endswith(".log")), "")
        whole = _read_xctest(job.suite, job.tree, log, reading)
        for path, text in sorted(files.items()):
            if path.endswith("-swift-testing.xml"):
                whole &= _read_swift_testing(job.suite, job.tree, text, reading)
        reading.ended &= whole and not step.get("timed_out")
        if not reading.results:
            reading.problem = f"the tests did not run\n{first_errors(log or text_of(step))}"
        elif step.get("exit") != 0 and not reading.is_red:
            reading.problem = f"no test failed, but `swift test` ended with {step.get('exit')}"
        elif step.get("exit") == 0 and reading.is_red:
            reading.tampering.append("it ended with 0 although a test failed")


def _read_xctest(suite: Suite, tree: Tree, log: str, reading: Reading) -> bool:
    """Read what XCTest printed; return whether its last summary agrees with the results."""
    errors: dict[tuple[str, str], list[str]] = {}
    for text, group, name in _ERROR.findall(log):
        errors.setdefault((group, name), []).append(text)
    ended = skipped = 0
    for group, name, what in _CASE.findall(log):
        ident = ident_of(_swift_file(suite, tree, group), [group, name])
        if what == "started":
            reading.started.append(ident)
            continue
        ended += 1
        skipped += what == "skipped"
        text = "\n".join(errors.get((group, name), ()))
        reading.results.append(Result(ident, OUTCOMES[what], text))
    summaries = _SUMMARY.findall(log)
    if not ended and not summaries:
        return True  # no test of XCTest
    return bool(summaries) and summaries[-1][:2] == (str(ended), str(skipped) if skipped else "")


def _read_swift_testing(suite: Suite, tree: Tree, report: str, reading: Reading) -> bool:
    cases, ended = read_junit(report.encode())
    for case in cases:
        reading.add(_swift_file(suite, tree, case.group), [case.group, case.name], case.outcome, case.text)
    return ended


def _swift_file(suite: Suite, tree: Tree, group: str) -> str:
    """Return the test file with the name of a class or of a suite in it; the manifest unless there is exactly one."""
    names = {f"{part}.swift" for part in group.split(".")}
    files = [path for path in tree.below(suite.path("Tests"), ".swift") if posixpath.basename(path) in names]
    return files[0] if len(files) == 1 else suite.path(MANIFEST)
