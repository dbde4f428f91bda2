"""Run one pytest session in a forked child, which reports over a private pipe."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH100, PTH109, PTH118, PTH123

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from m3agent.serving.embedded.probe.processes import Channel, end_with_parent, forked
from m3agent.serving.embedded.probe.tree import Tree

MEMORY = 1024 * 1024 * 1024
"""Bytes of address space that a child may add to its parent's."""

OPTIONS = """
    -q -s --tb=no --no-header --continue-on-collection-errors --maxfail=0 -o console_output_style=classic
    -p no:unraisableexception -p no:cacheprovider
"""
FOREIGN = ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")
"""Variables with which pytest and its plugins import the repository's modules."""
WITHOUT_SETTINGS = ("-o", "addopts=", "-o", "required_plugins=")
"""Options without which pytest refuses to start if the repository's settings need what is not installed."""
USAGE_ERROR = 4
FRAMES = 60
"""Most frames of one traceback."""


class TestTimeout(BaseException):
    """A test ran past its limit. It is no Exception, so the tested code does not catch it."""


def contain(tree: Tree) -> None:
    """Prepare a fresh fork: own process group, no output, resource limits, imports from `tree`."""
    os.setsid()
    end_with_parent()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, held + MEMORY),
        (resource.RLIMIT_FSIZE, 64 * 1024 * 1024),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, hard))
    sys.dont_write_bytecode = True  # a candidate's file may have the same time and size as the previous one
    tree.adopt_environment()


def fork(tree: Tree, body: Callable[[Channel], None]) -> tuple[int, int]:
    """Run ``body(channel)`` in a contained child; return its process id and the pipe to read from."""
    reader, writer = os.pipe()

    def child() -> None:
        os.close(reader)
        contain(tree)
        body(Channel(writer))

    pid = forked(child)
    os.close(writer)
    return pid, reader


def arm(cpu: float, wall: float) -> None:
    """Start the timers of one test, CPU and wall time in seconds; 0 and 0 stop them."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


def on_alarm(number: int, frame: types.FrameType | None) -> None:
    """Signal handler: end the running test."""
    raise TestTimeout("the test ran past its limit")


def frames_of(error: BaseException | None, tree: Tree) -> list[list[Any]]:
    """Return ``[file, line, function]`` of the traceback, outermost first; frames of causes come first."""
    found: list[list[Any]] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        own: list[list[Any]] = []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            rel = None if code.co_filename.startswith("<") else tree.rel(os.path.abspath(code.co_filename))
            entry = [rel, trace.tb_lineno, code.co_name]
            if rel is not None and entry not in own:
                own.append(entry)
            trace = trace.tb_next
        if isinstance(error, SyntaxError) and error.filename:
            rel = tree.rel(os.path.abspath(error.filename))
            if rel is not None:
                own.append([rel, error.lineno or 1, "<module>"])
        found = own + found
        error = error.__cause__ or error.__context__
    return found[-FRAMES:]


def described(error: BaseException) -> str:
    """Return the type of an exception and its message."""
    return (type(error).__name__ + ": " + str(error))[:300]


def reason_in(text: str) -> str:
    """Return the line of pytest's message that names the error; empty for an empty message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    usage = [line for line in lines if "error: " in line.lower()]
    return (errors or usage or lines or [""])[-1][:300]


def briefly(excinfo: Any, *style: Any) -> str:
    """Replace pytest's description of a failure, which is not used here and takes longer than the test."""
    return "failed"


def recorder(
    channel: Channel,
    tree: Tree,
    choose: Callable[[list[Any]], list[Any]] | None,
    clock: Any,
    tracer: Any,
    loop: Any,
) -> Any:
    """Build the pytest plugin that sends events to `channel`.

    `choose` returns those of the collected items that run, in order; ``loop(session)`` replaces pytest's own test loop.
    """
    import pytest

    class Recorder:
        def __init__(self) -> None:
            self.channel = channel
            self.tracer = tracer
            self.outcome = ""
            self.frames: list[list[Any]] = []
            self.error = ""
            self.timed_out = False

        @pytest.hookimpl(hookwrapper=True)
        def pytest_collection(self, session: Any) -> Iterator[None]:
            sys.stderr = sys.stdout  # from here on, tests write to it
            if self.tracer is not None:
                self.tracer.begin()
            yield
            if self.tracer is not None:
                self.channel.send(t="import", lines=self.tracer.take())

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, config: Any, items: list[Any]) -> None:
            if choose is not None:
                items[:] = choose(items)
            self.channel.send(t="collected", ids=[item.nodeid for item in items])

        def pytest_internalerror(self, excinfo: Any) -> None:
            self.channel.send(t="reason", text=described(excinfo.value))

        def pytest_keyboard_interrupt(self, excinfo: Any) -> None:  # also called for `pytest.exit`
            self.pytest_internalerror(excinfo)

        def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
            self._blame(call.excinfo.value)
            if not isinstance(node, pytest.Item):
                self._finish(node.nodeid, "uncollected", 0.0)

        def _blame(self, error: BaseException) -> None:
            if not self.frames:
                self.frames = frames_of(error, tree)
                self.error = described(error)
            self.timed_out = self.timed_out or isinstance(error, TestTimeout)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
            yield
            if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
                self._blame(call.excinfo.value)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.outcome = "failed"
            elif report.when == "call" and not self.outcome:
                self.outcome = report.outcome

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
            self.outcome, self.frames, self.error, self.timed_out = "", [], "", False
            self.channel.send(t="start", id=item.nodeid)
            item.repr_failure = briefly
            started = time.monotonic()
            limit = clock.limit()
            if self.tracer is not None:
                self.tracer.begin()
            arm(limit, 4 * limit)
            yield
            arm(0, 0)
            lines = self.tracer.take() if self.tracer is not None else None
            seconds = time.monotonic() - started
            clock.note(seconds, self.timed_out)
            self._finish(
                item.nodeid, "timeout" if self.timed_out else self.outcome or "skipped", seconds, lines
            )

        def _finish(self, node: str, outcome: str, seconds: float, lines: Any = None) -> None:
            message: dict[str, Any] = {"t": "end", "id": node, "o": outcome, "s": round(seconds, 4)}
            if outcome not in ("passed", "skipped"):
                message["frames"], message["error"] = self.frames, self.error
            if lines is not None:
                message["lines"] = lines
                message["kinds"] = self.tracer.take_kinds()
            self.channel.send(**message)
            self.frames, self.error = [], ""

        @pytest.hookimpl(tryfirst=True)
        def pytest_assertrepr_compare(self, config: Any, op: str, left: Any, right: Any) -> list[str]:
            return [op]

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self, session: Any) -> Any:
            return loop(session) if loop is not None else None

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self, session: Any) -> None:
            self.channel.send(t="done")
            # Skip the rest: reporting for people, and a slow garbage collection.
            os._exit(0)

    return Recorder()


