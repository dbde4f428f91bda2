"""Run tests of Java: Maven with Surefire, and Gradle. Tests in Kotlin and Groovy by the same tools are untried.

The tests run in processes of their own. What they report reaches Maven and Gradle, whose processes run no code of tests.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence

from m3agent.tools.runners.base import (
    SKIPPED_FOLDERS,
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
    is_within,
)
from m3agent.tools.runners.canaries import explain_silence, reporter
from m3agent.tools.runners.records import read_records

TEST_FOLDER = re.compile(r"(^|/)src/(test|it|integrationTest|testFixtures)/")
_SOURCE = re.compile(r"(^|/)src/test/(java|kotlin|groovy)/(.+)\.(java|kt|groovy)$")
_TEST_CLASS = re.compile(r"(^Test\w*|\w*(Test|Tests|TestCase|Spec))\.(java|kt|groovy)$")
"""Names of files that hold tests, as Surefire expects them; Gradle looks at the classes instead."""
_TEST_NAME = re.compile(r"(^|/)\w*(Test|Tests|TestCase|IT|Spec)\.(java|kt|groovy)$")
_SURROUNDINGS = re.compile(
    r"(^|/)(pom\.xml|build\.gradle(\.kts)?|settings\.gradle(\.kts)?|gradle\.properties|gradlew(\.bat)?|mvnw(\.cmd)?"
    r"|gradle\.lockfile|junit-platform\.properties|\.tool-versions|\.java-version|\.sdkmanrc|Makefile)$"
    r"|(^|/)(\.mvn|gradle|buildSrc|META-INF/services)/|(^|/)(target|build)/"
)
GRADLE_HOME = ".gradle-home"
"""Folder for what Gradle fetches, in the suite's root."""
JVM = {
    "JAVA_TOOL_OPTIONS": "-Xmx1g -XX:CompressedClassSpaceSize=128m -XX:ReservedCodeCacheSize=128m",
}
"""A virtual machine reserves more address space than a sandbox without a control group has."""


