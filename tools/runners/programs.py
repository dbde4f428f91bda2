"""Run test programs one by one, and read what each left behind; ctest, meson and `make check` share this.

A program is a plain one, whose exit status is the result of its only test, or it contains the tests of a framework
(GoogleTest, Catch2). Then its own list says which tests must have a result, and its own report says which.

Programs run under `m3agent.tools.in_sandbox.steps`, another process that they cannot read or trace. So code under test can
only lie about its own program:

- It may end the process with 0. A library of m3agent in the process (`witness.c`) notes whether main() returned, with which
  status, and which source file called exit(). Only main() and files of the tests may end a program.
- It may write the framework's report itself. Then the report contradicts the list, the program's text, the exit status or
  the witness.

Limits: code that knows the witness can imitate it, because both are in one process. Programs that are linked
statically or use a sanitizer have no witness. They give a sign, which counts if a run without the patch does not give it.
Programs that a script, valgrind or ctest starts (`WILL_FAIL`, fixtures, regular expressions) have no witness either: their
exit status or output is believed. Assertion macros that a product's header redefines are not seen here: see `m3agent.tools.runners.registrations`.
"""

from __future__ import annotations

import json
import posixpath
import re
import signal
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from m3agent.tools.runners.base import (
    RED,
    Command,
    Job,
    Outcome,
    Output,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
    ident_of,
    is_within,
)
from m3agent.tools.runners.path_rules import C
from m3agent.tools.runners.report_formats import parse_xml, read_junit, read_tap
from m3agent.tools.runners.steps import MOST_REASON, first_errors, read_steps, steps_command, text_of

PATIENCE = 6
"""Time limits of a test that a program may take, because a program contains many tests."""
ALL_SKIPPED = 4
"""Exit status of Catch2's version 3 if all tests that ran were skipped."""
SKIP = 77
"""Exit status by which a test program says that it was skipped, in meson and automake."""
MODES: Sequence[Mapping[str, Any]] = (
    {
        "name": "gtest",
        "markers": ["gtest_list_tests", "libgtest."],
        "list": ["--gtest_list_tests"],
        "run": ["--gtest_output=xml:{report}", "--gtest_color=no"],
    },
    {
        "name": "catch2",
        "markers": ["list-test-names-only"],
        "list": ["--list-test-names-only"],
        "run": ["-r", "xml", "-o", "{report}"],
    },
    {
        "name": "catch3",
        "markers": ["list-listeners", "libCatch2."],
        "list": ["--list-tests", "--verbosity", "quiet"],
        "run": ["-r", "xml", "-o", "{report}"],
    },
)
"""How the tests of a framework are listed and run, if the program contains one of the markers."""
_ADDRESS = re.compile("0x[0-9a-f]+")


@dataclass(frozen=True)
class Program(Unit):
    """A test program as the build system registers it. `name` is `file::title`.

    Attributes:
        file: The file that its tests belong to, a path of the repository.
        title: Its name in the build system.
        argv, cwd, env: How it is run.
        seconds: Its own time limit; 0 if it has none.
        skip: Exit statuses that say that it was skipped.
        disabled: Whether the build system does not run it.
        expected_to_fail: Whether it must fail.
        tap: Whether its output is TAP.
        sources: Its source files, as paths of the repository.
        home: Folder in the sandbox that it was built from; empty for the work tree.
        via: Command of the build system that runs the program and writes a JUnit report to `{report}`, if only it can.
        make: Command that builds the program if it is missing.
        facts: What else the registration says; compared between two trees.
    """

    file: str = ""
    title: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    skip: tuple[int, ...] = ()
    disabled: bool = False
    expected_to_fail: bool = False
    tap: bool = False
    sources: tuple[str, ...] = ()
    home: str = ""
    via: tuple[str, ...] = ()
    make: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def registration(self) -> dict[str, Any]:
        """Return what the build system says about the tests of the program."""
        return {
            "argv": [_ADDRESS.sub("*", word) for word in self.argv],
            "env": dict(self.env),
            "cwd": self.cwd,
            "skip": list(self.skip),
            "disabled": self.disabled,
            "expected to fail": self.expected_to_fail,
            "sources": list(self.sources),
            "facts": dict(self.facts),
        }


