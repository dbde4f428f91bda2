"""Run a test program that reports to this process, inside a sandbox.

The program writes a line for each test that begins or ends: number, kind, and in hexadecimal name, outcome and text, each with
a full stop, and a code. Kinds are `list` (a test exists), `start`, `result` and `done` (all tests ended). Without the key, no
code of the program can write a valid line. Canaries are tests that must fail.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from m3agent.tools.in_sandbox.record_writer import RecordWriter

MOST_TEXT = 8 << 10
"""Most characters of an error text."""
SPARE = 2.0
"""Seconds that remain for the end of the report when the time of the run is over."""
MOST_PROCESSES = 50
"""Most processes of one program."""
REPORT = "M3AGENT_REPORT"
"""Environment variable with the number of the descriptor for the report."""


class Problem(Exception):
    """Why no test can run."""


class Unit:
    """What has a test program of its own."""

    unit = ""
    program = ""
    """Path of the program; empty if it could not be built."""
    error = ""


def run_plan(build: Callable[..., Sequence[Any]], run_of: Callable[..., Any], workers: int) -> None:
    """Build and run the tests of the plan that the command line names.

    Args:
        build: Builds the programs of a plan, and returns the units. It may raise `Problem`.
        run_of: Returns the run of a unit, given the plan, the report, and when its processes end at the latest.
        workers: How many units run at the same time.
    """
    with open(sys.argv[1]) as plan_file:
        plan = json.load(plan_file)
    end = time.monotonic() + plan["total"] - SPARE
    writer = RecordWriter(plan["report"], plan["key_file"])
    try:
        units = build(plan, writer)
    except Problem as problem:
        writer.write("problem", str(problem))
        return
    for unit in units:
        writer.write("plan", unit.unit)
        if not unit.program:
            writer.write("broken", unit.unit, unit.error)
    runs = [run_of(unit, plan, writer, end) for unit in units if unit.program]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda run: run.all(), runs):
            pass
    writer.write("end")


def with_links_to(prepared: str, cache: str) -> bool:
    """Make a build cache whose files are links into a prepared one, which is read-only; return whether it was made.

    Files at its top and hidden ones are the build tool's own notes, such as locks: it writes them itself.
    """
    if os.path.exists(cache) or not os.path.isdir(prepared):
        return False
    for place, _, names in os.walk(prepared):
        inner = os.path.join(cache, os.path.relpath(place, prepared))
        os.makedirs(inner, exist_ok=True)
        for name in names:
            if place != prepared and not name.startswith("."):
                os.symlink(os.path.join(place, name), os.path.join(inner, name))
    return True


def run_tool(*argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of a toolchain to its end, with empty input and variables beside those of this process."""
    done = subprocess.run(  # noqa: UP022 - Python before 3.7 has no capture_output
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        check=False,
    )
    output, errors = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(argv, done.returncode, output, errors)


class Child:
    """A test program, its report and its output.

    Args:
        argv: Program and arguments.
        folder: Its working directory.
        env: Variables beside those of this process.
        code_of: Returns the code of a line.
        greeting: What the program reads from the descriptor first.
        per_test: Seconds without a line during a test after which the program is killed.
        end: When it is killed at the latest, as `time.monotonic` counts.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: str,
        env: Mapping[str, str],
        *,
        code_of: Callable[[bytes], bytes],
        greeting: bytes,
        per_test: float,
        end: float,
    ) -> None:
        self._code_of = code_of
        self._per_test = per_test
        self._end = end
        self.done = False
        self.hung = False
        self.out_of_time = False
        self.status = 0
        self.invalid = 0
        self._output = tempfile.TemporaryFile()
        self._report, theirs = socket.socketpair()
        self._report.sendall(greeting)
        with theirs:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **env, "PWD": folder, REPORT: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def events(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield kind, name, outcome and text of each authentic line until the process ends or hangs."""
        rest = b""
        number = 0
        open_tests = 0
        heard = time.monotonic()
        while True:
            now = time.monotonic()
            # the time between tests is for set-up
            silence = self._per_test if open_tests else 3 * self._per_test
            self.hung = now > heard + silence
            self.out_of_time = now > self._end
            if self.hung or self.out_of_time:
                break
            ended = self._process.poll() is not None
            ready, _, _ = select.select([self._report], [], [], 0 if ended else 0.05)
            chunk = self._receive() if ready else b""
            if chunk:
                heard = now
            elif ready or ended:
                # a process that a test started may hold the report open after the program's end
                self._wait(silence)
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = self._authentic(line, number + 1)
                if event is None:
                    self.invalid += 1
                    continue
                number += 1
                open_tests += {"start": 1, "result": -1}.get(event[0], 0)
                if event[0] == "done":
                    self.done = True
                else:
                    yield event
        self._report.close()
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.status = self._process.wait()

    def _receive(self) -> bytes:
        try:
            return self._report.recv(1 << 16)
        except ConnectionResetError:  # it ended without reading the greeting
            return b""

    def _wait(self, silence: float) -> None:
        """Wait for the end of the program, which has closed its report."""
        try:
            self._process.wait(max(0.0, min(silence, self._end - time.monotonic())))
        except subprocess.TimeoutExpired:
            self.hung = True

    def _authentic(self, line: bytes, number: int) -> tuple[str, str, str, str] | None:
        """Return kind, name, outcome and text of a line with the right code and number."""
        body, _, code = line.rpartition(b" ")
        if self._code_of(body) != code:
            return None
        first, kind, *fields = body.decode().split(" ")
        name, outcome, text = (bytes.fromhex(field[:-1]).decode("utf-8", "replace") for field in fields)
        return (kind, name, outcome, text) if int(first) == number else None

    def reason(self) -> str:
        """Return why the tests that were running have no result."""
        if self.hung:
            return "timed out after %g s\n%s" % (self._per_test, self.output())
        if self.out_of_time:
            return "timed out: the time of the whole run was over\n" + self.output()
        return "the test process ended during this test with status %d\n%s" % (self.status, self.output())

    def output(self) -> str:
        """Return the end of the output; of a panic in Go, its beginning."""
        self._output.seek(0)
        text = "\n" + self._output.read().decode("utf-8", "replace")
        at = max(text.rfind("\npanic: "), text.rfind("\nfatal error: "))
        return text[at:].strip()[:MOST_TEXT] if at >= 0 else text[-MOST_TEXT:].strip()


