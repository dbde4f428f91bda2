"""Modes ``profile`` and ``try``: measure and judge with the commands of other languages' test runners.

Each run of tests is a command in a private copy, with a report on standard output: JSON from ``go test`` and jest, TAP
from the others. The tests in the files (in Go: packages) with failing tests judge each candidate.
"""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: B905, PTH100, PTH108, PTH110, PTH112, PTH118, PTH120, PTH123, PTH207, PTH211, UP031

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote

from m3agent.serving.embedded.probe.processes import Verdicts
from m3agent.serving.embedded.probe.tree import (
    Tree,
    pack,
    processors,
    scratch,
    spliced,
    suspected,
    too_big_to_copy,
)
from m3agent.util.tap import tap_result

GO_CACHE = "/opt/m3agent-go/cache"
"""Folder of the compiled standard library in an environment for Go."""
GO_OUTCOMES = {"pass": "passed", "fail": "failed", "skip": "skipped"}
JEST_OUTCOMES = {"passed": "passed", "failed": "failed"}
"""Outcomes by the words for them; every other word means that the test was skipped."""
GO_VARIABLES = {"GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
FAILING = 8
PASSING = 40
"""Most failing and passing tests of which the lines are recorded."""
FIRST_UNITS = 3
FIRST_NAMES = 24
"""Most units, and failing tests in them, that run first for each candidate."""
PROFILE_SECONDS = 40.0
TOGETHER = 100
"""Most candidates in one Go program: its build takes a second, a run of it a few milliseconds."""
ROUNDS_OF_BUILDS = 4
"""Most builds of a program: each finds candidates that do not compile."""
STATUS = "exit status"
"""Name of a test that stands for the exit status of the command."""
CODE = re.compile(r"\.(?:go|[cm]?[jt]sx?)$")
NO_CODE = re.compile(
    r"(?:^|/)(?:tests?|__tests__|__mocks__|spec|e2e|testdata|node_modules|vendor)/"
    r"|[._-](?:test|spec|e2e|config)\.\w+$|(?:^|/)(?:test|spec)\.\w+$|(?:^|/)test-[^/]*$|\.d\.[cm]?ts$"
)
FRAME = re.compile(r"([^\s:()'\"]+\.(?:go|[cm]?[jt]sx?)):(\d+)")
PLACE = "/\0"
"""Stands for the folder of the copy, whose name may have spaces, in the output in which `FRAME` looks for files."""
SAID = re.compile("expected|actual|got|want|[!=]=", re.IGNORECASE)
"""Lines of an output that say what a failing test expected."""
LOADING = re.compile(
    r"-r|-c|-u|-C|--(?:require|import|loader|experimental-loader|config|ui|extension|conditions)"
)
"""Options of a test script, each with a value, that decide how files are loaded."""


WORDS: dict[str, tuple[list[str], list[str], str, list[str]]] = {
    "jest": ([], ["--ci", "--json"], "-t", ["--runTestsByPath"]),
    "vitest": (["run"], ["--reporter=tap-flat"], "-t", []),
    "mocha": ([], ["--reporter", "tap"], "--grep", []),
    "ava": ([], ["--tap"], "", []),
}
"""How runners are called: the first words, the words for the report, for tests by name, and for files."""


def is_code(rel: str) -> bool:
    """Tell whether `rel` is source code that a repair may change."""
    return bool(CODE.search(rel)) and not NO_CODE.search(rel)


class Bench:
    """A private copy of the work tree, in which the failing tests' files or packages run.

    ``asked`` has the root, the folder and runner of the suite, and the units (files, in Go packages) to run.
    """

    def __init__(self, asked: dict[str, Any], place: str) -> None:
        root = os.path.abspath(asked["root"])
        self.tree = Tree(root, place)
        for folder, _, _ in os.walk(place):
            packages = os.path.join(root, os.path.relpath(folder, place), "node_modules")
            if os.path.isdir(packages):
                os.symlink(packages, os.path.join(folder, "node_modules"))
        self.runner: str = asked["runner"]
        self.units: list[str] = asked["units"]
        self.folder = os.path.join(place, asked["folder"]) if asked["folder"] else place
        self.env = {**os.environ, "CI": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PWD": self.folder}
        self.env.pop("NODE_TEST_CONTEXT", None)
        if self.runner == "go":
            self._prepare_go()

    def _prepare_go(self) -> None:
        cache = os.path.join(tempfile.gettempdir(), "m3-go-cache")
        self.env.update(GO_VARIABLES, GOCACHE=cache)
        if os.path.isdir(GO_CACHE) and not os.path.exists(cache):  # the environment's own is read-only
            shutil.copytree(GO_CACHE, cache, copy_function=os.symlink)
        vendored = os.path.exists(os.path.join(self.folder, "vendor", "modules.txt"))
        in_workspace = self.run(["go", "env", "GOWORK"], 20)[1].strip() not in ("", "off")
        if not vendored and not in_workspace:
            self.env["GOFLAGS"] = "-mod=mod"

    def run(
        self, command: Sequence[str], seconds: float, cwd: str = "", **env: str
    ) -> tuple[int | None, str]:
        """Run a command; return its exit status, None if it ran out of time, and its output."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(max(0.1, seconds))
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return status, output.read(16 << 20).decode("utf-8", "replace")

    def command(self, units: Sequence[str], names: Sequence[str] = ()) -> list[str]:
        """Return the command that runs units, or only the tests in them with these names."""
        pattern = "^(?:%s)$" % "|".join(re.escape(name) for name in names) if names else ""
        if self.runner == "go":
            only = ["-run", pattern.replace("?:", "")] if names else []
            return ["go", "test", "-json", "-vet=off", "-count=1", "-ldflags=-s -w", *only, *units]
        options = self._options()
        if self.runner == "node-test":
            only = ["--test-name-pattern=" + pattern] if names else []
            # A process for each file, which one file does not need.
            several = ["--test"] if len(units) > 1 else []
            return ["node", *options, *several, "--test-reporter=tap", *only, *units]
        first, report, by_name, by_path = WORDS[self.runner]
        only = [by_name, pattern] if names and by_name else []
        start = ["node", self._program(self.runner), *first]
        return [*start, *options, *report, *only, *by_path, *units]

    def _program(self, name: str) -> str:
        """Return the installed program of a package, from the suite's folder upwards."""
        folder = self.folder
        while not os.path.exists(os.path.join(folder, "node_modules", ".bin", name)):
            if folder == os.path.dirname(folder):
                break
            folder = os.path.dirname(folder)
        return os.path.realpath(os.path.join(folder, "node_modules", ".bin", name))

    def _options(self) -> list[str]:
        """Return the options, in the scripts that start the runner, that decide how files are loaded."""
        word = "--test" if self.runner == "node-test" else self.runner
        with contextlib.suppress(ValueError, AttributeError):
            package = json.loads(read_text(os.path.join(self.folder, "package.json")))
            scripts = " ; ".join(str(text) for text in (package.get("scripts") or {}).values())
            for part in re.split(r"&&|\|\||;", scripts):
                words = words_of(part)
                if word in words:
                    chosen = ["--import", "tsx"] if "tsx" in words[: words.index(word)] else []
                    for option, value in zip(words, [*words[1:], ""]):
                        if LOADING.fullmatch(option.partition("=")[0]):
                            chosen += [option] if "=" in option else [option, value]
                    return chosen
        return []

    def outcomes(
        self, seconds: float, units: Sequence[str], names: Sequence[str] = ()
    ) -> tuple[dict[str, str], str]:
        """Run tests; return the outcome of each by name, and what they printed."""
        status, output = self.run(self.command(units, names), seconds)
        ended, printed = read_report(self.runner, output)
        ended[STATUS] = "timeout" if status is None else "failed" if status else "passed"
        return ended, printed

    def lines(
        self, unit: str, names: Sequence[str], seconds: float, whole: bool = False
    ) -> dict[str, set[int]]:
        """Return the lines of source files that the tests of a unit run, by file; empty if that is unknown.

        With `whole`, only the lines that run from the first to the last character, as far as that is known.
        """
        with tempfile.TemporaryDirectory(prefix="m3-lines-") as folder:
            if self.runner == "go":
                program = self.go_program(unit)
                profile = os.path.join(folder, "profile")
                if program:
                    command = [program, *only_tests(names), "-test.coverprofile=" + profile]
                    self.run(command, seconds, os.path.join(self.folder, unit))
                return self._go_lines(profile)
            self.run(self.command([unit], names), seconds, NODE_V8_COVERAGE=folder)
            found: dict[str, set[int]] = {}
            for path in glob.glob(os.path.join(folder, "*.json")):
                with contextlib.suppress(OSError, ValueError):
                    for script in json.loads(read_text(path))["result"]:
                        self._script_lines(script, all if whole else any, found)
            return found

    def go_program(self, unit: str) -> str:
        """Build a package's test program with coverage once; return its path, or an empty text if it does not build."""
        path = os.path.join(os.path.dirname(self.tree.place), "covered-" + re.sub(r"\W", "-", unit))
        if not os.path.exists(path):
            build = ["go", "test", "-c", "-vet=off", "-cover", "-coverpkg=./...", "-o", path, unit]
            self.run(build, 120)
        return path if os.path.exists(path) else ""

    def _go_lines(self, profile: str) -> dict[str, set[int]]:
        ran: dict[str, set[int]] = {}
        module = self.run(["go", "list", "-m"], 20)[1].split("\n")[0]
        blocks = re.findall(r"^(.+):(\d+)\.\d+,(\d+)\.\d+ \d+ [1-9]\d*$", read_text(profile), re.MULTILINE)
        for path, first, last in blocks:
            if path.startswith(module + "/"):
                rel = self.tree.rel(os.path.join(self.folder, path[len(module) + 1 :]))
                if rel is not None and is_code(rel):
                    ran.setdefault(rel, set()).update(range(int(first), int(last) + 1))
        return ran

    def _script_lines(
        self, script: dict[str, Any], enough: Callable[[bytearray], bool], found: dict[str, set[int]]
    ) -> None:
        rel = self.tree.rel(unquote(script["url"].replace("file://", "")))
        if rel is None or not is_code(rel) or not re.search(r"\.[cm]?js$", rel):
            return  # a file that was compiled first has other positions
        with open(os.path.join(self.tree.place, rel), encoding="utf-8") as file:
            text = file.read()
        ran = bytearray(len(text))
        for function in script["functions"]:
            for part in function["ranges"]:
                start, end = part["startOffset"], min(part["endOffset"], len(text))
                ran[start:end] = bytes([part["count"] > 0]) * (end - start)
        at = 0
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip() and enough(ran[at + len(line) - len(line.lstrip()) : at + len(line)]):
                found.setdefault(rel, set()).add(number)
            at += len(line) + 1

    def frames(self, output: str) -> list[list[Any]]:
        """Return ``[file, line, ""]`` of source code that an output names, the innermost call last."""
        places: list[list[Any]] = []
        for path, line in FRAME.findall(unquote(output).replace(self.tree.place, PLACE)):
            path = re.sub("^/+", "/", path)  # addresses of files have three
            path = path.replace(PLACE, self.tree.place)
            rel = self.tree.rel(os.path.normpath(os.path.join(self.folder, path)))
            if rel is not None and is_code(rel) and [rel, int(line), ""] not in places:
                places.append([rel, int(line), ""])
        return places[::-1]

    def named(self, tests: Sequence[str]) -> dict[str, set[int]]:
        """Return the lines of functions whose names occur in the failing units' test files, by file.

        Of Go's test files, only the functions with the names `tests` count, if there are any. This takes the place of the lines that tests run, where those cannot be recorded.
        """
        words: set[str] = set()
        for unit in self.units:
            path = os.path.join(self.folder, unit)
            for name in glob.glob(os.path.join(path, "*_test.go")) or [path]:
                text = read_text(name)
                rows = text.split("\n")
                if self.runner == "go" and tests:
                    rows = [rows[number - 1] for number in named_lines(text, set(tests))]
                words.update(re.findall(r"\w+", "\n".join(rows)))
        found: dict[str, set[int]] = {}
        for folder, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if name != "node_modules"]
            for name in files:
                path = os.path.join(folder, name)
                rel = self.tree.rel(path)
                lines = named_lines(read_text(path), words) if rel is not None and is_code(rel) else None
                if lines:
                    found[str(rel)] = lines
        return found


def read_text(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def exact_text(path: str) -> str:
    """Return the text of a file with its own line endings."""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def write_text(path: str, text: str) -> None:
    """Write a text with its own line endings."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def only_tests(names: Sequence[str]) -> list[str]:
    """Return the options of a Go test program that select tests."""
    return ["-test.run=^(%s)$" % "|".join(names)] if names else []


def read_report(runner: str, output: str) -> tuple[dict[str, str], str]:
    """Return the outcome of each test by name (the worst of tests with the same name), and what the tests printed."""
    read = {"go": read_go, "jest": read_jest}.get(runner, read_tap)
    ended, printed = read(output)
    failed = {name: outcome for name, outcome in ended if outcome == "failed"}
    return {**dict(ended), **failed}, printed


def read_go(output: str) -> tuple[list[tuple[str, str]], str]:
    """Return names and outcomes in the output of ``go test -json``, and what was printed."""
    ended, printed = [], []
    for line in output.split("\n"):
        event = json_object(line)
        if not event:
            printed.append(line + "\n")
        elif "Action" in event:  # a test may print JSON of its own
            printed.append(event.get("Output", ""))
            if "Test" in event and event["Action"] in GO_OUTCOMES:
                ended.append((event["Package"] + " " + event["Test"], GO_OUTCOMES[event["Action"]]))
    return ended, "".join(printed)


def read_jest(output: str) -> tuple[list[tuple[str, str]], str]:
    """Return names and outcomes in the output of ``jest --json``, and what was printed."""
    ended, printed = [], []
    for line in output.split("\n"):
        report = json_object(line)
        if not report:
            printed.append(line + "\n")
        for test in [test for file in report.get("testResults", ()) for test in file["assertionResults"]]:
            ended.append((test["fullName"], JEST_OUTCOMES.get(test["status"], "skipped")))
            printed += [message + "\n" for message in test.get("failureMessages") or ()]
    return ended, "".join(printed)


def read_tap(output: str) -> tuple[list[tuple[str, str]], str]:
    """Return names and outcomes in TAP, those of subtests too, and the whole output."""
    results = [tap_result(line.lstrip(" ")) for line in output.split("\n")]
    return [(result[1], result[2]) for result in results if result and result[0] is not None], output


def json_object(line: str) -> dict[str, Any]:
    """Return the object that a line is; empty for another line."""
    try:
        return json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}


def words_of(part: str) -> list[str]:
    """Return the words of a shell command; none if it has an open quotation."""
    try:
        return shlex.split(part)
    except ValueError:
        return []


def named_lines(text: str, words: set[str]) -> set[int]:
    """Return the lines of the functions, methods and constants in `text` that have one of these names."""
    definition = re.compile(
        r"^(\s*)(?:export |default |async |static |public |private |get |set )*"
        r"(?:func (?:\([^)]*\) )?|function\*? |class |const |let |var |type )?(?:\w+\.)*(\w+)\s*(?:\[[^\]]*\])?(?:\(|=|:)?"
    )
    numbers: set[int] = set()
    inside: int | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = definition.match(line)
        depth = len(line) - len(line.lstrip())
        ends = inside is not None and depth == inside and line.strip().startswith(("}", ")"))
        if inside is not None and depth <= inside and not ends:
            inside = None
        if inside is None and match and match[2] in words and re.search(r"[{(=]", line):
            inside = depth
        if inside is not None:
            numbers.add(number)
        if ends:
            inside = None
    return numbers


def top_level(runner: str, names: Sequence[str]) -> list[str]:
    """Return the names by which a runner selects these tests."""
    if runner == "go":
        names = [name.partition(" ")[2].partition("/")[0] for name in names if name != STATUS]
    return sorted(set(names) - {STATUS})


def profile(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the failing units; measure which lines their failing and passing tests run.

    ``asked`` contains root, folder, runner, units, seconds and room.
    """
    started = time.monotonic()
    root = os.path.abspath(asked["root"])
    if too_big_to_copy(root):
        return {"mode": "profile", "problem": "the repository is too big for a private copy.", "seconds": 0.0}
    with scratch() as work:
        result = measured(Bench(asked, os.path.join(work, "w")), asked)
    seconds = round(time.monotonic() - started, 2)
    return {"mode": "profile", "private": True, "seconds": seconds, "packed": pack(result, asked["room"])}


def measured(bench: Bench, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the failing tests, their frames and lines, in the form of the mode ``spectrum``."""
    bench.outcomes(asked["seconds"], bench.units)  # fills caches, so that the next run has the usual duration
    started = time.monotonic()
    before, output = bench.outcomes(asked["seconds"], bench.units)
    took = time.monotonic() - started
    red = [name for name, outcome in before.items() if outcome not in ("passed", "skipped")]
    green = [name for name, outcome in before.items() if outcome == "passed"]
    bench.tree.restore()
    first = bench.units[:: max(1, len(bench.units) // FIRST_UNITS)][:FIRST_UNITS]
    own, _ = bench.outcomes(asked["seconds"], first)
    names, first_seconds = selectable(bench, first, red, own, took)
    recorded = recorded_lines(bench, first, chosen_runs(bench, names, green, own), took)
    if not any(failing for failing, _ in recorded):
        recorded.append((True, bench.named(names)))  # a test that panics writes no profile
    expected = [line.strip() for line in output.split("\n") if SAID.search(line)]
    return {
        "passed": len(set(green) - {STATUS}),
        "failed": [[name, "failed", 0.0, "", bench.frames(output)] for name in red[:1]],
        "failed_ids": red,
        "names": names,
        "first": first,
        "green": green,
        "traced": [sum(failing for failing, _ in recorded), sum(not failing for failing, _ in recorded)],
        "suite_seconds": round(took, 3),
        "first_seconds": round(first_seconds, 3),
        "lines": suspected(recorded, {}),
        "said": "\n".join(expected)[:2000].replace('\\"', "'").replace('"', "'"),
        "watching": [],
        "imported": {},
        "kinds": {},
    }


def selectable(
    bench: Bench, units: Sequence[str], red: Sequence[str], own: dict[str, str], took: float
) -> tuple[list[str], float]:
    """Return the names by which the runner selects failing tests, and the seconds of a run of these.

    There are no names if the runner selects none of these tests.

    Args:
        bench: Where they run.
        units: What runs.
        red: All failing tests.
        own: The tests of the units, by name.
        took: Seconds of the whole suite.
    """
    names = top_level(bench.runner, [name for name in red if name in own])[:FIRST_NAMES]
    started = time.monotonic()
    chosen, _ = bench.outcomes(4 * took + 5, units, names) if names else ({}, "")
    seconds = time.monotonic() - started
    failing = {chosen.get(name) for name in red if name != STATUS} - {None, "passed", "skipped"}
    return names if failing else [], seconds


def chosen_runs(
    bench: Bench, names: Sequence[str], green: Sequence[str], own: dict[str, str]
) -> list[tuple[list[str], bool]]:
    """Return the runs whose lines are recorded: the names of their tests, and whether these fail.

    Args:
        bench: Where they run.
        names: The failing tests that the runner can select; without any, all tests run at once.
        green: All passing tests.
        own: The tests of the units that run.
    """
    if not names:
        return [([], True)]
    here = set(top_level(bench.runner, list(own))) - set(names)
    passing = [name for name in top_level(bench.runner, green) if name in here]
    step = max(1, len(passing) // PASSING)
    runs = [([name], True) for name in names[:FAILING]]
    return runs + [([name], False) for name in passing[::step][:PASSING]]


def recorded_lines(
    bench: Bench, units: Sequence[str], runs: list[tuple[list[str], bool]], took: float
) -> list[tuple[bool, dict[str, set[int]]]]:
    """Return whether a run's tests fail and the lines that it ran, for each run and unit of which these are known."""
    until = time.monotonic() + PROFILE_SECONDS
    for unit in units if bench.runner == "go" else ():
        bench.go_program(unit)

    def record(run: tuple[list[str], bool]) -> list[tuple[bool, dict[str, set[int]]]]:
        if time.monotonic() > until:
            return []
        return [(run[1], bench.lines(unit, run[0], 2 * took + 10, not run[1])) for unit in units]

    with ThreadPoolExecutor(processors()) as pool:
        return [pair for pairs in pool.map(record, runs) for pair in pairs if pair[1]]


CHOOSER = """%s

import (
"os"
"strconv"
)

var m3Candidate, _ = strconv.Atoi(os.Getenv("%s"))
"""
"""The file that tells a package which candidate is chosen."""


class Programs:
    """Go test programs that contain many candidates; a variable of the environment chooses one.

    Building a program takes about a second, and running it a few milliseconds. So each function gets the changed bodies
    of its candidates as closures in front of its own body. Candidates that do not compile are left out.
    """

    VARIABLE = "M3_CANDIDATE"

    def __init__(self, bench: Bench, files: list[str], candidates: dict[int, list[Any]]) -> None:
        self.held = set(candidates)
        self.broken: set[int] = set()
        self._bench = bench
        self._programs: dict[str, str] = {}
        self._packages = {unit: bench.run(["go", "list", unit], 20)[1].strip() for unit in bench.units}
        folder = tempfile.mkdtemp(prefix="programs-", dir=os.path.dirname(bench.tree.place))
        by_path: dict[str, dict[int, list[Any]]] = {}
        for index, candidate in candidates.items():
            by_path.setdefault(os.path.join(bench.tree.place, files[candidate[0]]), {})[index] = candidate
        originals = {path: exact_text(path) for path in sorted(by_path)}
        added = {path: os.path.join(os.path.dirname(path), "m3_candidate.go") for path in originals}
        try:
            for path, text in originals.items():
                package = re.search(r"^package \w+", text, re.MULTILINE)
                head = package[0] if package else "package main"
                write_text(added[path], CHOOSER % (head, self.VARIABLE))
            for _ in range(ROUNDS_OF_BUILDS):
                bad = self._bad(originals, by_path, folder)
                self.held -= bad
                self.broken |= bad
                if not bad:
                    break
        finally:
            for path, text in originals.items():
                write_text(path, text)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(added[path])
        if len(self._programs) < len(bench.units):
            self.held = set()

    def _bad(
        self, originals: dict[str, str], by_path: dict[str, dict[int, list[Any]]], folder: str
    ) -> set[int]:
        """Build the programs with the held candidates; return those in whose lines the compiler found errors."""
        places = {}
        for path, text in originals.items():
            own = {index: by_path[path][index] for index in by_path[path].keys() & self.held}
            joined, places[path] = side_by_side(text, own)
            write_text(path, joined)
        bad = set()
        for name, line in re.findall(r"^(?:\./)?([^\s:]+\.go):(\d+):", self._build(folder), re.MULTILINE):
            rows = places.get(os.path.normpath(os.path.join(self._bench.folder, name)), [])
            bad |= {index for index, first, last in rows if first <= int(line) <= last}
        return bad

    def _build(self, folder: str) -> str:
        """Build all programs; return the errors of the first one that does not build, or an empty text."""
        self._programs = {}
        for unit in self._bench.units:
            path = os.path.join(folder, re.sub(r"\W", "-", unit))
            flags = ["-vet=off", "-ldflags=-s -w", "-gcflags=./...=-e"]
            status, output = self._bench.run(["go", "test", "-c", *flags, "-o", path, unit], 300)
            if status:
                return output or "no output"
            self._programs[unit] = path
        return ""

    def outcomes(
        self, bench: Bench, index: int, seconds: float, units: Sequence[str], names: Sequence[str] = ()
    ) -> tuple[dict[str, str], str]:
        """Run a candidate's tests in a private copy, as `Bench.outcomes` does."""
        ended = {STATUS: "passed"}
        for unit in units:
            command = [self._programs[unit], "-test.v", *only_tests(names)]
            cwd = os.path.join(bench.folder, unit)
            status, output = bench.run(command, seconds, cwd, **{self.VARIABLE: str(index)})
            for outcome, name in re.findall(r"--- (PASS|FAIL|SKIP): (\S+) \(", output):
                ended[self._packages[unit] + " " + name] = GO_OUTCOMES[outcome.lower()]
            if status is None or (status and ended[STATUS] == "passed"):
                ended[STATUS] = "timeout" if status is None else "failed"
        return ended, ""


def side_by_side(text: str, candidates: dict[int, list[Any]]) -> tuple[str, list[tuple[int, int, int]]]:
    """Put changed bodies of a Go file's functions in front of their own ones; also return each candidate's lines.

    A candidate has a file, edits, and the body of a function: start, end, type of the result.
    """
    by_body: dict[tuple[int, int, str], list[int]] = {}
    for index, (_, _, body) in sorted(candidates.items()):
        by_body.setdefault(tuple(body), []).append(index)
    joined, at = "", 0
    places = []
    for (start, end, result), indexes in sorted(by_body.items()):
        joined += text[at : start + 1]
        for index in indexes:
            edits = [[first - start, last - start, new] for first, last, new in candidates[index][1]]
            body = spliced(text[start:end], edits)
            call = "return func() %s %s()" % (result, body) if result else "func() %s()\nreturn" % body
            joined += "\nif m3Candidate == %d {\n" % index
            first = joined.count("\n")
            joined += call + "\n}\n"
            places.append((index, first, joined.count("\n")))
        at = start + 1
    return joined + text[at:], places


class Trial:
    """The candidates, and how tests judge each of them."""

    def __init__(self, asked: dict[str, Any], programs: Programs | None) -> None:
        self.asked = asked
        self.programs = programs
        self.red, self.green = set(asked["failing"]), set(asked["green"])

    def work(self, bench: Bench, numbers: Iterator[int]) -> Iterator[tuple[str, int]]:
        """Judge candidates in a private copy."""
        for index in numbers:
            if self.programs is not None and index in self.programs.broken:
                yield "x", 0
            elif self.programs is not None and index in self.programs.held:
                yield self._judge(partial(self.programs.outcomes, bench, index))
            else:
                yield self._changed(bench, index)
            if bench.tree.small:
                bench.tree.restore()

    def _changed(self, bench: Bench, index: int) -> tuple[str, int]:
        """Judge a candidate by changing its file."""
        number, edits = self.asked["candidates"][index][:2]
        path = os.path.join(bench.tree.place, self.asked["files"][number])
        original = exact_text(path)
        write_text(path, spliced(original, edits))
        verdict = self._judge(bench.outcomes)
        write_text(path, original)
        return verdict

    def _judge(self, outcomes: Callable[..., tuple[dict[str, str], str]]) -> tuple[str, int]:
        """Return the verdict on a candidate, and the number of failing tests that pass."""
        names = self.asked["names"]
        if names:
            ended, _ = outcomes(4 * self.asked["first_seconds"] + 5, self.asked["first"], names)
            if ended[STATUS] == "timeout":
                return "t", 0
            if not any(ended.get(name) == "passed" for name in self.red - {STATUS}):
                return "f", 0
        ended, _ = outcomes(4 * self.asked["suite_seconds"] + 5, self.asked["units"])
        fixed = sum(ended.get(name) == "passed" for name in self.red)
        if ended[STATUS] == "timeout":
            return "t", 0
        if any(ended.get(name) not in ("passed", "skipped") for name in self.green):
            return "r", 0
        return ("f" if not fixed else "P" if fixed == len(self.red) else "p"), fixed


def attempt(asked: dict[str, Any]) -> dict[str, Any]:
    """Try the candidates of `asked`; report one letter for each, as the mode ``judge`` does."""
    verdicts = Verdicts(asked)
    candidates: list[list[Any]] = asked["candidates"]
    with scratch() as folder:
        count = min(processors(), max(1, len(candidates)))
        benches = [Bench(asked, os.path.join(folder, "w%d" % number)) for number in range(count)]
        step = TOGETHER if asked["runner"] == "go" else max(1, len(candidates))
        for first in range(0, len(candidates), step):
            if first >= verdicts.cutoff or time.monotonic() > verdicts.deadline:
                break
            numbers = range(first, min(first + step, len(candidates)))
            framed = {number: candidates[number] for number in numbers if len(candidates[number]) > 2}
            trial = Trial(asked, Programs(benches[0], asked["files"], framed) if framed else None)
            verdicts.share(numbers, [partial(trial.work, bench) for bench in benches])
    return verdicts.result("try")
