"""Run tests of Java: Maven with Surefire, and Gradle. Tests in Kotlin and Groovy by the same tools are untried.

The tests run in processes of their own. What they report reaches Maven and Gradle, whose processes run no code of tests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from m3agent.tools.runners.base import (
    Command,
    Job,
    Preparation,
    Suite,
    Tree,
    Unit,
    is_skipped,
    is_within,
    topmost,
)
from m3agent.tools.runners.file_runner import FileRunner, reporter, sandbox_file
from m3agent.tools.runners.path_rules import RULES

_SOURCE = re.compile(r"(^|/)src/test/(java|kotlin|groovy)/(.+)\.(java|kt|groovy)$")
_TEST_CLASS = re.compile(r"(^Test\w*|\w*(Test|Tests|TestCase|Spec))\.(java|kt|groovy)$")
"""Names of files that hold tests, as Surefire expects them; Gradle looks at the classes instead."""
GRADLE_HOME = ".gradle-home"
"""Folder for what Gradle fetches, in the suite's root."""
JVM = {"JAVA_TOOL_OPTIONS": "-Xmx1g -XX:CompressedClassSpaceSize=128m -XX:ReservedCodeCacheSize=128m"}
"""A virtual machine reserves more address space than a sandbox without a control group has."""


class _Java(FileRunner):
    """What both build tools have in common."""

    language = "Java"
    canaries = False
    manifests: ClassVar[tuple[str, ...]]

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders with a manifest of the tool and without another one above."""
        folders = {path.rpartition("/")[0] for path in tree.named(*self.manifests)}
        return topmost(
            folder
            for folder in folders
            if not RULES["java-folder"].is_test(f"{folder}/") and _tool(tree, folder) == self.name
        )

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files below a root."""
        inner = (path for path in tree.paths if is_within(path, root) and _SOURCE.search(path))
        named = (path for path in inner if _TEST_CLASS.search(path.rpartition("/")[2]))
        return sorted(path for path in named if "\n" not in path and not is_skipped(path))

    def modules(self, suite: Suite, tree: Tree, files: Collection[str]) -> list[str]:
        """Return the manifests of the modules with these files."""
        sources = ((file, _SOURCE.search(file)) for file in files)
        folders = {file[: matched.start()] if matched else "" for file, matched in sources}
        manifests = (path for path in tree.named(*self.manifests) if is_within(path, suite.root))
        return [path for path in manifests if path.rpartition("/")[0] in folders]


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

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all modules."""
        tests = self.files(job.tree, job.suite.root)
        paths = (self.path(job, end) for end in ("py", "report", "key", "poms", "tests"))
        selection: tuple[str, ...] = ()
        if job.targets:
            classes = ",".join(map(_class, job.targets))
            selection = (
                *(f"-Dtest={classes}", "-DfailIfNoTests=false"),
                "-Dsurefire.failIfNoSpecifiedTests=false",
            )
        shell = (
            'for folder in "$PWD/.m2/repository" /usr/share/maven-repo; do '
            '[ -d "$folder" ] && set -- "$@" "-Dmaven.repo.local=$folder" && break; done; exec python3 -I "$@"'
        )
        argv = (
            *("sh", "-c", shell, "sh", *paths, "-o", "-B", "-fae", "-Dstyle.color=never"),
            *("-Dmaven.test.redirectTestOutputToFile=true", "-Dsurefire.rerunFailingTestsCount=0"),
            *("-Dsurefire.printSummary=true", f"-Dsurefire.timeout={max(1, int(job.limits.total * 0.8))}"),
            *(*selection, "test"),
        )
        modules = self.modules(job.suite, job.tree, job.targets or tests)
        files: dict[str, bytes | list[str]] = {
            "py": reporter("surefire.py"),
            "poms": [*map(job.suite.within, modules)],
            "tests": [*map(job.suite.within, tests)],
        }
        (command,) = self.reporting(job, argv, files, JVM)
        writer = {f"{job.work}/record_writer.py": sandbox_file("record_writer.py")}
        return [replace(command, files={**command.files, **writer})]


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

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all projects."""
        work = job.work
        shell = f'home={work}/gradle-home; [ -d {GRADLE_HOME} ] && home={GRADLE_HOME}; exec gradle -g "$home" "$@"'
        ends = {"Report": "report", "Key": "key", "Tests": "tests", "Classes": "classes"}
        argv = (
            *("sh", "-c", shell, "sh", "--offline", "--no-daemon", "--console", "plain", "--continue"),
            *("--project-cache-dir", f"{work}/gradle-project", "-I", self.path(job, "init.gradle")),
            *(f"-Pm3agent{name}={self.path(job, end)}" for name, end in ends.items()),
            "test",
        )
        tests = self.files(job.tree, job.suite.root)
        files: dict[str, bytes | list[str]] = {
            "init.gradle": reporter("gradle.init.gradle"),
            "tests": [*map(job.suite.within, tests)],
            "classes": [*map(_class, job.targets)],
        }
        return self.reporting(job, argv, files, JVM)


def _tool(tree: Tree, folder: str) -> str:
    """Return the build tool of a folder; if there are files of both, that with a wrapper, otherwise Maven."""
    prefix = f"{folder}/" if folder else ""
    here = {name for name in ("pom.xml", "mvnw", "gradlew") if prefix + name in tree.paths}
    return "maven" if "pom.xml" in here and not ("gradlew" in here and "mvnw" not in here) else "gradle"


def _class(path: str) -> str:
    """Return the name of the class in a test file."""
    match = _SOURCE.search(path)
    return match[3].replace("/", ".") if match else ""