class Run:
    """The run of one unit's tests, in one process or more. A test is a file and a name.

    If a process ends early, the tests that have not begun run in a new one. Tests that were running are red. If several
    were running, each of them runs again on its own.

    Args:
        unit: Name of the unit.
        writer: The report.
        end: When processes are killed at the latest, as `time.monotonic` counts.
    """

    def __init__(self, unit: str, writer: RecordWriter, end: float) -> None:
        self.unit = unit
        self.writer = writer
        self.end = end
        self.wanted: list[tuple[str, str]] = []
        """Tests that must have a result."""
        self.canaries: Collection[str] = ()
        self._known: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()
        """Tests for which the report has a start."""
        self._finished: set[tuple[str, str]] = set()

    def child(self, tests: Sequence[tuple[str, str]] | None) -> Child:
        """Start a process for these tests; None for all tests that were selected."""
        raise NotImplementedError

    def began(self, name: str) -> tuple[str, str]:
        raise NotImplementedError

    def ended(self, name: str) -> tuple[str, str]:
        raise NotImplementedError

    def listed(self, name: str, outcome: str) -> None:
        """Take note of a test that the program has."""

    def is_canary(self, name: str) -> bool:
        """Return whether a test, or a part of a test, must fail."""
        return name in self.canaries

    def all(self) -> None:
        """Run all wanted tests; write the unit's end if each of them began."""
        done = self.process(None)
        for _ in range(MOST_PROCESSES):
            left = [test for test in self.wanted if test not in self._known]
            if done or not left or time.monotonic() > self.end:
                break
            done = self.process(left)
            if left == [test for test in self.wanted if test not in self._known]:
                break
        missing = [test for test in self.wanted if test not in self._finished]
        for test in missing:
            self.result(test, "error", "it did not run: the test process ended without it")
        if not missing and (done or self.wanted):
            self.writer.write("unit", self.unit)

    def process(self, tests: Sequence[tuple[str, str]] | None) -> bool:
        """Run tests in one process; return whether it came to its end."""
        child = self.child(tests)
        canaries = {}
        failed = False
        for kind, name, outcome, text in child.events():
            if self.is_canary(name):
                if kind == "result" and name in self.canaries:
                    canaries[name] = outcome
            elif kind == "start":
                self.start(self.began(name))
            elif kind == "result":
                failed = failed or outcome == "failed"
                self.result(self.ended(name), outcome, text)
            else:
                self.listed(name, outcome)
        for sign in self._signs(child, canaries):
            self.writer.write("tampering", "%s: %s" % (self.unit, sign))
        started = self._known - self._finished
        alone = sorted(test for test in started if "/" not in test[1])
        if len(alone) > 1 and not child.out_of_time:
            self._known -= started
            for test in alone:
                self.process([test])
            started = self._known - self._finished
        for test in sorted(started):
            self.result(test, "failed", child.reason())
        if child.done and child.status and not failed:
            text = "it ended with status %d although no test failed\n" % child.status
            self.writer.write("broken", self.unit, text + child.output())
        return child.done

    def start(self, test: tuple[str, str]) -> None:
        self._known.add(test)
        if test not in self._told:
            self._told.add(test)
            self.writer.write("start", test[0], [test[1]])

    def result(self, test: tuple[str, str], outcome: str, text: str) -> None:
        self._finished.add(test)
        self.writer.write("result", test[0], [test[1]], outcome, text[:MOST_TEXT])

    def _signs(self, child: Child, canaries: Mapping[str, str]) -> Iterator[str]:
        if child.invalid:
            yield "something else than the tests wrote into their report"
        if any(outcome != "failed" for outcome in canaries.values()):
            yield "a test that must fail did not fail"
        elif child.done and canaries.keys() != set(self.canaries):
            yield "a test that must fail did not run"
