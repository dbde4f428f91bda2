"""C and C++ with Autotools: the tests that automake's `make check` runs.

The build works on a copy of the files, because `autoreconf` and `configure` write beside the sources. Each test runs by
itself through automake's own test driver, whose `.trs` file has the result: `make check` would run no test at all if one
could not be built. A test that is a program runs once more, directly and with the witness of
`m3agent.tools.runners.programs`, to see how it ends.

Only automake says what its tests are. A Makefile that somebody wrote by hand needs a command (`m3agent.tools.runners.command`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from m3agent.tools.runners import c_files
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
)
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.meson import MesonRunner
from m3agent.tools.runners.programs import (
    PATIENCE,
    Program,
    ProgramReader,
    chosen_programs,
    file_of,
    first_errors,
    read_steps,
    steps_command,
    text_of,
    witness_step,
)
from m3agent.tools.runners.records import ident_of

_TESTS = re.compile(r"^[ \t]*TESTS[ \t]*\+?=", re.MULTILINE)
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


class AutomakeRunner(Runner):
    """`make check` of automake."""

    name: ClassVar[str] = "make-check"
    language: ClassVar[str] = "C/C++"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each topmost folder with a `configure.ac` whose Makefiles list tests.

        Where CMake or Meson registers tests too, they are the same tests.
        """
        others = {suite.root for runner in (CtestRunner(), MesonRunner()) for suite in runner.detect(tree)}
        roots = {posixpath.dirname(path) for path in tree.named("configure.ac", "configure.in")} - others
        suites = []
        for root in sorted(roots):
            if any(other != root and (not other or root.startswith(f"{other}/")) for other in roots):
                continue
            inside = f"{root}/" if root else ""
            makefiles = [path for path in tree.named("Makefile.am") if path.startswith(inside)]
            found = next((path for path in makefiles if _TESTS.search(tree.text(path))), None)
            if found:
                suites.append(Suite(self.name, root, f"TESTS in {found}"))
        return suites

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the toolchain."""
        return Preparation(
            system_packages=("autoconf", "automake", "libtool", "make", "g++", "pkg-config"),
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        return c_files.is_test(path)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run."""
        return c_files.surroundings(path) or path.rpartition("/")[2] in (
            "test-driver",
            "tap-driver.sh",
            "GNUmakefile",
        )

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the wanted tests: which programs contain them is known after the build."""
        return tuple(wanted)

    def build(self, suite: Suite, tree: Tree, targets: Sequence[str], work: str) -> Command:
        """Return the command that configures and builds a copy of everything, and lists the tests."""
        source, folder = f"{work}/src", f"{work}/build"
        root = suite.folder
        debug = {"CFLAGS": "-g -O2", "CXXFLAGS": "-g -O2"}  # the defaults: a test's exit() must be found
        steps: list[Mapping[str, Any]] = [
            {
                "name": "configure",
                "argv": ["sh", "-c", COPY, "sh", root, source, folder],
                "must": True,
                "env": debug,
            },
            {"name": "build", "argv": ["make", "-k", "-j2", "-C", folder]},
            {"name": "list", "argv": ["sh", "-c", LIST, "sh", folder]},
        ]
        return steps_command(steps, work, "build")

    def units(self, suite: Suite, tree: Tree, output: Output) -> list[Unit]:
        """Return the tests that automake lists; a single unit that is not built if there are none."""
        done, _ = read_steps(output)
        whole = suite.path("configure.ac")
        for step in ("configure", "list"):
            if step not in done or done[step].get("exit") != 0:
                text = first_errors(text_of(done.get(step, {}))) or "the build did not end"
                return [Unit(whole, built=False, text=text)]
        work = posixpath.dirname(output.command.argv[4])
        units: list[Unit] = list(_programs(tree, suite, text_of(done["list"]), work))
        build = first_errors(text_of(done.get("build", {})))
        return units or [Unit(whole, built=False, text=build or "automake lists no tests")]

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command that runs the tests of the targets, one after the other."""
        programs = [unit for unit in units if isinstance(unit, Program)]
        chosen = {program.name for program in chosen_programs(programs, targets) or programs}
        seconds = PATIENCE * limits.per_test
        steps = [witness_step(work)]
        for number, program in enumerate(programs):
            if program.name not in chosen:
                continue
            step = {
                "seconds": seconds,
                "cwd": program.cwd,
                "program": program.program,
                "make": list(program.make),
            }
            trs = posixpath.join(program.cwd, program.facts["log"].removesuffix(".log") + ".trs")
            steps.append({**step, "name": str(number), "argv": list(program.via), "report": trs})
            if program.program:
                direct = {"name": f"{number} direct", "argv": [program.program], "watch": True}
                steps.append({**step, **direct, "env": dict(program.env)})
        return [steps_command(steps, work, "run")] if programs else []

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read what the tests left behind."""
        programs = [unit for unit in units if isinstance(unit, Program)]
        reading = Reading(ended=bool(outputs), reported={program.name for program in programs})
        for output in outputs:
            done, ended = read_steps(output)
            reading.ended &= ended
            for number, program in enumerate(programs):
                if (step := done.get(str(number))) is None:
                    continue
                outcome = _read(program, step, reading)
                direct = done.get(f"{number} direct")
                if outcome == "passed" and direct is not None and not direct.get("missing"):
                    ProgramReader(
                        suite, tree, program, direct, reading, self.is_test, watched=True
                    ).check_end()
            _add_open(output, programs, done, reading)
        return reading


def _add_open(output: Output, programs: Sequence[Program], done: Mapping[str, Any], reading: Reading) -> None:
    """Note the tests that were to run and did not end."""
    words = re.findall(rb'"name": "(\d+)"', output.command.files[output.command.argv[4]])
    reading.started += [programs[int(word)].name for word in words if word.decode() not in done]


def _programs(tree: Tree, suite: Suite, listing: str, work: str) -> Iterator[Program]:
    """Yield the tests in the output of `LIST`."""
    fields: dict[str, list[str]] = {}
    sources: dict[str, list[str]] = {}
    for line in [*listing.splitlines(), "D"]:
        kind, _, rest = line.partition(" ")
        if kind == "D":
            tests, logs = fields.get("T", []), fields.get("L", [])
            if len(tests) == len(logs) and fields.get("D"):
                for test, log in dict(zip(tests, logs, strict=True)).items():
                    built = test in fields.get("P", [])
                    yield _program(
                        tree, suite, work, fields["D"][0], test, log, sources.get(test, []), built=built
                    )
            fields, sources = {"D": rest.split()}, {}
        elif kind == "S":
            name, *files = rest.split() or [""]
            sources[name] = files
        elif kind in ("T", "L", "P"):
            fields[kind] = rest.split()


def _program(
    tree: Tree, suite: Suite, work: str, inner: str, test: str, log: str, files: Sequence[str], *, built: bool
) -> Program:
    folder = posixpath.normpath(f"{work}/build/{inner}")
    place = posixpath.normpath(suite.path(inner))

    def path_of(file: str) -> str:
        return posixpath.normpath(posixpath.join(place, file))

    stem = posixpath.splitext(test)[0]
    guesses = [test, *(f"{stem}.{end}" for end in ("c", "cc", "cpp", "cxx", "C"))]
    sources = tuple(path for path in map(path_of, [*files, *guesses]) if path in tree.paths)
    file = file_of(sources, (posixpath.basename(stem), test)) or path_of("Makefile.am")
    return Program(
        ident_of(file, [test]),
        program=posixpath.join(folder, test) if built else "",
        file=file,
        title=test,
        cwd=folder,
        env={"srcdir": posixpath.normpath(f"{work}/src/{inner}")},
        sources=sources,
        home=posixpath.normpath(f"{work}/src"),
        # the target check-TESTS would build all other programs first
        via=("sh", "-c", 'make -s -C "$1" "$2" && cat "$1/$2"', "sh", folder, log),
        make=("make", "-C", folder, test) if built else (),
        facts={"log": log},
    )


def _read(program: Program, step: Mapping[str, Any], reading: Reading) -> Outcome:
    """Add the results of a test; return the worst one."""

    def whole(outcome: Outcome, text: str = "") -> Outcome:
        reading.results.append(Result(program.name, outcome, text))
        return outcome

    output = text_of(step)
    found = _RESULT.findall(text_of(step, "report"))
    if step.get("missing"):
        return whole("error", first_errors(output) or "its program could not be built")
    if step.get("timed_out"):
        return whole("failed", "timed out")
    if not found:
        return whole("error", f"automake wrote no result of it\n{output[-2000:]}")
    if len(found) == 1 and not found[0][1]:
        return whole(OUTCOMES[found[0][0]], output[-4000:])
    for word, name in found:
        part = re.sub(r"^\d+ (?:- )?|\s*# (?:SKIP|TODO).*$", "", name)
        reading.results.append(
            Result(ident_of(program.file, [program.title, part]), OUTCOMES[word], output[-2000:])
        )
    red = any(OUTCOMES[word] in ("failed", "error") for word, _ in found)
    if step.get("exit") != 0 and not red:
        return whole("failed", output[-2000:])
    return "failed" if red else "passed"
