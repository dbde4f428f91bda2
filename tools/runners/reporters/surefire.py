"""Run Maven in a sandbox, and write records of its test reports. Standard library only; not imported by m3agent.

Tests run in a process of their own and can write anywhere, also over the XML reports of other classes. So this program
compares each report with what Maven's own process printed about the class.

Arguments: report, key file, file with the poms of modules with tests, file with the test files, Maven's arguments.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import shutil
import subprocess
import sys
from typing import Callable
from xml.etree import ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out

from m3agent.tools.in_sandbox.record_writer import RecordWriter

LAUNCHER = "org.codehaus.plexus.classworlds.launcher.Launcher"
M2_CONF = """main is org.apache.maven.cli.MavenCli from plexus.core
[plexus.core]
load ${maven.home}/lib/*.jar
"""
LOGGING = (
    *("showThreadName=false", "showLogName=false", "showDateTime=false", "logFile=System.out"),
    *("levelInBrackets=true", "warnLevelString=WARNING", "defaultLogLevel=info"),
)
"""Maven's own settings of its log, which are beside the missing ones."""
RUNNING = re.compile(r"^\[INFO\] Running (\S+)\s*$")
COUNTS = re.compile(r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+),? .*-{1,2} in (\S+)")
GOAL = re.compile(r"^\[INFO\] --- (?:maven-)?surefire(?:-plugin)?:\S+:?test \(\S+\) @ (\S+) ---")
CRASHES = (
    "The forked VM terminated",
    "There was a timeout",
    "Crashed tests:",
    "Error occurred in starting fork",
)
CORRUPTED = "Corrupted STDOUT by directly writing to native stream"
MOST_TEXT = 20000
OUTCOMES = (("error", "error", 2), ("failure", "failed", 1), ("skipped", "skipped", 3))
"""Elements of a report, their outcomes, and the place of their number in the log; the first one counts."""
LIBRARIES = (
    "org/junit",
    "junit/framework",
    "org/testng",
    "org/hamcrest",
    "org/assertj",
    "org/apache/maven/surefire",
)
"""Packages of which a project's own classes would take precedence over those of the test libraries."""


class Log:
    """What Maven's own process prints."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.printed: dict[str, list[tuple[int, ...]]] = {}
        self.goals: set[str] = set()
        self.errors: list[str] = []
        self.signs: set[str] = set()
        self.crashed = self.ended = False

    def add(self, line: str) -> None:
        started, counted, goal = RUNNING.match(line), COUNTS.search(line), GOAL.match(line)
        if started and started.group(1) not in self.running:  # some versions print the line twice
            self.running.append(started.group(1))
        elif counted:
            *counts, name = counted.groups()
            # a class of several modules, or of several runs, has one line for each
            self.printed.setdefault(name, []).append(tuple(map(int, counts)))
            if name in self.running:
                self.running.remove(name)
        elif goal:
            self.goals.add(goal.group(1))
        if line.startswith("[ERROR]") and sum(map(len, self.errors)) < MOST_TEXT:
            self.errors.append(line[len("[ERROR]") :].strip())
        self.crashed = self.crashed or any(text in line for text in CRASHES)
        self.ended = self.ended or line in ("[INFO] BUILD SUCCESS", "[INFO] BUILD FAILURE")
        if CORRUPTED in line:
            self.signs.add("a test wrote to the channel on which tests report to Maven")


def lines_of(path: str) -> list[str]:
    with open(path) as file:
        return [line for line in file.read().split("\n") if line]


def main() -> None:
    report, key_file, poms_file, tests_file, *arguments = sys.argv[1:]
    write = RecordWriter(report, key_file).write
    poms, tests = lines_of(poms_file), lines_of(tests_file)
    folders = [os.path.join(os.path.dirname(pom), "target", "surefire-reports") for pom in poms]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # reports of an earlier run
    for pom in poms:
        write("plan", pom)
    log = Log()
    process = subprocess.Popen(
        command(os.path.dirname(report)) + arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for raw in process.stdout:
        sys.stdout.buffer.write(raw)
        log.add(raw.decode("utf-8", "replace").rstrip())
    process.wait()
    sys.stdout.flush()

    signs = log.signs
    for pom, folder in zip(poms, folders):
        places = itertools.product(("classes", "test-classes"), LIBRARIES)
        shadowed = [
            name for kind, name in places if os.path.isdir(os.path.join(os.path.dirname(folder), kind, name))
        ]
        signs.update("the project has classes in the package " + name.replace("/", ".") for name in shadowed)
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "TEST-*.xml"))):
            signs.update(write_results(write, path, pom, tests, log.printed))
    signs.update(
        "Maven ran %s, but its report is missing" % name for name, lines in log.printed.items() if lines
    )
    for name in log.running:
        write("start", file_of(name, "", tests), [name])
    for sign in sorted(signs):
        write("tampering", sign)
    text = "\n".join(filter(None, log.errors[:40]))
    for pom in poms if not log.crashed else ():
        if artifact(pom) in log.goals:
            write("unit", pom)
        else:
            write("result", pom, [], "error", text or "Maven did not run its tests")
    if log.ended and not log.crashed:
        write("end")
    sys.exit(process.returncode)


def command(folder: str) -> list[str]:
    """Return the command that starts Maven, also where the settings in Maven's folder are dead links."""
    program = shutil.which("mvn")
    if program is None:
        sys.exit("mvn is not installed")
    home = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    boot = glob.glob(os.path.join(home, "boot", "plexus-classworlds*.jar"))
    if os.path.exists(os.path.join(home, "bin", "m2.conf")) or not boot:
        return [program]
    configuration = os.path.join(folder, "m2.conf")
    with open(configuration, "w") as file:
        file.write(M2_CONF)
    return [
        "java",
        *("-Dorg.slf4j.simpleLogger.%s" % setting for setting in LOGGING),
        *("-classpath", boot[0], "-Dclassworlds.conf=" + configuration, "-Dmaven.home=" + home),
        *("-Dmaven.multiModuleProjectDirectory=" + os.getcwd(), LAUNCHER),
    ]


def artifact(pom: str) -> str:
    try:
        root = ElementTree.parse(pom).getroot()
    except (OSError, ElementTree.ParseError):
        return ""
    names = [child.text for child in root if child.tag.rpartition("}")[2] == "artifactId"]
    return (names[0] or "").strip() if names else ""


def file_of(name: str, module: str, tests: list[str]) -> str:
    wanted = "/" + name.partition("$")[0].replace(".", "/") + "."
    files = [path for path in tests if wanted in "/" + path and path.startswith(module)]
    return files[0] if files else os.path.join(module, "src/test")


def write_results(
    write: Callable[..., None],
    path: str,
    pom: str,
    tests: list[str],
    printed: dict[str, list[tuple[int, ...]]],
) -> list[str]:
    """Write the results of a class; return signs of tampering."""
    module = os.path.dirname(pom)
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return ["the report %s is not XML" % os.path.basename(path)]
    name = root.get("name", "")
    counts = [0, 0, 0, 0]
    results = []
    for case in root.iter("testcase"):
        kinds = {child.tag: child for child in case}
        outcome, place, child = next(
            ((outcome, place, kinds[tag]) for tag, outcome, place in OUTCOMES if tag in kinds),
            ("passed", 0, None),
        )
        counts[0] += 1
        counts[place] += place > 0
        text = ""
        if child is not None and outcome != "skipped":
            text = (child.text or child.get("message") or "")[:MOST_TEXT]
        own = case.get("classname") or name
        file = file_of(own, module + "/" if module else "", tests)
        results.append(
            (file, list(filter(None, [own.rpartition(".")[2], case.get("name") or ""])), outcome, text)
        )
    lines = printed.get(name, [])
    signs: list[str] = []
    if tuple(counts) in lines:
        lines.remove(tuple(counts))
    else:
        signs.append("the report of %s differs from what Maven printed" % name)
    for file, names, outcome, text in results:
        write("start", file, names)
        write("result", file, names, outcome, text)
    return signs


if __name__ == "__main__":
    main()
