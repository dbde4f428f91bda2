"""Run tests of .NET: `dotnet test` with VSTest and its TRX reports. Untried: written by the documentation of both.

    dotnet test tests/Shop.Tests/Shop.Tests.csproj --logger trx --results-directory FOLDER

Each test project is a unit with a report of its own. The process that writes the report runs no code of tests, but code
under test can find the file and replace it. So the report must agree with itself and with the exit status.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import (
    Command,
    Limits,
    Outcome,
    Output,
    Preparation,
    Reading,
    Result,
    Runner,
    Suite,
    Tree,
    Unit,
    is_within,
)
from m3agent.tools.runners.programs import first_errors, read_steps, steps_command, text_of
from m3agent.tools.runners.records import ident_of
from m3agent.tools.runners.xml_events import Element, parse_xml

PROJECT = (".csproj", ".fsproj", ".vbproj")
SOURCE = (".cs", ".fs", ".vb")
_TESTS = re.compile(r"Microsoft\.NET\.Test\.Sdk|<IsTestProject>\s*true", re.IGNORECASE)
_FRAMEWORKS = re.compile(r"<TargetFrameworks>([^<]*)</TargetFrameworks>")
_MODERN = re.compile(r"net(\d+)\.(\d+)$")
_TEST_FOLDER = re.compile(r"(^|/)([^/]*[.\-_])?((unit|integration|functional)[.\-_]?)?tests?/", re.IGNORECASE)
_TEST_NAME = re.compile(r"(^|/)\w*Tests?\.(cs|fs|vb)$")
_SURROUNDINGS = re.compile(
    r"\.(csproj|fsproj|vbproj|sln|slnx|props|targets|runsettings|testsettings)$"
    r"|(^|/)(global\.json|nuget\.config|packages\.(lock\.json|config)|xunit\.runner\.json|testconfig\.json|\.tool-versions)$"
    r"|(^|/)(bin|obj|\.nuget)/",
    re.IGNORECASE,
)
_INPUT = re.compile(
    r"\.(csproj|fsproj|vbproj|props|targets)$|(^|/)(global\.json|nuget\.config|packages\.lock\.json)$",
    re.IGNORECASE,
)
PACKAGES = ".nuget/packages"
"""Folder for what NuGet fetches, in the suite's root."""
OUTCOMES: Mapping[str, Outcome] = {
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


class Dotnet(Runner):
    """`dotnet test`."""

    name = "dotnet"
    language = ".NET"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each topmost folder with a solution, and one for each test project outside of them."""
        projects = _projects(tree, "")
        solutions = {posixpath.dirname(path) for path in tree.paths if path.endswith((".sln", ".slnx"))}
        roots = {
            min((folder for folder in solutions if is_within(path, folder)), default=posixpath.dirname(path))
            for path in projects
        }
        found = []
        for root in sorted(roots):
            if not any(root != other and is_within(root, other) for other in roots):
                mine = [path for path in projects if is_within(path, root)]
                found.append(Suite(self.name, root, f"{len(mine)} test projects such as {mine[0]}"))
        return found

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the commands that restore the packages of the test projects. Debian has no SDK."""
        inputs = sorted(path for path in tree.paths if _INPUT.search(path))
        return Preparation(
            system_packages=("dotnet-sdk-8.0",),
            commands=tuple(("dotnet", "restore", suite.within(path)) for path in _projects(tree, suite.root)),
            inputs=tuple(inputs),
            keep=(PACKAGES,),
            env={**QUIET, "NUGET_PACKAGES": f"{suite.folder}/{PACKAGES}"},
            notices=("the SDK of .NET must be in the image: name one with --image",),
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file is in the folder of a test project, or has the name of a test class."""
        return bool(_TEST_FOLDER.search(path) or _TEST_NAME.search(path))

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides which tests run, or how they are built."""
        return bool(_SURROUNDINGS.search(path))

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the projects of the wanted tests; empty if one of them is in no test project."""
        mine = _projects(tree, suite.root)
        found: set[str] = set()
        for one in wanted:
            path = posixpath.normpath(one.partition("::")[0])
            owners = [project for project in mine if is_within(path, posixpath.dirname(project))]
            below = [project for project in mine if path == "." or is_within(project, path)]
            if not owners and not below:
                return ()
            found.update(owners[-1:] or below)
        return tuple(sorted(found)) if len(found) < len(mine) else ()

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command that builds and runs the projects, one after the other."""
        steps: list[Mapping[str, Any]] = []
        for number, path in enumerate(targets or _projects(tree, suite.root)):
            folder = f"{work}/dotnet-{number}"
            argv = [
                *("sh", "-c", 'rm -rf "$1"; shift; exec "$@"', "sh", folder),
                *("dotnet", "test", suite.within(path), "--logger", "trx", "--results-directory", folder),
                *("--blame-hang-timeout", f"{limits.per_test * 4:.0f}s", "--blame-hang-dump-type", "none"),
                *("-p:RestoreIgnoreFailedSources=true", "-p:UseSharedCompilation=false"),
                *_framework(tree.text(path)),
            ]
            step = {"name": path, "cwd": suite.folder, "seconds": limits.total}
            steps += [
                {**step, "argv": argv, "env": {"DOTNET_CLI_HOME": f"{work}/home"}},
                {"name": f"reports {path}", "collect": [f"{folder}/*.trx"]},
            ]
        return [steps_command(steps, work, "dotnet")]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the reports of each project."""
        reading = Reading(ended=bool(outputs))
        for output in outputs:
            done, ended = read_steps(output)
            reading.ended &= ended
            for name, step in done.items():
                if name.endswith(PROJECT) and f"reports {name}" in done:
                    files = done[f"reports {name}"].get("files")
                    reports = list(files.values()) if isinstance(files, dict) else []
                    _read_project(tree, name, step, reports, reading)
        return reading


def _projects(tree: Tree, root: str) -> list[str]:
    """Return the sorted paths of the test projects below a folder."""
    return sorted(
        path
        for path in tree.paths
        if path.endswith(PROJECT)
        and is_within(path, root)
        and not {"bin", "obj"} & set(path.split("/"))
        and _TESTS.search(tree.text(path))
    )


def _framework(project: str) -> list[str]:
    """Return the option that runs a project for its newest framework only; none if it has only one.

    Several runs would write several reports with the same tests.
    """
    found = _FRAMEWORKS.search(project)
    names = [name.strip() for name in found[1].split(";")] if found else []
    modern = [(int(match[1]), int(match[2]), name) for name in names if (match := _MODERN.match(name))]
    return ["--framework", max(modern)[2]] if modern else []


def _read_project(
    tree: Tree, project: str, step: Mapping[str, Any], reports: Sequence[Any], reading: Reading
) -> None:
    reading.planned.add(project)
    root = parse_xml(str(reports[0]).encode()) if len(reports) == 1 else None
    if root is None:
        said = text_of(step)
        reading.reported.add(project)
        reading.results.append(Result(project, "error", first_errors(said) or "it wrote no report"))
        return
    results = _results(tree, project, root)
    reading.results += results
    summary = next(iter(root.all("ResultSummary")), None)
    counters = summary.all("Counters") if summary else []
    by = Counter(result.outcome for result in results)
    whole = root.ended and bool(counters) and counters[0].get("total") == str(len(results))
    if whole and not step.get("timed_out"):
        reading.reported.add(project)
    red = by["failed"] + by["error"]
    if whole and counters[0].get("passed") != str(by["passed"]):
        reading.tampering.append(f"{project}: the counters of its report contradict its results")
    if not red and step.get("exit") != 0:
        reading.results.append(Result(project, "error", text_of(step)[-2000:] or "it did not end with 0"))
    elif red and step.get("exit") == 0:
        reading.tampering.append(f"{project}: it ended with 0 although a test failed")


def _results(tree: Tree, project: str, root: Element) -> list[Result]:
    classes = {
        test.get("id"): next((method.get("className") for method in test.all("TestMethod")), "")
        for test in root.all("UnitTest")
    }
    listed = (child for results in root.children if results.tag == "Results" for child in results.children)
    found = []
    for element in listed:
        if element.tag != "UnitTestResult":
            continue
        group, name = classes.get(element.get("testId"), ""), element.get("testName")
        file = _file(tree, posixpath.dirname(project), group) or project
        names = [group, name.removeprefix(f"{group}.")] if group else [name]
        outcome = OUTCOMES.get(element.get("outcome"), "error")
        text = "\n".join(part.text.strip() for part in element.all("Message", "StackTrace"))
        found.append(Result(ident_of(file, names), outcome, text))
    return found


def _file(tree: Tree, folder: str, group: str) -> str:
    """Return the file in a folder with the name of a class; empty unless there is exactly one."""
    name = re.split(r"[+`/]", group)[0].rpartition(".")[2]
    found = [
        path
        for path in tree.paths
        if is_within(path, folder) and path.endswith(SOURCE) and posixpath.basename(path)[:-3] == name
    ]
    return found[0] if name and len(found) == 1 else ""