def witness_step(work: str) -> Mapping[str, Any]:
    """Return the step that compiles the witness, which must come before the programs that it watches."""
    library = f"{work}/witness.so"
    words = ["-shared", "-fPIC", "-O1", "-w", "-Wl,-z,initfirst", "-o", library, f"{work}/witness.c", "-ldl"]
    return {"name": "witness", "argv": ["sh", "-c", 'cc "$@" || gcc "$@"', "sh", *words], "seconds": 60}


def seconds_of(value: object) -> float:
    """Return the time limit that a build system says; 0 if it says none."""
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def ninja(program: str, folder: str) -> tuple[str, ...]:
    """Return the command that builds a program in the build folder; empty for another program."""
    inside = program.startswith(f"{folder}/")
    return ("ninja", "-C", folder, posixpath.relpath(program, folder)) if inside else ()


class ProgramRunner(Runner):
    """A build system of C and C++ that knows which programs are tests."""

    language = "C/C++"
    manifest: ClassVar[str]
    registering: ClassVar[str]
    """Name of the files that register tests."""
    registers: ClassVar[re.Pattern[str]]
    """What registers a test in such a file."""
    no_tests: ClassVar[str]
    """What is wrong with a build that succeeds and lists no tests."""
    before: ClassVar[Sequence[type[ProgramRunner]]] = ()
    """Build systems that come first: if they register tests in the same folder, they are the same tests."""

    @abstractmethod
    def roots(self, tree: Tree, others: Collection[str]) -> Iterable[str]:
        """Return the sorted folders of projects, without those of the build systems that come first."""

    def code(self, text: str) -> str:
        """Return a file that registers tests without what must not be read."""
        return text

    def options(self, tree: Tree, files: Sequence[str]) -> Mapping[str, str]:
        """Return the options of a suite, given the files that may register its tests."""
        return {}

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each project that registers tests."""
        others = {suite.root for runner in self.before for suite in runner().detect(tree)}
        files, suites = tree.named(self.registering), list[Suite]()
        for root in self.roots(tree, others):
            inner = [path for path in files if is_within(path, root)]
            if first := next((p for p in inner if self.registers.search(self.code(tree.text(p)))), ""):
                evidence = f"tests are registered in {first}"
                suites.append(Suite(self.name, root, evidence, self.options(tree, inner)))
        return suites

    @abstractmethod
    def steps(self, job: Job, folder: str) -> list[Mapping[str, Any]]:
        """Return the steps that build everything in a folder, among them `configure`, `build` and `list`."""

    @abstractmethod
    def programs(self, job: Job, done: Mapping[str, Mapping[str, Any]], folder: str) -> Iterator[Program]:
        """Yield the tests that the build system listed in its steps."""

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the wanted tests: which programs contain them is known after the build."""
        return tuple(wanted)

    def build(self, job: Job) -> Command:
        """Return the command that configures and builds everything, and lists the tests."""
        return steps_command(self.steps(job, f"{job.work}/build"), job.work, "build")

    def units(self, job: Job, output: Output) -> list[Unit]:
        """Return the listed tests; a single unit that is not built if there are none."""
        done, _ = read_steps(output)
        for step in ("configure", "list"):
            if step not in done or done[step].get("exit") != 0:
                text = first_errors(text_of(done.get(step, {}))) or "the build did not end"
                return [Unit(job.suite.path(self.manifest), built=False, text=text)]
        build = done.get("build", {})
        text = (first_errors(text_of(build)) if build.get("exit") != 0 else "") or self.no_tests
        return [*self.programs(job, done, f"{job.work}/build")] or [
            Unit(job.suite.path(self.manifest), built=False, text=text)
        ]

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command that runs the programs of the targets, one after the other."""
        programs = _programs(units)
        chosen = chosen_programs(programs, job.targets) or programs
        return [self.command(job, programs, chosen)] if programs else []

    def command(self, job: Job, programs: Sequence[Program], chosen: Collection[Program]) -> Command:
        """Return the command that runs some of the programs. The names of their steps are their numbers.

        A program that hangs must leave time for the others.
        """
        work, limits = job.work, job.limits
        names = {program.name for program in chosen}
        steps: list[Mapping[str, Any]] = [witness_step(work)]
        for number, program in enumerate(programs):
            if program.disabled or not program.built or program.name not in names:
                continue
            report = f"{work}/program-{number}.out"
            limit = min(program.seconds or PATIENCE * limits.per_test, limits.total / 2)
            step: dict[str, Any] = {
                "name": str(number),
                "cwd": program.cwd,
                "seconds": limit,
                "report": report,
                "program": program.program,
            }
            if program.via:
                argv = [part.replace("{report}", report) for part in program.via]
                steps.append({**step, "argv": argv, "seconds": limit + limits.per_test})
                continue
            modes = [
                {**mode, "run": [word.replace("{report}", report) for word in mode["run"]]} for mode in MODES
            ]
            watch = program.program.startswith((f"{work}/", f"{job.suite.work_tree}/"))
            step |= {"argv": list(program.argv), "env": dict(program.env), "make": list(program.make)}
            steps.append({**step, "watch": watch, "modes": modes})
        return steps_command(steps, work, "run")

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read what the programs left behind."""
        reading, programs = Reading(ended=bool(outputs)), _programs(units)
        for output in outputs:
            steps = json.loads(output.command.files[output.command.argv[4]])["steps"]
            done, ended = read_steps(output)
            reading.ended &= ended
            for step in steps:
                if not step["name"].isdecimal():
                    continue
                program = programs[int(step["name"])]
                reading.planned.add(program.name)
                if step["name"] in done:
                    reading.reported.add(program.name)
                    self.read_program(job, program, step, done, reading)
                else:
                    reading.started.append(program.name)
        for program in programs:
            if program.disabled:
                reading.add(program.name, [], "skipped", "it is disabled")
            if program.name not in reading.planned:
                reading.reported.add(program.name)  # nobody asked for it
        return reading

    def read_program(
        self,
        job: Job,
        program: Program,
        step: Mapping[str, Any],
        done: Mapping[str, Mapping[str, Any]],
        reading: Reading,
    ) -> None:
        """Add the results of a program, given its step and what all steps left behind."""
        ProgramReader(job, program, done[step["name"]], reading, watched=bool(step.get("watch"))).read()