class _Java(Runner):
    """What both build tools have in common."""

    language = "Java"
    manifests: tuple[str, ...]

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each manifest without another one above it, if there are test classes below."""
        roots = {
            folder
            for folder in (path.rpartition("/")[0] for path in tree.named(*self.manifests))
            if not TEST_FOLDER.search(f"{folder}/") and _tool(tree, folder) == self.name
        }
        tops = [
            root for root in sorted(roots) if not any(root != top and is_within(root, top) for top in roots)
        ]
        found = []
        for root in tops:
            mine = _tests(tree, root)
            if mine:
                found.append(Suite(self.name, root, f"{len(mine)} test files such as {mine[0]}"))
        return found

    def is_test(self, path: str) -> bool:
        """Return whether a file is a test, a helper of tests, or their data."""
        return bool(TEST_FOLDER.search(path) or _TEST_NAME.search(path))

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides which tests run, or how they are built."""
        return bool(_SURROUNDINGS.search(path))

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the wanted tests; empty if one of them is in no test file."""
        mine = _tests(tree, suite.root)
        found: set[str] = set()
        for one in wanted:
            path = posixpath.normpath(one.partition("::")[0])
            hits = [file for file in mine if path in (".", file) or file.startswith(f"{path}/")]
            if not hits:
                return ()
            found.update(hits)
        return tuple(sorted(found)) if len(found) < len(mine) else ()

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        reading = read_records(suite, outputs)
        reading.problem = explain_silence(outputs)
        return reading

    def modules(self, suite: Suite, tree: Tree, files: Collection[str]) -> list[str]:
        """Return the manifests of the modules with these files."""
        manifests = {path for path in tree.named(*self.manifests) if is_within(path, suite.root)}
        found = set()
        for file in files:
            matched = _SOURCE.search(file)
            module = file[: matched.start()] if matched else ""
            found |= {path for path in manifests if path.rpartition("/")[0] == module}
        return sorted(found)


class Maven(_Java):
    """Maven with Surefire."""

    name = "maven"
    manifests = ("pom.xml",)

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the commands that fetch plugins and dependencies. Surefire fetches its provider when it first runs."""
        repository = "-Dmaven.repo.local=.m2/repository"
        return Preparation(
            system_packages=("default-jdk-headless", "maven"),
            commands=(("mvn", "-B", "-fae", repository, "dependency:go-offline", "surefire:help"),),
            inputs=tuple(path for path in tree.named("pom.xml") if is_within(path, suite.root)),
            keep=(".m2/repository",),
            env=JVM,
            notices=("Surefire's provider for the project's test library may be missing without a network",),
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
        """Return one command for all modules."""
        tests = _tests(tree, suite.root)
        script, report, key, poms, listed = (
            f"{work}/maven.{end}" for end in ("py", "report", "key", "poms", "tests")
        )
        selection: tuple[str, ...] = ()
        if targets:
            classes = ",".join(_class(path) for path in targets)
            selection = (
                f"-Dtest={classes}",
                "-DfailIfNoTests=false",
                "-Dsurefire.failIfNoSpecifiedTests=false",
            )
        shell = (
            'for folder in "$PWD/.m2/repository" /usr/share/maven-repo; do '
            '[ -d "$folder" ] && set -- "$@" "-Dmaven.repo.local=$folder" && break; done; exec python3 -I "$@"'
        )
        return [
            Command(
                (
                    *("sh", "-c", shell, "sh", script, report, key, poms, listed),
                    *(
                        "-o",
                        "-B",
                        "-fae",
                        "-Dstyle.color=never",
                        "-Dmaven.test.redirectTestOutputToFile=true",
                    ),
                    *("-Dsurefire.rerunFailingTestsCount=0", "-Dsurefire.printSummary=true"),
                    *(f"-Dsurefire.timeout={max(1, int(limits.total * 0.8))}", *selection, "test"),
                ),
                cwd=suite.root or ".",
                env=JVM,
                files={
                    script: reporter("surefire.py"),
                    poms: "\n".join(map(suite.within, self.modules(suite, tree, targets or tests))).encode(),
                    listed: "\n".join(map(suite.within, tests)).encode(),
                },
                report=report,
                key_file=key,
            )
        ]


class Gradle(_Java):
    """Gradle. The image's own is used: a wrapper would download another one."""

    name = "gradle"
    manifests = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the command that fetches plugins and dependencies, as far as Gradle does so without sources."""
        names = (*self.manifests, "gradle.properties", "libs.versions.toml", "gradle.lockfile")
        return Preparation(
            system_packages=("default-jdk-headless", "gradle"),
            commands=(("gradle", "--no-daemon", "-g", GRADLE_HOME, "testClasses"),),
            inputs=tuple(path for path in tree.named(*names) if is_within(path, suite.root)),
            keep=(GRADLE_HOME,),
            env=JVM,
            notices=("dependencies that Gradle fetches only when it compiles sources may be missing",),
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
        """Return one command for all projects."""
        tests = _tests(tree, suite.root)
        ends = ("init.gradle", "report", "key", "tests", "classes")
        script, report, key, listed, classes = (f"{work}/gradle.{end}" for end in ends)
        shell = f'home={work}/gradle-home; [ -d {GRADLE_HOME} ] && home={GRADLE_HOME}; exec gradle -g "$home" "$@"'
        return [
            Command(
                (
                    *(
                        "sh",
                        "-c",
                        shell,
                        "sh",
                        "--offline",
                        "--no-daemon",
                        "--console",
                        "plain",
                        "--continue",
                    ),
                    *(
                        "--project-cache-dir",
                        f"{work}/gradle-project",
                        "-I",
                        script,
                        f"-Pm3agentReport={report}",
                    ),
                    *(
                        f"-Pm3agentKey={key}",
                        f"-Pm3agentTests={listed}",
                        f"-Pm3agentClasses={classes}",
                        "test",
                    ),
                ),
                cwd=suite.root or ".",
                env=JVM,
                files={
                    script: reporter("gradle.init.gradle"),
                    listed: "\n".join(map(suite.within, tests)).encode(),
                    classes: "\n".join(map(_class, targets)).encode(),
                },
                report=report,
                key_file=key,
            )
        ]


def _tool(tree: Tree, folder: str) -> str:
    """Return the build tool of a folder; if there are files of both, that with a wrapper, otherwise Maven."""
    prefix = f"{folder}/" if folder else ""
    here = {name for name in ("pom.xml", "mvnw", "gradlew") if prefix + name in tree.paths}
    return "maven" if "pom.xml" in here and not ("gradlew" in here and "mvnw" not in here) else "gradle"


def _tests(tree: Tree, root: str) -> list[str]:
    """Return the sorted paths of the test files below a root."""
    return sorted(
        path
        for path in tree.paths
        if is_within(path, root)
        and _SOURCE.search(path)
        and _TEST_CLASS.search(path.rpartition("/")[2])
        and "\n" not in path
        and SKIPPED_FOLDERS.isdisjoint(path.split("/")[:-1])
    )


def _class(path: str) -> str:
    """Return the name of the class in a test file."""
    found = _SOURCE.search(path)
    return found[3].replace("/", ".") if found else ""
