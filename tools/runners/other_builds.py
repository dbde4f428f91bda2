"""C and C++ with Meson, and with Autotools as far as automake's `make check` goes. Their programs are read as those of ctest.

Meson lists the tests and their programs. Its own report contains the whole environment and is written by `meson test`, which runs
one program per test too. So m3agent runs the programs itself: then it knows how they end, and GoogleTest, Catch2 and TAP are read
per test.

automake's build works on a copy of the files, because `autoreconf` and `configure` write beside the sources. Each test runs by
itself through automake's own test driver, whose `.trs` file has the result: `make check` would run no test at all if one
could not be built. A test that is a program runs once more, directly and with the witness of
`m3agent.tools.runners.programs`, to see how it ends. Only automake says what its tests are. A Makefile that somebody wrote by hand
needs a command (`m3agent.tools.runners.command`).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import (
    RED,
    Command,
    Job,
    Outcome,
    Preparation,
    Reading,
    Suite,
    Tree,
    ident_of,
    topmost,
)
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.programs import (
    PATIENCE,
    SKIP,
    Program,
    ProgramReader,
    ProgramRunner,
    file_of,
    ninja,
    seconds_of,
    witness_step,
)
from m3agent.tools.runners.steps import files_in, first_errors, steps_command, text_of

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
                yield _meson_program(job, test, by_program, expected, folder)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return


def _meson_program(
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


_RESULT = re.compile(r"^:test-result: (PASS|FAIL|XFAIL|XPASS|SKIP|ERROR)(?: (.*))?$", re.MULTILINE)
OUTCOMES: Mapping[str, Outcome] = {
    "PASS": "passed",
    "FAIL": "failed",
    "XFAIL": "skipped",
    "XPASS": "failed",
    "SKIP": "skipped",
    "ERROR": "error",
}
COPY = """\
set -e
rm -rf "$2" "$3"
cp -a "$1/." "$2"
mkdir -p "$3"
cd "$2"
[ -f configure ] || autoreconf -fi
cd "$3"
exec "$2/configure" --disable-shared --disable-dependency-tracking
"""
LIST = """\
cd "$1"
find . -name Makefile | sort | while read -r file; do
    grep -q '^TESTS *=' "$file" || continue
    printf 'include Makefile\\nm3agent-list:\\n\\t@:\\n%s\\n%s\\n%s\\n' \\
        '$(info D '"${file%/Makefile}"')$(info T $(TESTS))$(info L $(TEST_LOGS))$(info P $(check_PROGRAMS) $(PROGRAMS))' \\
        '$(info E $(EXEEXT))' \\
        '$(foreach p,$(TESTS),$(info S $(p) $($(subst -,_,$(subst .,_,$(subst /,_,$(p:$(EXEEXT)=))))_SOURCES)))' |
        make -s -C "${file%/Makefile}" -f - m3agent-list
