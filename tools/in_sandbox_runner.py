"""Run tests with pytest or unittest and write each result to a report; runs in the sandbox (`python3 -c`).

Uses only the standard library, except for pytest; Python 3.8+. The report consists of JSON lines. When a test
begins: {"start": id}. When it ends: {"id", "outcome", "seconds", "text"}; outcomes are passed, failed, error,
skipped. At the end: {"end": exit status}, with "stopped": true if the time was over before all tests had started.

The framework is pytest, unittest, or collect: pytest, but no test runs, so that only errors of imports are reported.

Arguments: framework, report path, seconds that one test may take, targets. Of several targets, missing ones
are ignored. Without a target, pytest takes those of the repository's settings.

Standard input may hold a JSON object for pytest. All keys are optional:

- "only": ids. Only the tests with these ids run, and all tests of the functions, classes, files and folders with these
  ids; none means all tests.
- "skip": ids, as in "only". These tests do not run.
- "ignore": paths of files to leave out.
- "unstable": pattern. Text that matches it is different in every run and is cut to its first two characters, as in the
  ids.
- "until": seconds since the start of this program. After them no further test starts.
- "record": {"after": seconds, "above": seconds}. Record which functions of the work tree each test executes. See
  `Recorder` for when this begins. The report then has two more kinds of lines. A function: {"code": [path, first line,
  name]}; the first such line is number 0. A test that ended: {"ran": id, "codes": packed numbers}, with "elsewhere":
  true if the test may have executed more. The framework collect has one such line, with the id ".": what runs while the
  tests are imported.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# A test may take this many times the duration of the longest passed test, if that is more than the limit.
GROW = 20
# After each timeout, the limit is divided by this number, down to a second. A suite in which an endless loop
# makes every test hang therefore still ends.
SHRINK = 3
MOST_TEXT = 4000
# While functions are recorded, a test may take this many times the limit, because recording slows it.
SLOWER = 4


class OverTime(BaseException):
    """A test took too long.

    It is a BaseException, so that no `except Exception` in the tested code catches it.
    """


class Report:
    """The report file, and the timer of the running test."""

    now = staticmethod(time.monotonic)  # saved before a test can replace the clock

    def __init__(self, path: str, limit: float) -> None:
        self.file = open(path, "w", buffering=1)
        self.limit = limit
        self.opened = self.now()
        self.stopped = False  # whether the time was over before all tests had started
        self.current: str | None = None
        self.began = 0.0
        self.over = False
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        self.over = True
        raise OverTime("timed out after %g s" % self.limit)

    def write(self, line: dict[str, object]) -> None:
        self.file.write(json.dumps(line) + "\n")

    def start(self, ident: str) -> None:
        self.current = ident
        self.began = self.now()
        self.over = False
        self.write({"start": ident})
        # ring again every second, in case code swallows the exception
        signal.setitimer(signal.ITIMER_REAL, self.limit, 1.0)

    def stop_clock(self) -> float:
        """Stop the timer; return the remaining seconds."""
        return signal.setitimer(signal.ITIMER_REAL, 0)[0]

    def resume_clock(self, left: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(left, 1.0), 1.0)

    def result(self, ident: str, outcome: str, text: str = "") -> None:
        self.stop_clock()
        seconds = self.now() - self.began if ident == self.current else 0.0
        if self.over:
            outcome, text = "failed", "timed out after %g s\n%s" % (self.limit, text)
            self.limit = max(1.0, self.limit / SHRINK)
            self.over = False
        elif outcome == "passed":
            self.limit = max(self.limit, GROW * seconds)
        self.write({"id": ident, "outcome": outcome, "seconds": round(seconds, 4), "text": text[-MOST_TEXT:]})

    def end(self, status: int) -> None:
        self.stop_clock()
        self.write({"end": int(status), **({"stopped": True} if self.stopped else {})})


class Selection:
    """Which tests run, until when, and whether their functions are recorded: the object on standard input."""

    def __init__(self, text: str) -> None:
        wanted = json.loads(text)
        self.only = frozenset(wanted.get("only", ()))
        self.skip = frozenset(wanted.get("skip", ()))
        self.ignore = list(wanted.get("ignore", ()))
        self.unstable = re.compile(wanted.get("unstable", "(?!)"))  # the default matches nothing
        self.until = wanted.get("until")
        self.record = wanted.get("record")

    def has(self, ident: str) -> bool:
        if not self.only and not self.skip:
            return True
        ident = self.unstable.sub(lambda found: found[0][:2], ident)
        function = ident.partition("[")[0]
        names = {ident, function, "."}
        names.update(ident[: border.start()] for border in re.finditer("::|/", ident))
        return self.skip.isdisjoint(names) and not (self.only and self.only.isdisjoint(names))


class PytestPlugin:
    """Write the results that pytest reports."""

    def __init__(self, report: Report, selection: Selection | None = None) -> None:
        import pytest

        pytest.hookimpl(tryfirst=True)(PytestPlugin.pytest_runtestloop)
        pytest.hookimpl(hookwrapper=True, tryfirst=True)(PytestPlugin.pytest_runtest_protocol)
        self.report = report
        self.selection = selection or Selection("{}")
        self.worst = ("passed", "")
        self.left = 0.0
        self.started = False  # whether pytest accepted its settings

    def pytest_sessionstart(self, session: object) -> None:
        self.started = True

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        kept: list[Any] = []
        dropped: list[Any] = []
        for item in items:
            (kept if self.selection.has(item.nodeid) else dropped).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=dropped)

    def over(self) -> bool:
        """Whether no further test may start."""
        until = self.selection.until
        return until is not None and self.report.now() - self.report.opened >= until

    def stop(self, session: Any) -> None:
        self.report.stopped = True
        session.shouldstop = "the time is over"

    def pytest_runtestloop(self, session: Any) -> None:
        if session.items and self.over():  # the collection took all of the time
            self.stop(session)
            raise session.Interrupted(session.shouldstop)

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        yield
        if nextitem is not None and self.over():
            self.stop(item.session)

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self.worst = ("passed", "")
        self.report.start(nodeid)

    def pytest_runtest_makereport(self, item: object, call: object) -> None:
        self.left = self.report.stop_clock()  # an alarm while pytest formats an error would end pytest itself

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            text = getattr(report, "longreprtext", "") or str(report.longrepr)
            if self.worst[0] in ("passed", "skipped"):
                self.worst = ("failed" if report.when == "call" else "error", text)
        elif report.skipped and self.worst[0] == "passed":
            self.worst = ("skipped", "")
        self.report.resume_clock(self.left)

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self.report.result(nodeid, *self.worst)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.report.result(report.nodeid or ".", "error", str(report.longrepr))


PROCESSES = re.compile(r"\b(multiprocessing/(connection|popen_\w+)|subprocess|bdb)\.py$")
"""Files whose functions start other processes, talk with them, or set a tracer."""

INSTALLED = frozenset(("site-packages", ".venv", ".tox", ".nox"))
"""Folders with installed packages, which no patch changes."""


class Tracer:
    """Collects the functions that run, with `sys.settrace`: for Python before 3.12.

    Attributes:
        seen: The code objects by their id. Equal code objects of different files must stay apart, so this is no set.
    """

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # the same for all tests, because threads keep their tracer
        seen = self.seen

        def trace(frame: Any, event: str, arg: object, address: Callable[[object], int] = id) -> None:
            code = frame.f_code
            seen[address(code)] = code

        self.trace: Any = trace

    def start(self) -> bool:
        """Begin to collect; return False if another tracer is at work."""
        if sys.gettrace() is not None:
            return False
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        return True

    def again(self) -> None:
        """Make sure that functions which were seen before are seen again."""

    def intact(self) -> bool:
        return sys.gettrace() is self.trace and getattr(threading, "_trace_hook", self.trace) is self.trace

    def stop(self) -> None:
        if sys.gettrace() is self.trace:
            sys.settrace(None)
        threading.settrace(None)


class Monitor:
    """Collects the functions that run, with `sys.monitoring`: for Python 3.12 and later. As `Tracer`."""

    NAME = "m3agent"

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}
        seen = self.seen
        self.api: Any = getattr(sys, "monitoring")  # noqa: B009 - typed for older versions, which lack it
        disable = self.api.DISABLE
        self.kinds = (self.api.events.PY_START, self.api.events.PY_RESUME)
        self.events = self.kinds[0] | self.kinds[1]
        self.tool: int | None = None

        def begun(code: Any, offset: int, address: Callable[[object], int] = id) -> object:
            seen[address(code)] = code
            return disable

        self.begun = begun

    def start(self) -> bool:
        if self.tool is None or self.api.get_tool(self.tool) != self.NAME:
            free = [number for number in (4, 3) if self.api.get_tool(number) is None]
            if not free:
                return False
            self.tool = free[0]
            self.api.use_tool_id(self.tool, self.NAME)
            for kind in self.kinds:
                self.api.register_callback(self.tool, kind, self.begun)
        self.api.set_events(self.tool, self.events)
        self.again()
        return True

    def again(self) -> None:
        self.api.restart_events()

    def intact(self) -> bool:
        return bool(
            self.api.get_tool(self.tool) == self.NAME and self.api.get_events(self.tool) == self.events
        )

    def stop(self) -> None:
        if self.api.get_tool(self.tool) == self.NAME:
            self.api.set_events(self.tool, 0)


def pack(numbers: Iterable[int]) -> str:
    """Return a set of numbers as text: the differences of the ascending numbers, 7 bits a byte, compressed."""
    data = bytearray()
    last = 0
    for number in sorted(set(numbers)):
        delta, last = number - last, number
        while delta > 127:
            data.append(delta & 127 | 128)
            delta >>= 7
        data.append(delta)
    return base64.b64encode(zlib.compress(bytes(data))).decode()


class Recorder:
    """Pytest plugin that records which functions of the work tree each test executes.

    Recording makes tests slower, so short suites do without. `after` seconds after the start of the first test, the
    duration of the whole run is estimated at the start of each test. When it is more than `above` seconds, the
    recording of this test and of all following ones begins.

    A fixture of a wider scope than a function runs once, but a test that uses it depends on what it executes. So these
    fixtures are always recorded, and their functions count for each test that uses them.
    """

    def __init__(self, report: Report, after: float, above: float) -> None:
        import pytest

        around = pytest.hookimpl(hookwrapper=True, tryfirst=True)
        around(Recorder.pytest_runtest_protocol)
        around(Recorder.pytest_fixture_setup)
        pytest.hookimpl(tryfirst=True)(Recorder.pytest_runtest_teardown)
        self.report = report
        self.after = after
        self.above = above
        self.root = os.path.realpath(os.getcwd())
        self.tracer: Tracer | Monitor = Monitor() if sys.version_info >= (3, 12) else Tracer()
        self.first: float | None = None  # when the first test started
        self.done = 0
        self.on = False
        self.tracing = False  # whether the running test, or a fixture before recording is on, is recorded
        self.elsewhere = False  # whether something ran that the tracer did not see
        self.children = self.count_children()
        self.places: dict[str, str | None] = {}
        self.numbers: dict[tuple[str, int, str], int] = {}
        self.kept: dict[int, tuple[object, frozenset[int], bool]] = {}  # by the id of the fixture definition
        self.used: list[Any] = []
        # threads that started before recording was on: with a tracer, in fixtures, and without one
        self.traced: set[threading.Thread] = set()
        self.unseen: list[threading.Thread] = []
        # With an audit hook, each read of `frame.f_code` would call the hook: calls would take about twice as long.
        # A fork empties this list. Python 3.8 would crash at its end if the callback were a function or a method here.
        self.unforked = [True]
        os.register_at_fork(before=self.unforked.clear)

    @staticmethod
    def count_children() -> tuple[int, bool]:
        """Return what changes when another process starts or ends: the work of ended ones, and whether one is there."""
        work = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # leaves the process to the test
        except ChildProcessError:
            return (work, False)
        return (work, True)

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.begin(item)
        yield
        self.finish(item)

    def pytest_runtest_teardown(self, item: Any) -> None:
        # fixtures that the test asked for while it ran; pytest forgets them after the teardown
        self.used += getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            yield
            return
        left = self.report.stop_clock()  # an alarm in here would leave the record half done
        before = set(threading.enumerate())
        alone = not self.tracing
        if alone:
            self.tracing = self.tracer.start()
        outside = self.take()
        if self.tracing:
            self.tracer.again()
        self.report.resume_clock(left * SLOWER if alone else left)
        yield
        left = self.report.stop_clock()
        intact = self.tracing and self.tracer.intact()
        seen, elsewhere = self.take()
        if alone:
            if self.tracing:
                self.tracer.stop()
            self.tracing = False
            self.traced.update(set(threading.enumerate()) - before)
        elif not intact:
            self.tracer.start()
        numbers, processes = self.functions(seen)
        elsewhere = elsewhere or processes or not intact
        # what this fixture asked for by name while it ran is not among the fixtures of the tests that use it
        for other in getattr(request, "_fixture_defs", {}).values():
            _, more, unseen = self.kept.get(id(other), (other, frozenset(), False))
            numbers |= more
            elsewhere = elsewhere or unseen
        # the definition is kept, too: otherwise another one could get its id
        self.kept[id(fixturedef)] = (fixturedef, frozenset(numbers), elsewhere)
        self.tracer.seen.update(outside[0])
        self.tracer.seen.update(seen)
        self.elsewhere = elsewhere or outside[1]
        self.report.resume_clock(left / SLOWER if alone else left)

    def begin(self, item: Any) -> None:
        now = self.report.now()
        if self.first is None:
            self.first = now
        self.used = []
        if not self.on and now - self.first >= self.after:
            expected = (now - self.first) / max(self.done, 1) * len(item.session.items)
            self.tracing = (self.above <= 0 or expected > self.above) and self.tracer.start()
            if self.tracing:
                self.on = True
                self.report.limit *= SLOWER
                if isinstance(self.tracer, Tracer):
                    known = {threading.current_thread(), *self.traced}
                    self.unseen = [thread for thread in threading.enumerate() if thread not in known]
        elif self.on:
            self.tracing = self.tracer.start()
        self.take()

    def finish(self, item: Any) -> None:
        self.done += 1
        if not self.tracing:
            return
        self.tracing = False
        intact = self.tracer.intact()
        seen, elsewhere = self.take()
        self.tracer.stop()
        numbers, processes = self.functions(seen)
        elsewhere = elsewhere or processes or not intact or any(t.is_alive() for t in self.unseen)
        info = getattr(item, "_fixtureinfo", None)
        for definitions in getattr(info, "name2fixturedefs", {}).values():
            self.used += definitions
        for definition in self.used:
            _, more, unseen = self.kept.get(id(definition), (definition, frozenset(), False))
            numbers |= more
            elsewhere = elsewhere or unseen
        line = {"ran": item.nodeid, "codes": pack(numbers)}
        self.report.write({**line, **({"elsewhere": True} if elsewhere else {})})

    @contextlib.contextmanager
    def imports(self) -> Iterator[None]:
        """Record what runs while tests are imported, as a test with the id of the whole tree."""
        started = self.tracer.start()
        yield
        intact = started and self.tracer.intact()
        numbers, _ = self.functions(dict(self.tracer.seen))
        self.tracer.stop()
        if intact:
            self.report.write({"ran": ".", "codes": pack(numbers)})

    def take(self) -> tuple[dict[int, Any], bool]:
        """Return what was collected since the last call, and whether something ran that was not seen."""
        children = self.count_children()
        unseen = self.elsewhere or not self.unforked or children != self.children
        taken = (dict(self.tracer.seen), unseen)
        self.tracer.seen.clear()
        self.elsewhere = False
        self.unforked[:] = [True]
        self.children = children
        return taken

    def functions(self, seen: dict[int, Any]) -> tuple[set[int], bool]:
        """Return the numbers of the work tree's functions, and whether some may have run unseen."""
        numbers = set()
        processes = False
        for code in seen.values():
            if not code.co_flags & 1:  # CO_OPTIMIZED: bodies of modules and classes are no functions
                continue
            place = self.place(code.co_filename)
            if place is None:
                processes = processes or PROCESSES.search(code.co_filename) is not None
                continue
            key = (place, code.co_firstlineno, getattr(code, "co_qualname", code.co_name))
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                self.report.write({"code": key})
            numbers.add(self.numbers[key])
        return numbers, processes

    def place(self, filename: str) -> str | None:
        """Return the path in the work tree; None for a file outside of it, or an installed one."""
        if filename.startswith("<"):
            return None
        if filename not in self.places:
            try:
                path = os.path.relpath(os.path.realpath(os.path.join(self.root, filename)), self.root)
            except (OSError, ValueError):  # such as a null character: no file has this name
                path = os.pardir
            parts = path.split(os.sep)
            inside = parts[0] != os.pardir and INSTALLED.isdisjoint(parts)
            self.places[filename] = "/".join(parts) if inside else None
        return self.places[filename]