def _programs(units: Sequence[Unit]) -> list[Program]:
    return [unit for unit in units if isinstance(unit, Program)]


@dataclass
class ProgramReader:
    """Reads what one program left behind, and adds it to a reading."""

    job: Job
    program: Program
    done: Mapping[str, Any]
    reading: Reading
    watched: bool
    """Whether the witness was to be loaded into it."""

    def __post_init__(self) -> None:
        self.exit = self.done["exit"] if isinstance(self.done.get("exit"), int) else 127
        self.output = text_of(self.done)
        self.timed_out = bool(self.done.get("timed_out"))

    def read(self) -> None:
        """Add the results of the program."""
        if self.done.get("missing"):
            text = first_errors(self.output) or f"its program {self.program.program} does not exist"
            self._whole("error", text)
        elif self.program.via:
            self._from_ctest()
        elif self.done.get("mode"):
            self._from_framework(text_of(self.done, "mode"))
        elif self.program.tap:
            self._from_tap()
        else:
            self._from_exit()

    def _whole(self, outcome: Outcome, text: str = "") -> None:
        """Add the result of the program itself."""
        self.reading.add(self.program.name, [], outcome, text[-MOST_REASON:])

    def _sign(self, text: str) -> None:
        self.reading.tampering.append(f"{self.program.name}: {text}")

    def _why(self) -> str:
        """Return how the program ended, with the end of its output."""
        if self.timed_out:
            how = "timed out"
        elif self.exit < 0:
            try:
                how = f"ended by {signal.Signals(-self.exit).name}"
            except ValueError:
                how = f"ended by signal {-self.exit}"
        else:
            how = f"ended with status {self.exit}"
        return f"{self.output.strip()[-MOST_REASON + 100 :]}\n{how}".strip()

    def _from_exit(self) -> None:
        if not self.timed_out and self.exit in self.program.skip:
            self._whole("skipped", self._why())
            self.check_end()
        elif self.timed_out or (self.exit != 0) != self.program.expected_to_fail:
            self._whole("failed", self._why())
        elif self.program.expected_to_fail:
            self._whole("skipped", "it failed, as expected")
        else:
            self._whole("passed")
            self.check_end()

    def _from_tap(self) -> None:
        tap = read_tap(self.output)
        self.reading.results += tap.results(self.program.file, self.program.title)
        for what in tap.disorder:
            self._sign(f"{what} in its report")
        if tap.planned == 0 and self.exit == 0:
            self._whole("skipped", tap.reason)
        elif self.timed_out or not tap.complete or (self.exit != 0 and not tap.red):
            self._whole("error", self._why())
        elif not tap.red:
            self.check_end()

    def _from_ctest(self) -> None:
        cases, ended = read_junit(text_of(self.done, "report").encode())
        own = [case for case in cases if case.name == self.program.title]
        if not ended or len(own) != 1:
            self._whole("error", f"ctest wrote no result of it\n{self.output}"[:MOST_REASON])
            return
        outcome, text = own[0].outcome, own[0].text
        if outcome == "skipped" and not text.startswith(("SKIP_", "Disabled")):
            outcome = "error"  # a program or a file is missing, or a fixture failed
        elif outcome == "passed" and self.exit != 0:
            outcome = "failed"  # a test that ran with it, such as a fixture's clean-up, failed
        self._whole(outcome, text or self.output)

    def _ended_itself(self) -> bool:
        """Return whether the program came to its own end: nothing killed it, and no code under test ended it early."""
        events = self.done.get("watched")
        early = isinstance(events, list) and bool(events) and events[-1][0] != "return"
        return self.exit >= 0 and not self.timed_out and not early

    def check_end(self) -> None:
        """Add a sign if something other than main() or a test ended the program."""
        events = self.done.get("watched")
        if not isinstance(events, list) or not events:
            if self.done.get("linked") and self.watched:
                self._sign("nothing could watch how the program ends")
            return
        names = [event[0] for event in events]
        for event, _, _, place in events:
            if event.startswith("replaced:"):
                self._sign(
                    f"{self._built_from(place)} replaces {event.removeprefix('replaced:')}() of the C library"
                )
        if "main" not in names:
            self._sign(f"the program ended before main() was called{self._place(events)}")
            return
        last = events[-1]
        if last[0] == "return":
            if last[1] & 0xFF != self.exit:
                self._sign(f"main() returned {last[1]}, but the program ended with {self.exit}")
        elif "exit" not in last[0].lower():
            self._sign("the program ended without a return from main()")
        elif not self._of_test(last[3]) or last[2] == 2:
            self._sign(f"{last[0]}() ended the program{self._place(events)}")

    def _of_test(self, place: str) -> bool:
        path = self._built_from(place)
        if path == self.program.file or C.is_test(path):
            return path in self.job.tree.paths
        return place.startswith("/usr/")  # such as the main() of a framework

    def _place(self, events: Sequence[Sequence[Any]]) -> str:
        place = str(events[-1][3])
        return f" (in {self._built_from(place)})" if place else ""

    def _from_framework(self, mode: str) -> None:
        listing, report = text_of(self.done, "listed"), text_of(self.done, "report")
        names, results = (gtest_names, gtest_results) if mode == "gtest" else (catch_names, catch_results)
        planned = list(names(listing))
        known, whole = results(report)
        if mode == "gtest" and not whole:
            known = gtest_text(self.output)
        if self._ended_itself() and not known.keys() & set(planned):
            what = "its report" if planned else "its list of tests"
            problem = f"error: the program {self.program.title} uses {mode}, but {what} cannot be read"
            self.reading.problem = self.reading.problem or problem
        elif not planned:
            self._whole("error", f"it lists no tests\n{listing}"[:MOST_REASON])
        else:
            outcomes = {self._add_planned(name, known.get(name)) for name in planned}
            for name in sorted(known.keys() - set(planned)):
                self._sign(f"the program reported {name[:200]}, which its list does not contain")
            if mode == "gtest" and whole:
                self._compare_with_output(known)
            skipped = mode == "catch3" and outcomes == {"skipped"} and self.exit == ALL_SKIPPED
            is_green = whole and not self.timed_out and (self.exit == 0 or skipped)
            self._compare_with_end(red=not outcomes.isdisjoint(RED), green=is_green)

    def _add_planned(self, name: str, known: tuple[str, Outcome | Literal["open"], str] | None) -> Outcome:
        """Add the result of a test that the program lists."""
        place, outcome, text = known or ("", "error", f"it has no result\n{self._why()}")
        if outcome == "open":
            outcome, text = "failed", self._why()
        self.reading.add(self._file(place), [name], outcome, text[:MOST_REASON])
        return outcome

    def _compare_with_output(self, known: Found) -> None:
        """Add a sign for each test that passed by the report and failed by the program's output."""
        for name, (_, outcome, _) in gtest_text(self.output).items():
            if outcome == "failed" and name in known and known[name][1] == "passed":
                what = f"the report says that {name[:200]} passed, the program's output says that it failed"
                self._sign(what)

    def _compare_with_end(self, *, red: bool, green: bool) -> None:
        """Compare the results of tests with how the program ended.

        Args:
            red: Whether a test failed.
            green: Whether the program ended as if none had.
        """
        if red:
            if self.exit == 0:
                self._sign("the program ended with 0 although a test of it failed")
            return
        if not green:
            self._whole("failed", f"no test of it failed\n{self._why()}")
        self.check_end()

    def _built_from(self, place: str) -> str:
        """Return a source file of the program as a path of the repository."""
        return place.removeprefix(f"{self.program.home or self.job.suite.work_tree}/")

    def _file(self, place: str) -> str:
        """Return the file that a framework names as a path of the repository."""
        folder = self.program.cwd or self.job.suite.work_tree
        inner = self.job.suite.in_tree(posixpath.normpath(posixpath.join(folder, place))) if place else ""
        if inner in self.job.tree.paths:
            return inner
        ends = [source for source in self.program.sources if place and f"/{place}".endswith(f"/{source}")]
        return ends[0] if ends else self.program.file


