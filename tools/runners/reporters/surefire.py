"""Run Maven in a sandbox, and write records of its test reports. Standard library only; not imported by m3agent.

Tests run in a process of their own and can write anywhere, also over the XML reports of other classes. So this program
compares each report with what Maven's own process printed about the class.

Arguments: report, key file, file with the poms of modules with tests, file with the test files, Maven's arguments.
"""

from __future__ import annotations

import glob
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Callable
from xml.etree import ElementTree

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
LIBRARIES = (
    "org/junit",
    "junit/framework",
    "org/testng",
    "org/hamcrest",
    "org/assertj",
    "org/apache/maven/surefire",
)
"""Packages of which a project's own classes would take precedence over those of the test libraries."""


def main() -> None:
    report, key_file, poms_file, tests_file, *arguments = sys.argv[1:]
    with open(key_file) as file:
        key = bytes.fromhex(file.read().strip())
    os.unlink(key_file)
    with open(poms_file) as file:
        poms = [line for line in file.read().split("\n") if line]
    with open(tests_file) as file:
        tests = [line for line in file.read().split("\n") if line]
    output = open(report, "x")
    number = 0

    def write(*record: Any) -> None:
        nonlocal number
        number += 1
        body = "%d\t%s" % (number, json.dumps(record))
        code = hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
        output.write("%s\t%s\n" % (body, code))
        output.flush()

    folders = [os.path.join(os.path.dirname(pom), "target", "surefire-reports") for pom in poms]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # reports of an earlier run
    for pom in poms:
        write("plan", pom)
    running: list[str] = []
    printed: dict[str, list[tuple[int, ...]]] = {}
    goals: set[str] = set()
    errors: list[str] = []
    signs: set[str] = set()
    crashed = ended = False
    process = subprocess.Popen(
        command(os.path.dirname(report)) + arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for raw in process.stdout:
        sys.stdout.buffer.write(raw)
        line = raw.decode("utf-8", "replace").rstrip()
        started, counted, goal = RUNNING.match(line), COUNTS.search(line), GOAL.match(line)
        if started:
            running.append(started.group(1))
        elif counted:
            *counts, name = counted.groups()
            # a class of several modules, or of several runs, has one line for each
            printed.setdefault(name, []).append(tuple(map(int, counts)))
        elif goal:
            goals.add(goal.group(1))
        if line.startswith("[ERROR]") and sum(map(len, errors)) < MOST_TEXT:
            errors.append(line[len("[ERROR]") :].strip())
        crashed = crashed or any(text in line for text in CRASHES)
        ended = ended or line in ("[INFO] BUILD SUCCESS", "[INFO] BUILD FAILURE")
        if CORRUPTED in line:
            signs.add("a test wrote to the channel on which tests report to Maven")
    process.wait()
    sys.stdout.flush()

    for pom, folder in zip(poms, folders):
        for classes in ("classes", "test-classes"):
            for library in LIBRARIES:
                if os.path.isdir(os.path.join(os.path.dirname(folder), classes, library)):
                    signs.add("the project has classes in the package %s" % library.replace("/", "."))
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "TEST-*.xml"))):
            signs.update(write_results(write, path, pom, tests, printed))
    for name, lines in printed.items():
        if lines:
            signs.add("Maven ran %s, but its report is missing" % name)
    open_classes = list(running)
    for name in printed:
        while name in open_classes:
            open_classes.remove(name)
    for name in open_classes:
        write("start", file_of(name, "", tests), [name])
    for sign in sorted(signs):
        write("tampering", sign)
    text = "\n".join(filter(None, errors[:40]))
    for pom in poms:
        if artifact(pom) in goals and not crashed:
            write("unit", pom)
        elif not crashed:
            write("result", pom, [], "error", text or "Maven did not run its tests")
    if ended and not crashed:
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
    """Return a module's artifactId."""
    try:
        root = ElementTree.parse(pom).getroot()
    except (OSError, ElementTree.ParseError):
        return ""
    found = [child.text for child in root if child.tag.rpartition("}")[2] == "artifactId"]
    return (found[0] or "").strip() if found else ""


def file_of(name: str, module: str, tests: list[str]) -> str:
    """Return the test file of a class."""
    wanted = "/" + name.partition("$")[0].replace(".", "/") + "."
    found = [path for path in tests if wanted in "/" + path and path.startswith(module)]
    return found[0] if found else os.path.join(module, "src/test")


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
        outcome, place, child = "passed", 0, None
        for tag, then, index in (("error", "error", 2), ("failure", "failed", 1), ("skipped", "skipped", 3)):
            if tag in kinds:
                outcome, place, child = then, index, kinds[tag]
                break
        counts[0] += 1
        if place:
            counts[place] += 1
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
