"""C and C++ with Meson. Meson lists the tests and their programs; they run as those of ctest do.

Meson's own report contains the whole environment and is written by `meson test`, which runs one program per test too. So
m3agent runs the programs itself: then it knows how they end, and GoogleTest, Catch2 and TAP are read per test.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from m3agent.tools.runners.base import Job, Preparation, Suite, Tree, ident_of
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.programs import (
    SKIP,
    Program,
    ProgramRunner,
    file_of,
    files_in,
    ninja,
    seconds_of,
    text_of,
)

_PROJECT = re.compile(r"^[ \t]*project\s*\(", re.MULTILINE)
_SHOULD_FAIL = re.compile(
    r"\btest\s*\(\s*'((?:[^'\\\n]|\\.)*)'(?:[^()']|'[^'\n]*'|\([^()]*\))*?\bshould_fail\s*:\s*true"
)
_DEPENDENCY = re.compile(r"\bdependency\s*\(\s*'([\w.+-]+)'")
PACKAGES = {
    "gtest": "libgtest-dev",
    "gtest_main": "libgtest-dev",
    "gmock": "libgmock-dev",
    "catch2": "catch2",
    "cmocka": "libcmocka-dev",
}
"""Debian packages of the test frameworks that a build may name."""


class MesonRunner(ProgramRunner):
    """Meson."""

    name = "meson"
    manifest = registering = "meson.build"
    registers = re.compile(r"^[ \t]*(?:test|foreach\b[^\n]*\n[^\n]*\btest)\s*\(", re.MULTILINE)
    no_tests = "Meson lists no tests"
    before = (CtestRunner,)

    def roots(self, tree: Tree, others: Collection[str]) -> Iterable[str]:
        """Return the folders of projects. Subprojects are others' projects."""
        projects = [path for path in tree.named(self.manifest) if _PROJECT.search(tree.text(path))]
        own = (root for root in map(posixpath.dirname, projects) if "subprojects" not in root.split("/"))
        return sorted(set(own) - set(others))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the toolchain, and the test frameworks that the build names."""
        text = "\n".join(map(tree.text, tree.named(self.manifest)))
        named = {PACKAGES[name] for name in _DEPENDENCY.findall(text) if name in PACKAGES}
        return Preparation(system_packages=("meson", "ninja-build", "g++", "pkg-config", *sorted(named)))

    def steps(self, job: Job, folder: str) -> list[Mapping[str, Any]]:
        """Return the steps that build everything in a folder."""
        setup = '[ -f "$1/build.ninja" ] && again=--reconfigure; exec meson setup $again --wrap-mode=nodownload "$1" "$2"'
        tests, programs = f"{job.work}/tests.json", f"{job.work}/programs.json"
        show = 'meson introspect "$1" --tests > "$2" && meson introspect "$1" --targets > "$3"'
        return [
            {"name": "configure", "argv": ["sh", "-c", setup, "sh", folder, job.suite.folder], "must": True},
            {"name": "clean", "clean": folder},
            {"name": "build", "argv": ["ninja", "-C", folder, "-k", "0"]},
            {"name": "list", "argv": ["sh", "-c", show, "sh", folder, tests, programs], "report": tests},
            {"name": "targets", "collect": [programs]},
        ]

    def programs(self, job: Job, done: Mapping[str, Mapping[str, Any]], folder: str) -> Iterator[Program]:
        """Yield the tests that Meson lists."""
        texts = map(job.tree.text, job.tree.named(self.manifest))
        expected = {name for text in texts for name in _SHOULD_FAIL.findall(text)}
        try:
            targets = json.loads("".join(files_in(done, "targets").values()))
            by_program = {str(name): target for target in targets for name in target["filename"]}
            for test in json.loads(text_of(done["list"], "report")):
                yield _program(job, test, by_program, expected, folder)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return


def _program(
    job: Job,
    test: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    expected: set[str],
    folder: str,
) -> Program:
    title = str(test["name"])
    argv = tuple(str(word) for word in test["cmd"])
    target = targets.get(argv[0], {})
    groups = target.get("target_sources", ())
    paths = [job.suite.in_tree(str(path)) for group in groups for path in group.get("sources", ())]
    sources = tuple(path for path in paths if path in job.tree.paths)
    scripts = [path for path in map(job.suite.in_tree, argv) if path in job.tree.paths]
    named = file_of(sources, (str(target.get("name", "")), title))
    file = named or (scripts or [job.suite.path("meson.build")])[0]
    protocol = str(test.get("protocol", ""))
    return Program(
        ident_of(file, [title]),
        program=argv[0],
        file=file,
        title=title,
        argv=argv,
        cwd=str(test.get("workdir") or folder),
        env={str(name): str(value) for name, value in dict(test.get("env") or {}).items()},
        seconds=seconds_of(test.get("timeout")),
        skip=(SKIP,),
        expected_to_fail=title in expected,
        tap=protocol == "tap",
        sources=sources,
        make=ninja(argv[0], folder),
        facts={
            "compiler flags": " ".join(str(flag) for group in groups for flag in group.get("parameters", ())),
            "PROTOCOL": protocol,
        },
    )