Found = dict[str, tuple[str, Outcome | Literal["open"], str]]
"""A test's file, outcome (or `open`) and text, by its name."""


def gtest_names(text: str) -> Iterator[str]:
    """Yield the names in the output of `--gtest_list_tests`."""
    group = ""
    for line in text.splitlines():
        name = line.partition("#")[0].rstrip()
        if name.endswith(".") and not name.startswith(" "):
            group = name
        elif name.startswith("  ") and group:
            yield group + name.strip()
        else:
            group = ""


def catch_names(text: str) -> Iterator[str]:
    """Yield the names in Catch2's list of names."""
    for line in text.splitlines():
        if line.strip() and not line.startswith(("All available test cases", "Matching test cases")):
            yield line.strip()


def gtest_results(text: str) -> tuple[Found, bool]:
    """Return the results in GoogleTest's XML report, and whether it is complete."""
    cases, whole = read_junit(text.encode())
    known: Found = {}
    for case in cases:
        name = f"{case.group}.{case.name}"
        if name not in known or known[name][1] != "failed":
            known[name] = (case.file, case.outcome, case.text)
    return known, whole


_GTEST_LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)(?: \(\d+ ms\)|, where .*|\s*)$")


def gtest_text(text: str) -> Found:
    """Return the results in GoogleTest's output: a result counts only for the test that is running."""
    results: Found = {}
    running = ""
    lines: list[str] = []
    for line in text.splitlines():
        match = _GTEST_LINE.match(line)
        if match is None:
            lines.append(line)
            continue
        word, name = match.groups()
        if word == "RUN":
            running = name
            lines = []
            results.setdefault(name, ("", "open", ""))
        elif word == "FAILED" and name in results:
            results[name] = ("", "failed", "\n".join(lines) if name == running else results[name][2])
        elif name == running and results[name][1] == "open":
            results[name] = ("", "passed" if word == "OK" else "skipped", "")
    return results