done
"""


class AutomakeRunner(ProgramRunner):
    """`make check` of automake."""

    name = "make-check"
    manifest, registering = "configure.ac", "Makefile.am"
    registers = re.compile(r"^[ \t]*TESTS[ \t]*\+?=", re.MULTILINE)
    no_tests = "automake lists no tests"
    before = (CtestRunner, MesonRunner)

    def roots(self, tree: Tree, others: Collection[str]) -> Iterable[str]:
        """Return the topmost folders with a `configure.ac`."""
        return topmost(set(map(posixpath.dirname, tree.named(self.manifest, "configure.in"))) - set(others))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the toolchain."""
        return Preparation(system_packages=("autoconf", "automake", "libtool", "make", "g++", "pkg-config"))

    def steps(self, job: Job, folder: str) -> list[Mapping[str, Any]]:
        """Return the steps that build a copy of everything in a folder."""
        copy = ["sh", "-c", COPY, "sh", job.suite.folder, f"{job.work}/src", folder]
        debug = {"CFLAGS": "-g -O2", "CXXFLAGS": "-g -O2"}  # the defaults: a test's exit() must be found
        return [
            {"name": "configure", "argv": copy, "must": True, "env": debug},
            {"name": "build", "argv": ["make", "-k", "-j2", "-C", folder]},
            {"name": "list", "argv": ["sh", "-c", LIST, "sh", folder]},
        ]

    def programs(self, job: Job, done: Mapping[str, Mapping[str, Any]], folder: str) -> Iterator[Program]:
        """Yield the tests in the output of `LIST`."""
        fields: dict[str, list[str]] = {}
        sources: dict[str, list[str]] = {}
        for line in [*text_of(done["list"]).splitlines(), "D"]:
            kind, _, rest = line.partition(" ")
            if kind == "D":
                tests, logs = fields.get("T", []), fields.get("L", [])
                if len(tests) == len(logs) and fields.get("D"):
                    for test, log in dict(zip(tests, logs, strict=True)).items():
                        built, files = test in fields.get("P", []), sources.get(test, [])
                        yield _automake_program(job, fields["D"][0], test, log, files, built=built)
                fields, sources = {"D": rest.split()}, {}
            elif kind == "S":
                name, *files = rest.split() or [""]
                sources[name] = files
            elif kind in ("T", "L", "P"):
                fields[kind] = rest.split()

    def command(self, job: Job, programs: Sequence[Program], chosen: Collection[Program]) -> Command:
        """Return the command that runs each test by automake's driver, and if it is a program, once more directly."""
        names = {program.name for program in chosen}
        steps = [witness_step(job.work)]
        for number, program in enumerate(programs):
            if program.name not in names:
                continue
            step = {
                "seconds": PATIENCE * job.limits.per_test,
                "cwd": program.cwd,
                "program": program.program,
                "make": list(program.make),
            }
            trs = posixpath.join(program.cwd, program.facts["log"].removesuffix(".log") + ".trs")
            steps.append({**step, "name": str(number), "argv": list(program.via), "report": trs})
            if program.program:
                direct = {"name": f"{number} direct", "argv": [program.program], "watch": True}
                steps.append({**step, **direct, "env": dict(program.env)})
        return steps_command(steps, job.work, "run")

    def read_program(
        self,
        job: Job,
        program: Program,
        step: Mapping[str, Any],
        done: Mapping[str, Mapping[str, Any]],
        reading: Reading,
    ) -> None:
        """Add the results of a test, and signs of how it ended."""
        outcome = _read_driver(program, done[step["name"]], reading)
        direct = done.get(f"{step['name']} direct")
        if outcome == "passed" and direct is not None and not direct.get("missing"):
            ProgramReader(job, program, direct, reading, watched=True).check_end()


def _automake_program(
    job: Job, inner: str, test: str, log: str, files: Sequence[str], *, built: bool
) -> Program:
    folder = posixpath.normpath(f"{job.work}/build/{inner}")
    place = posixpath.normpath(job.suite.path(inner))

    def path_of(file: str) -> str:
        return posixpath.normpath(posixpath.join(place, file))

    stem = posixpath.splitext(test)[0]
    guesses = [test, *(f"{stem}.{end}" for end in ("c", "cc", "cpp", "cxx", "C"))]
    sources = tuple(path for path in map(path_of, [*files, *guesses]) if path in job.tree.paths)
    file = file_of(sources, (posixpath.basename(stem), test)) or path_of("Makefile.am")
    return Program(
        ident_of(file, [test]),
        program=posixpath.join(folder, test) if built else "",
        file=file,
        title=test,
        cwd=folder,
        env={"srcdir": posixpath.normpath(f"{job.work}/src/{inner}")},
        sources=sources,
        home=posixpath.normpath(f"{job.work}/src"),
        # the target check-TESTS would build all other programs first
        via=("sh", "-c", 'make -s -C "$1" "$2" && cat "$1/$2"', "sh", folder, log),
        make=("make", "-C", folder, test) if built else (),
        facts={"log": log},
    )


def _read_driver(program: Program, step: Mapping[str, Any], reading: Reading) -> Outcome:
    """Add the results of a test; return the worst one."""

    def whole(outcome: Outcome, text: str = "") -> Outcome:
        reading.add(program.name, [], outcome, text)
        return outcome

    output = text_of(step)
    lines = _RESULT.findall(text_of(step, "report"))
    if step.get("missing"):
        return whole("error", first_errors(output) or "its program could not be built")
    if step.get("timed_out"):
        return whole("failed", "timed out")
    if not lines:
        return whole("error", f"automake wrote no result of it\n{output[-2000:]}")
    if len(lines) == 1 and not lines[0][1]:
        return whole(OUTCOMES[lines[0][0]], output[-4000:])
    for word, name in lines:
        part = re.sub(r"^\d+ (?:- )?|\s*# (?:SKIP|TODO).*$", "", name)
        reading.add(program.file, [program.title, part], OUTCOMES[word], output[-2000:])
    red = any(OUTCOMES[word] in RED for word, _ in lines)
    if step.get("exit") != 0 and not red:
        return whole("failed", output[-2000:])
    return "failed" if red else "passed"
