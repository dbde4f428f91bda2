"""Record which functions of the work tree each test executes."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import resource
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SLOWER = 4
"""While functions are recorded, a test may take this many times the limit, because recording slows it."""

PROCESSES = re.compile(r"\b(multiprocessing/(connection|popen_\w+)|subprocess|bdb)\.py$")
"""Files whose functions start other processes, talk with them, or set a tracer."""

INSTALLED = frozenset(("site-packages", ".venv", ".tox", ".nox"))
"""Folders with installed packages, which no patch changes."""


class Tracer:
    """Collects the functions that run, with `sys.settrace`: for Python before 3.12.

    Args:
        see: Called with the frame of each function that starts, in the place of noting it in `seen`.

    Attributes:
        seen: The code objects by their id. Equal code objects of different files must stay apart, so this is no set.
    """

    def __init__(self, see: Callable[[Any], None] | None = None) -> None:
        self.seen: dict[int, Any] = {}  # the same for all tests, because threads keep their tracer
        seen = self.seen

        def trace(frame: Any, event: str, arg: object, address: Callable[[object], int] = id) -> None:
            code = frame.f_code
            seen[address(code)] = code

        def told(frame: Any, event: str, arg: object) -> None:
            if see is not None:
                see(frame)

        self.trace: Any = trace if see is None else told

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
    """Collects the functions that run, with `sys.monitoring`: for Python 3.12 and later. As `Tracer`.

    `see` is called once for each function, and once more after each `again`.
    """

    NAME = "m3agent"

    def __init__(self, see: Callable[[Any], None] | None = None) -> None:
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

        def told(code: Any, offset: int) -> object:
            if see is not None:
                see(sys._getframe(1))
            return disable

        self.begun = begun if see is None else told

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


def new_tracer(see: Callable[[Any], None] | None = None) -> Tracer | Monitor:
    return Monitor(see) if sys.version_info >= (3, 12) else Tracer(see)


class Imports:
    """Pytest plugin that collects the functions that run while tests are imported, by the test file that runs them.

    If the body of a test file calls a function, only the tests of this file depend on it. If the function runs while another
    module is imported, the tests of all files that import this module depend on it, which may be all.

    Args:
        place: Returns the path of a file in the work tree, or None.

    Attributes:
        seen: The code objects by their id, for each test file. The path is empty if no single file runs them.
    """

    def __init__(self, place: Callable[[str], str | None]) -> None:
        import pytest

        pytest.hookimpl(hookwrapper=True, tryfirst=True)(Imports.pytest_make_collect_report)
        self.seen: dict[str, dict[int, Any]] = {}
        self.tracer = new_tracer(self.see)
        self._place = place
        self._known: set[int] = set()  # functions that were seen since a module began
        self._collected = ""  # path of the test file whose tests pytest collects

    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        import pytest

        before = self._collected
        is_file = isinstance(collector, (pytest.Module, pytest.Class))
        self._collected = collector.nodeid.partition("::")[0] if is_file else ""
        yield
        self._collected = before

    def see(self, frame: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>":  # what was seen before may run again, for another module
            self._known.clear()
            self.tracer.again()
        elif id(code) not in self._known:
            self._known.add(id(code))
            self.seen.setdefault(self._importer(frame), {})[id(code)] = code

    def _importer(self, frame: Any) -> str:
        """Return the path of the only module of the work tree that is being imported; empty if there are several."""
        modules = []
        while frame is not None:
            if frame.f_code.co_name == "<module>":
                path = self._place(frame.f_code.co_filename)
                modules += [] if path is None else [path]
            frame = frame.f_back
        return self._collected if not modules else modules[0] if len(modules) == 1 else ""


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

    def __init__(self, report: Any, after: float, above: float) -> None:
        import pytest

        around = pytest.hookimpl(hookwrapper=True, tryfirst=True)
        around(Recorder.pytest_runtest_protocol)
        around(Recorder.pytest_fixture_setup)
        pytest.hookimpl(tryfirst=True)(Recorder.pytest_runtest_teardown)
        self.report = report
        self.after = after
        self.above = above
        self.root = os.path.realpath(os.getcwd())
        self.tracer = new_tracer()
        self.first: float | None = None  # when the first test started
        self.done = 0
        self.on = False
        self.tracing = False  # whether the running test, or a fixture before recording is on, is recorded
        self.elsewhere = False  # whether something ran that the tracer did not see
        self.places: dict[str, str | None] = {}
        self.numbers: dict[tuple[str, int, str], int] = {}
        self.kept: dict[int, tuple[object, frozenset[int], bool]] = {}  # by the id of the fixture definition
        self.used: list[Any] = []
        # threads that started before recording was on: with a tracer, in fixtures, and without one
        self.traced: set[threading.Thread] = set()
        self.unseen: list[threading.Thread] = []
        # With an audit hook, each read of `frame.f_code` would call the hook: calls would take about twice as long.
        # A fork empties this list. Python 3.8 would crash at its end if the callback were a function or a method here.
        # Python before 3.7 does not say when it forks, and PyPy 3.7 not whether it has children. Then any test may have
        # executed more.
        self.can_see_forks = hasattr(os, "register_at_fork") and hasattr(os, "waitid")
        self.unforked = [True]
        self.children = self.count_children()
        if self.can_see_forks:
            os.register_at_fork(before=self.unforked.clear)

    def count_children(self) -> tuple[int, bool]:
        """Return what changes when another process starts or ends: the work of ended ones, and whether one is there."""
        work = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        if not self.can_see_forks:
            return (work, True)
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
        self.report.tell("ran", item.nodeid, pack(numbers), "1" if elsewhere else "")

    @contextlib.contextmanager
    def imports(self) -> Iterator[Imports]:
        """Record what runs while tests are imported: for each test file, and as "." what belongs to no single one."""
        imports = Imports(self.place)
        started = imports.tracer.start()
        yield imports
        intact = started and imports.tracer.intact()
        seen = {path: dict(codes) for path, codes in {"": {}, **imports.seen}.items()}
        imports.tracer.stop()
        if intact:
            for path, codes in seen.items():
                self.report.tell("ran", path or ".", pack(self.functions(codes)[0]), "")

    def take(self) -> tuple[dict[int, Any], bool]:
        """Return what was collected since the last call, and whether something ran that was not seen."""
        children = self.count_children()
        unseen = self.elsewhere or not (self.unforked and self.can_see_forks) or children != self.children
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
                self.report.tell("code", place, str(key[1]), key[2])
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