def catch_results(text: str) -> tuple[Found, bool]:
    """Return the results in Catch2's XML report, and whether it is complete."""
    root = parse_xml(text.encode())
    results: Found = {}
    if root is None:
        return results, False
    for case in root.all("TestCase"):
        broken = [
            element
            for element in case.all("Expression", "Exception", "FatalErrorCondition", "Failure")
            if element.get("success") != "true"
        ]
        result = next((child for child in case.children if child.tag == "OverallResult"), None)
        outcome: Outcome | Literal["open"] = "open"
        if result is not None:
            passed = result.get("success") == "true"
            skipped = passed and (bool(broken) or result.get("skips") not in ("", "0"))
            outcome = "skipped" if skipped else "passed" if passed else "failed"
        name = case.get("name").strip()
        if name in results and results[name][1] in ("failed", "open"):
            continue
        results[name] = (case.get("filename"), outcome, "\n".join(_catch_text(e.tag, e) for e in broken))
    return results, root.ended


def _catch_text(tag: str, element: Any) -> str:
    parts = " ".join(child.text.strip() for child in element.children if child.tag == "Expanded")
    return f"{element.get('filename')}:{element.get('line')}: {tag}: {parts or element.text.strip()}"


def file_of(sources: Sequence[str], names: Sequence[str]) -> str:
    """Return the source file that a program's tests belong to; empty if it has none.

    Args:
        names: Names of the program and of its test.
    """
    tests = [path for path in sources if C.is_test(path) and not path.endswith((".h", ".hpp"))]
    candidates = tests or list(sources)
    stems = {_plain(posixpath.splitext(posixpath.basename(path))[0]): path for path in reversed(candidates)}
    named = next((stems[_plain(name)] for name in names if _plain(name) in stems), "")
    return named or next(iter(candidates), "")


def _plain(name: str) -> str:
    """Return a name without the words that mark tests: `cart` for `test_cart`."""
    return re.sub(r"[._-]?(?:unit[._-]?)?tests?[._-]?", "", name.lower()) or name


def chosen_programs(programs: Sequence[Program], targets: Collection[str]) -> list[Program]:
    """Return the programs that contain targets: ids, files or folders. No targets are all programs."""
    if not targets:
        return list(programs)
    chosen = []
    for program in programs:
        files = {program.file, *program.sources}
        for file, _, name in (target.partition("::") for target in targets):
            inside = file in files or any(file in ("", ".") or path.startswith(f"{file}/") for path in files)
            if inside and (not name or program.title == name or not _has_title(programs, file, name)):
                chosen.append(program)
                break
    return chosen


def _has_title(programs: Sequence[Program], file: str, name: str) -> bool:
    """Return whether an id names a program, not a test inside of one."""
    return any(program.name == ident_of(file, [name]) for program in programs)
