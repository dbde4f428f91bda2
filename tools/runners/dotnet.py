"""Run tests of .NET (`dotnet test`). Untried: written by the documentation.

.NET runs VSTest, and each test project is a unit with a TRX report of its own. The process that writes the report runs no code of
tests, but code under test can find the file and replace it. So the report must agree with itself and with the exit status.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import (
    Command,
    Job,
    Outcome,
    Preparation,
    Reading,
    Suite,
    Tree,
    Unit,
    is_within,
    place_of,
    topmost,
)
from m3agent.tools.runners.file_runner import FileRunner
from m3agent.tools.runners.report_formats import Element, parse_xml
from m3agent.tools.runners.steps import StepRunner, add_end, files_in, first_errors, steps_command, text_of

PROJECT = (".csproj", ".fsproj", ".vbproj")
SOURCE = (".cs", ".fs", ".vb")
_TESTS = re.compile(r"Microsoft\.NET\.Test\.Sdk|<IsTestProject>\s*true", re.IGNORECASE)
_FRAMEWORKS = re.compile(r"<TargetFrameworks>([^<]*)</TargetFrameworks>")
_MODERN = re.compile(r"net(\d+)\.(\d+)$")
_INPUT = re.compile(
    r"\.(csproj|fsproj|vbproj|props|targets)$|(^|/)(global\.json|nuget\.config|packages\.lock\.json)$",
    re.IGNORECASE,
)
PACKAGES = ".nuget/packages"
"""Folder for what NuGet fetches, in the suite's root."""
TRX_OUTCOMES: Mapping[str, Outcome] = {
    "Passed": "passed",
    "Failed": "failed",
    "Timeout": "failed",
    "Aborted": "failed",
    "NotExecuted": "skipped",
    "Inconclusive": "skipped",
}
"""The outcomes by TRX's words (the schema vstst.xsd has more); every other word is an error."""
QUIET = {
    "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
    "DOTNET_CLI_USE_MSBUILD_SERVER": "0",
    "DOTNET_NOLOGO": "1",
    "DOTNET_SKIP_FIRST_TIME_EXPERIENCE": "1",
    "MSBUILDDISABLENODEREUSE": "1",
}
"""Variables that keep servers from outliving their command, and greetings out of the output."""


class Dotnet(StepRunner, FileRunner):
    """`dotnet test`. The files are the test projects."""

    name = "dotnet"
    language = ".NET"
    evidence = "{count} test projects such as {first}"

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return each topmost folder with a solution, and that of each test project outside of them."""
        solutions = set(map(posixpath.dirname, tree.below("", ".sln", ".slnx")))
        return topmost(
            min((folder for folder in solutions if is_within(path, folder)), default=posixpath.dirname(path))
            for path in self.files(tree, "")
        )

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test projects below a folder."""
        sources = (path for path in tree.below(root, *PROJECT) if not {"bin", "obj"} & {*path.split("/")})
        return [path for path in sources if _TESTS.search(tree.text(path))]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the commands that restore the packages of the test projects. Debian has no SDK."""
        inputs = sorted(path for path in tree.paths if _INPUT.search(path))
        return Preparation(
            system_packages=("dotnet-sdk-8.0",),
            commands=tuple(
                ("dotnet", "restore", suite.within(path)) for path in self.files(tree, suite.root)
            ),
            inputs=tuple(inputs),
            keep=(PACKAGES,),
            env={**QUIET, "NUGET_PACKAGES": f"{suite.folder}/{PACKAGES}"},
            notices=("the SDK of .NET must be in the image: name one with --image",),
        )

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the projects of the wanted tests; empty if one of them is in no test project."""
        mine = self.files(tree, suite.root)
        chosen: set[str] = set()
        for path in map(place_of, wanted):
            owners = [project for project in mine if is_within(path, posixpath.dirname(project))]
            below = [project for project in mine if path == "." or is_within(project, path)]
            if not owners and not below:
                return ()
            chosen.update(owners[-1:] or below)
        return tuple(sorted(chosen)) if len(chosen) < len(mine) else ()

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command that builds and runs the projects, one after the other."""
        steps: list[Mapping[str, Any]] = []
        for number, path in enumerate(job.targets or self.files(job.tree, job.suite.root)):
            folder = f"{job.work}/dotnet-{number}"
            argv = [
                *("sh", "-c", 'rm -rf "$1"; shift; exec "$@"', "sh", folder),
                *("dotnet", "test", job.suite.within(path), "--logger", "trx", "--results-directory", folder),
                *(
                    "--blame-hang-timeout",
                    f"{job.limits.per_test * 4:.0f}s",
                    "--blame-hang-dump-type",
                    "none",
                ),
                *("-p:RestoreIgnoreFailedSources=true", "-p:UseSharedCompilation=false"),
                *_framework(job.tree.text(path)),
            ]
            step = {"name": path, "cwd": job.suite.folder, "seconds": job.limits.total}
            steps += [
                {**step, "argv": argv, "env": {"DOTNET_CLI_HOME": f"{job.work}/home"}},
                {"name": f"reports {path}", "collect": [f"{folder}/*.trx"]},
            ]
        return [steps_command(steps, job.work, "dotnet")]

    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Read the reports of each project."""
        for name, step in done.items():
            if name.endswith(PROJECT) and f"reports {name}" in done:
                reports = [*files_in(done, f"reports {name}").values()]
                _read_project(job.tree, name, step, reports, reading)