def only(wanted: set[str]) -> Callable[[list[Any]], list[Any]]:
    """Return a function that selects the items with these node ids."""
    return lambda items: [item for item in items if item.nodeid in wanted]


class Clock:
    """The limit of each test in seconds; after a test that hangs, later limits are shorter."""

    def __init__(self, first: float) -> None:
        self._limit = first
        self._slowest = 0.0

    def limit(self) -> float:
        """Return the limit for the next test."""
        return self._limit

    def allow(self, seconds: float) -> None:
        """Set the limit for the next tests, in seconds."""
        self._limit = seconds

    def note(self, seconds: float, timed_out: bool) -> None:
        """Adjust the limit after a finished test."""
        if timed_out:
            self._limit = min(self._limit, max(0.5, 10 * self._slowest))
        else:
            self._slowest = max(self._slowest, seconds)


def plugin_options() -> list[str]:
    """Return options that keep plugins of the repository's own configuration from affecting the probe."""
    import importlib.util

    chosen: list[str] = []
    if not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):  # otherwise pytest does not know their options
        if importlib.util.find_spec("pytest_cov") is not None:
            chosen.append("--no-cov")
        if (
            importlib.util.find_spec("pytest_randomly") is not None
        ):  # without it, a seed in addopts would be unknown
            chosen += ["--randomly-seed=0", "--randomly-dont-reorganize"]
        if importlib.util.find_spec("xdist") is not None:
            chosen += ["-n", "0"]
    return chosen


def run_pytest(channel: Channel, tree: Tree, targets: list[str], extra: list[str], plugin: Any) -> None:
    """Run one session on `targets`, with the repository's settings if pytest accepts them; call this in a contained child.

    `tools/in_sandbox/runner.py` makes the same attempts. A session that begins ends this process.
    """
    import pytest

    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGPROF, on_alarm)
    arguments = [*OPTIONS.split(), "--rootdir", tree.place, *extra, *targets]
    reason, null = "", sys.stderr  # if nothing held it, its file descriptor would be closed
    for more in (plugin_options(), [], WITHOUT_SETTINGS):
        sys.stderr = written = io.StringIO()
        try:
            status = pytest.main([*more, *arguments], plugins=[plugin])
        except BaseException as error:  # noqa: BLE001  # a conftest may raise anything, also SystemExit
            reason = described(error)
            break
        reason = reason_in(written.getvalue())
        if status != USAGE_ERROR:
            break
    sys.stderr = null
    if reason:  # otherwise the plugin may have sent one
        channel.send(t="reason", text=reason)
    channel.send(t="broken")


def warm_up(root: str) -> None:
    """Import pytest and its plugins into this process, so that they are loaded in every fork.

    No module of the repository at `root` stays loaded: each fork must import it from its own copy, with its candidate.
    """
    kept, path, here = os.environ.copy(), sys.path[:], os.getcwd()
    for name in FOREIGN:
        os.environ.pop(name, None)
    try:
        _load_pytest()
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)
        sys.path[:] = path
    inside = os.path.realpath(root) + os.sep
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # A virtual environment in the repository is no code of it.
        if file and os.path.realpath(file).startswith(inside) and "site-packages" not in file:
            del sys.modules[name]


def _load_pytest() -> None:
    import pytest

    folder = tempfile.mkdtemp(prefix="m3-warm-")
    try:
        with open(os.path.join(folder, "test_warm.py"), "w") as file:
            file.write("def test_warm():\n    assert [1] != [2]\n")
        with open(os.devnull, "w") as null, contextlib.ExitStack() as quiet:
            quiet.enter_context(contextlib.redirect_stdout(null))
            quiet.enter_context(contextlib.redirect_stderr(null))
            pytest.main(["-q", "-s", "-p", "no:cacheprovider", "--rootdir", folder, folder])
    finally:
        sys.modules.pop("test_warm", None)
        shutil.rmtree(folder, ignore_errors=True)