def run_pytest(report: Report, selection: Selection, targets: list[str], *more: str) -> int:
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "--color=no", "--tb=short", "--continue-on-collection-errors"]
    options += ["--rootdir=."]  # otherwise ids would start at the folder of a target with its own settings
    options += ["--maxfail=0", *more]  # run all tests, even if the repository's addopts contain -x
    options += ["--ignore=" + path for path in selection.ignore]
    plugin = PytestPlugin(report, selection)
    recorder = Recorder(report, **selection.record) if selection.record else None
    collects = "--collect-only" in more
    others = [recorder] if recorder is not None and not collects else []
    with recorder.imports() if recorder is not None and collects else contextlib.nullcontext():
        status = pytest.main([*options, *targets], plugins=[plugin, *others])
        # If pytest accepted its settings, the id is wrong, and other settings would not help.
        wrong_id = plugin.started and any("::" in target for target in targets[:1])
        if status == pytest.ExitCode.USAGE_ERROR and (not targets or is_there(targets[0])) and not wrong_id:
            # A frequent cause: the repository's settings name a plugin that is not installed here.
            print(
                "usage error: once more without the repository's addopts and required_plugins",
                file=sys.stderr,
            )
            options += ["-o", "addopts=", "-o", "required_plugins="]
            status = pytest.main([*options, *targets], plugins=[PytestPlugin(report, selection), *others])
    return int(status)


