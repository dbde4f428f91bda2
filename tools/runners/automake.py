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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import (
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
from m3agent.tools.runners.meson import MesonRunner
from m3agent.tools.runners.programs import (
    PATIENCE,
    Program,
    ProgramReader,
    ProgramRunner,
    file_of,
    first_errors,
    steps_command,
    text_of,
    witness_step,
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
                        yield _program(job, fields["D"][0], test, log, files, built=built)
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
        outcome = _read(program, done[step["name"]], reading)
        direct = done.get(f"{step['name']} direct")
        if outcome == "passed" and direct is not None and not direct.get("missing"):
            ProgramReader(job, program, direct, reading, watched=True).check_end()


def _program(job: Job, inner: str, test: str, log: str, files: Sequence[str], *, built: bool) -> Program:
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


def _read(program: Program, step: Mapping[str, Any], reading: Reading) -> Outcome:
    """Add the results of a test; return the worst one."""

    def whole(outcome: Outcome, text: str = "") -> Outcome:
        reading.add(program.name, [], outcome, text)
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
        reading.add(program.file, [program.title, part], OUTCOMES[word], output[-2000:])
    red = any(OUTCOMES[word] in ("failed", "error") for word, _ in found)
    if step.get("exit") != 0 and not red:
        return whole("failed", output[-2000:])
    return "failed" if red else "passed"