def _framework(project: str) -> list[str]:
    """Return the option that runs a project for its newest framework only; none if it has only one.

    Several runs would write several reports with the same tests.
    """
    named = _FRAMEWORKS.search(project)
    names = [name.strip() for name in named[1].split(";")] if named else []
    modern = [(int(match[1]), int(match[2]), name) for name in names if (match := _MODERN.match(name))]
    return ["--framework", max(modern)[2]] if modern else []


def _read_project(
    tree: Tree, project: str, step: Mapping[str, Any], reports: Sequence[str], reading: Reading
) -> None:
    reading.planned.add(project)
    root = parse_xml(reports[0].encode()) if len(reports) == 1 else None
    if root is None:
        reading.reported.add(project)
        reading.add(project, [], "error", first_errors(text_of(step)) or "it wrote no report")
        return
    before = len(reading.results)
    _add_results(tree, project, root, reading)
    results = reading.results[before:]
    summary = next(iter(root.all("ResultSummary")), None)
    counters = summary.all("Counters") if summary else []
    by = Counter(result.outcome for result in results)
    whole = root.ended and bool(counters) and counters[0].get("total") == str(len(results))
    if whole and not step.get("timed_out"):
        reading.reported.add(project)
    red = bool(by["failed"] + by["error"])
    if whole and counters[0].get("passed") != str(by["passed"]):
        reading.tampering.append(f"{project}: the counters of its report contradict its results")
    add_end(reading, project, step, red=red, text=text_of(step)[-2000:] or "it did not end with 0")


def _add_results(tree: Tree, project: str, root: Element, reading: Reading) -> None:
    classes = {
        test.get("id"): next((method.get("className") for method in test.all("TestMethod")), "")
        for test in root.all("UnitTest")
    }
    listed = (child for results in root.children if results.tag == "Results" for child in results.children)
    for element in listed:
        if element.tag != "UnitTestResult":
            continue
        group, name = classes.get(element.get("testId"), ""), element.get("testName")
        file = _dotnet_file(tree, posixpath.dirname(project), group) or project
        names = [group, name.removeprefix(f"{group}.")] if group else [name]
        outcome = TRX_OUTCOMES.get(element.get("outcome"), "error")
        text = "\n".join(part.text.strip() for part in element.all("Message", "StackTrace"))
        reading.add(file, names, outcome, text)


def _dotnet_file(tree: Tree, folder: str, group: str) -> str:
    """Return the file in a folder with the name of a class; empty unless there is exactly one."""
    name = re.split(r"[+`/]", group)[0].rpartition(".")[2]
    named = {f"{name}{end}" for end in SOURCE if name}
    files = [path for path in tree.below(folder, *SOURCE) if posixpath.basename(path) in named]
    return files[0] if len(files) == 1 else ""