def run_unittest(report: Report, targets: list[str]) -> int:
    import unittest

    class Result(unittest.TextTestResult):
        outcome: tuple[str, str] | None = None

        def startTest(self, test: Any) -> None:
            super().startTest(test)
            self.outcome = ("passed", "")
            report.start(test.id())

        def note(self, outcome: str, error: Any = None) -> None:
            if self.outcome is not None and self.outcome[0] in ("passed", "skipped"):
                text = "".join(traceback.format_exception(*error)) if error else ""
                self.outcome = (outcome, text)

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            if self.outcome is None or not isinstance(test, unittest.TestCase):
                report.result(test.id(), "error", str(err[1]))  # a class or module failed during set-up
            else:
                self.note("error", err)

        def addFailure(self, test: Any, err: Any) -> None:
            super().addFailure(test, err)
            self.note("failed", err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            if err is not None:
                self.note("failed" if issubclass(err[0], test.failureException) else "error", err)

        def addSkip(self, test: Any, reason: str) -> None:
            super().addSkip(test, reason)
            self.note("skipped")

        def addUnexpectedSuccess(self, test: Any) -> None:
            super().addUnexpectedSuccess(test)
            self.note("failed")

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            report.result(test.id(), *(self.outcome or ("error", "")))
            self.outcome = None

    kind: Any = Result
    suite = unittest.TestSuite(map(load_unittest, targets))
    result = unittest.TextTestRunner(resultclass=kind, verbosity=0).run(suite)
    return 0 if result.wasSuccessful() else 1


def load_unittest(target: str) -> Any:
    """Return the suite of a folder, a file, a test in a file, or a module's name."""
    import unittest

    loader = unittest.TestLoader()
    path, _, inner = target.partition("::")
    if os.path.isdir(path):
        suite = loader.discover(path, top_level_dir=top_level(path))
        if not suite.countTestCases() and path in (".", "./"):
            for folder in ("tests", "test"):
                if os.path.isdir(folder):
                    suite = loader.discover(folder, top_level_dir=top_level(folder))
                    break
    elif path.endswith(".py"):
        top = top_level(os.path.dirname(path) or ".")
        sys.path.insert(0, top)
        names = os.path.relpath(path, top)[:-3].replace(os.sep, ".")
        suite = loader.loadTestsFromName(names + ("." + inner.replace("::", ".") if inner else ""))
    else:
        suite = loader.loadTestsFromName(path)
    return suite


def top_level(folder: str) -> str:
    """Return the folder that packages are imported from: the first folder upwards that is no package."""
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(os.path.abspath(folder))
    return folder


def is_there(target: str) -> bool:
    return os.path.exists(target.partition("::")[0])


def main(framework: str, path: str, limit: str, *targets: str) -> None:
    sys.path[0] = os.getcwd()
    report = Report(path, float(limit))
    # If one target is missing, pytest runs no test at all. If all are missing, it gets one of them and
    # reports that.
    wanted = [target for target in targets if is_there(target)] or list(targets[:1])
    if framework == "unittest":
        status = run_unittest(report, wanted)
    else:
        selection = Selection(sys.stdin.read() or "{}")
        more = ["--collect-only"] if framework == "collect" else []
        status = run_pytest(report, selection, wanted, *more)
    report.end(status)
    sys.exit(int(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
