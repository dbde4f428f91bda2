"""C and C++ with Meson. Meson lists the tests and their programs; they run as those of ctest do.

Meson's own report contains the whole environment and is written by `meson test`, which runs one program per test too. So
m3agent runs the programs itself: then it knows how they end, and GoogleTest, Catch2 and TAP are read per test.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from m3agent.tools.runners import c_files
from m3agent.tools.runners.base import (
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.programs import (
    SKIP,
    Program,
    chosen_programs,
    file_of,
    first_errors,
    read_programs,
    read_steps,
    run_command,
    steps_command,
    text_of,
)
from m3agent.tools.runners.records import ident_of

_PROJECT = re.compile(r"^[ \t]*project\s*\(", re.MULTILINE)
_TEST = re.compile(r"^[ \t]*(?:test|foreach\b[^\n]*\n[^\n]*\btest)\s*\(", re.MULTILINE)
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


class MesonRunner(Runner):
    """Meson."""

    name: ClassVar[str] = "meson"
    language: ClassVar[str] = "C/C++"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each Meson project that registers tests.

        Subprojects are others' projects. Where CMake registers tests too, they are the same tests.
        """
        others = {suite.root for suite in CtestRunner().detect(tree)}
        files = {posixpath.dirname(path): path for path in tree.named("meson.build")}
        suites = []
        for folder, path in files.items():
            if "subprojects" in folder.split("/") or folder in others or not _PROJECT.search(tree.text(path)):
                continue
            within = [p for f, p in files.items() if not folder or f == folder or f.startswith(f"{folder}/")]
            found = next((p for p in within if _TEST.search(tree.text(p))), None)
            if found:
                suites.append(Suite(self.name, folder, f"tests are registered in {found}"))
        return suites

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the toolchain, and the test frameworks that the build names."""
        text = "\n".join(tree.text(path) for path in tree.named("meson.build"))
        named = {PACKAGES[name] for name in _DEPENDENCY.findall(text) if name in PACKAGES}
        return Preparation(system_packages=("meson", "ninja-build", "g++", "pkg-config", *sorted(named)))

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        return c_files.is_test(path)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return c_files.surroundings(path)

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the wanted tests: which programs contain them is known after the build."""
        return tuple(wanted)

    def build(self, suite: Suite, tree: Tree, targets: Sequence[str], work: str) -> Command:
        """Return the command that configures and builds everything, and lists the tests."""
        folder = f"{work}/build"
        source = suite.folder
        setup = '[ -f "$1/build.ninja" ] && again=--reconfigure; exec meson setup $again --wrap-mode=nodownload "$1" "$2"'
        tests, programs = f"{work}/tests.json", f"{work}/programs.json"
        show = 'meson introspect "$1" --tests > "$2" && meson introspect "$1" --targets > "$3"'
        steps: list[Mapping[str, Any]] = [
            {"name": "configure", "argv": ["sh", "-c", setup, "sh", folder, source], "must": True},
            {"name": "clean", "clean": folder},
            {"name": "build", "argv": ["ninja", "-C", folder, "-k", "0"]},
            {"name": "list", "argv": ["sh", "-c", show, "sh", folder, tests, programs], "report": tests},
            {"name": "targets", "collect": [programs]},
        ]
        return steps_command(steps, work, "build")

    def units(self, suite: Suite, tree: Tree, output: Output) -> list[Unit]:
        """Return the tests that Meson lists; a single unit that is not built if there are none."""
        done, _ = read_steps(output)
        whole = suite.path("meson.build")
        for step in ("configure", "list"):
            if step not in done or done[step].get("exit") != 0:
                text = first_errors(text_of(done.get(step, {}))) or "the build did not end"
                return [Unit(whole, built=False, text=text)]
        files = done.get("targets", {}).get("files", {})
        folder = f"{posixpath.dirname(output.command.argv[4])}/build"
        listed = "".join(map(str, files.values())) if isinstance(files, dict) else ""
        units: list[Unit] = list(_programs(tree, suite, text_of(done["list"], "report"), listed, folder))
        return units or [Unit(whole, built=False, text="Meson lists no tests")]

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command that runs the programs of the targets, one after the other."""
        programs = [unit for unit in units if isinstance(unit, Program)]
        chosen = chosen_programs(programs, targets) or programs
        return [run_command(suite, programs, chosen, work, limits)] if programs else []

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read what the programs left behind."""
        programs = [unit for unit in units if isinstance(unit, Program)]
        return read_programs(suite, tree, programs, outputs, self.is_test)


def _programs(tree: Tree, suite: Suite, tests: str, targets: str, folder: str) -> Iterator[Program]:
    expected = {name for path in tree.named("meson.build") for name in _SHOULD_FAIL.findall(tree.text(path))}
    try:
        by_program = {str(name): target for target in json.loads(targets) for name in target["filename"]}
        for test in json.loads(tests):
            yield _program(tree, suite, test, by_program, expected, folder)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return


def _program(
    tree: Tree,
    suite: Suite,
    test: Mapping[str, Any],
    targets: Mapping[str, Mapping[str, Any]],
    expected: set[str],
    folder: str,
) -> Program:
    title = str(test["name"])
    argv = tuple(str(word) for word in test["cmd"])
    program = argv[0]
    target = targets.get(program, {})
    groups = target.get("target_sources", ())
    paths = [suite.in_tree(str(path)) for group in groups for path in group.get("sources", ())]
    sources = tuple(path for path in paths if path in tree.paths)
    flags = " ".join(str(flag) for group in groups for flag in group.get("parameters", ()))
    scripts = [path for path in map(suite.in_tree, argv) if path in tree.paths]
    file = (
        file_of(sources, (str(target.get("name", "")), title)) or (scripts or [suite.path("meson.build")])[0]
    )
    seconds = test.get("timeout")
    protocol = str(test.get("protocol", ""))
    return Program(
        ident_of(file, [title]),
        program=program,
        file=file,
        title=title,
        argv=argv,
        cwd=str(test.get("workdir") or folder),
        env={str(name): str(value) for name, value in dict(test.get("env") or {}).items()},
        seconds=float(seconds) if isinstance(seconds, int | float) and seconds > 0 else 0.0,
        skip=(SKIP,),
        expected_to_fail=title in expected,
        tap=protocol == "tap",
        sources=sources,
        make=("ninja", "-C", folder, posixpath.relpath(program, folder))
        if program.startswith(f"{folder}/")
        else (),
        facts={"compiler flags": flags, "PROTOCOL": protocol},
    )
