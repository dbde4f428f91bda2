"""Run tests with pytest or unittest and report each result; the last module of a test program.

The report (`channel.py`) has these lines, each a kind with its fields:

- `start`, id: a test begins.
- `result`, id, outcome, seconds, text: it ended. Outcomes are passed, failed, error, skipped and xfailed.
- `command`, argument, ...: pytest starts with these arguments. If it starts again, the last such line counts.
- `end`, exit status, "1" if the time was over before all tests had started.
- `code`, path, first line, name: a function of the work tree; the first such line is number 0.
- `ran`, id, packed numbers of functions, "1" if the test may have executed more. The framework collect has such lines for
  what runs while the tests are imported, with the path of a test file as the id, or "." for what belongs to no single file.
- `forged`, `plugin`, `reached`, `blind`, `canaries`: what the guard found (`guard.py`).

The request has these keys; all but the first two are optional:

- "framework": pytest, unittest, or collect: pytest, but no test runs, so that only files that cannot be imported, or that skip
  themselves, are reported.
- "limit": seconds that one test may take.
- "targets": files, folders and ids. Missing ones are ignored if others exist. Without a target, pytest takes those of the
  repository's settings.
- "options": more options of pytest.
- "only": ids. Only the tests with these ids run, and all tests of the functions, classes, files and folders with these
  ids; none means all tests.
- "skip": ids, as in "only". These tests do not run.
- "ignore": paths of files to leave out.
- "unstable": pattern. Text that matches it is different in every run and is cut to its first two characters, as in the
  ids.
- "until": seconds since the start of this program. After them no further test starts.
- "record": {"after": seconds, "above": seconds}. Record which functions of the work tree each test executes. See
  `Recorder` for when this begins.
- "guard": {"wanted": ids, "added": paths}. Look for tampering; see `Guard`.
- "bytecode": bytecode that an earlier run kept (`bytecode.py`), in base64.
- "keep": path of a new file for the bytecode of this run.
- "variants": run the tests with each of these variants of their files, and not as they are (`variants.py`).

All keys but "framework", "limit" and "targets" are for pytest only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from m3agent.tools.in_sandbox.bytecode import collect, lay
from m3agent.tools.in_sandbox.guard import Guard, Watcher
from m3agent.tools.in_sandbox.recorder import Recorder
from m3agent.tools.in_sandbox.variants import run_variants

# A test may take this many times the duration of the longest passed test, if that is more than the limit.
GROW = 20
# After each timeout, the limit is divided by this number, down to a second. A suite in which an endless loop
# makes every test hang therefore still ends.
SHRINK = 3
MOST_TEXT = 4000
BAD = ("failed", "error")
# Options of pytest-randomly, pytest-random-order and pytest-rerunfailures, by their names in pytest's
# configuration. With these values, tests run in the order of their files, so that runs of two trees can be compared.
STEADY = {
    "randomly_reorganize": False,
    "random_order_enabled": False,
    "random_order_bucket": "default:module",
    "random_order_seed": "default:0",
    "reruns_delay": 0,  # a pause counts as time of the test
}
SEED = "--randomly-seed"


class OverTime(BaseException):
    """A test took too long.

    It is a BaseException, so that no `except Exception` in the tested code catches it.
    """


class Report:
    """The report, and the timer of the running test. Code that reaches it cannot replace its methods."""

    __slots__ = ("began", "current", "limit", "opened", "over", "stopped", "tell")
    now = staticmethod(time.monotonic)  # saved before a test can replace the clock

    def __init__(self, tell: Any, limit: float) -> None:
        self.tell = tell
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

    def start(self, ident: str, *, told: bool = True) -> None:
        self.current = ident
        self.began = self.now()
        self.over = False
        if told:
            self.tell("start", ident)
        # ring again every second, in case code swallows the exception
        signal.setitimer(signal.ITIMER_REAL, self.limit, 1.0)

    def stop_clock(self) -> float:
        """Stop the timer; return the remaining seconds."""
        return signal.setitimer(signal.ITIMER_REAL, 0)[0]

    def resume_clock(self, left: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(left, 1.0), 1.0)

    def result(self, ident: str, outcome: str, text: str = "", *, told: bool = True) -> None:
        self.stop_clock()
        seconds = self.now() - self.began if ident == self.current else 0.0
        if self.over:
            outcome, text = "failed", "timed out after %g s\n%s" % (self.limit, text)
            self.limit = max(1.0, self.limit / SHRINK)
            self.over = False
        elif outcome == "passed":
            self.limit = max(self.limit, GROW * seconds)
        if told:
            self.tell("result", ident, outcome, "%.4f" % seconds, text[-MOST_TEXT:])

    def end(self, status: int) -> None:
        self.stop_clock()
        self.tell("end", str(int(status)), "1" if self.stopped else "")


def names_around(ident: str) -> set[str]:
    """Return the names that select a test: its id with and without parameters, and all that it lies in."""
    names = {ident, ident.partition("[")[0], "."}
    names.update(ident[: border.start()] for border in re.finditer("::|/", ident))
    return names


class Selection:
    """Which tests run, and until when: a part of the request."""

    def __init__(self, request: Any) -> None:
        self.only = frozenset(request.get("only", ()))
        self.skip = frozenset(request.get("skip", ()))
        self.ignore = list(request.get("ignore", ()))
        self.unstable = re.compile(request.get("unstable", "(?!)"))  # the default matches nothing
        self.until = request.get("until")

    def has(self, ident: str) -> bool:
        if not self.only and not self.skip:
            return True
        names = names_around(self.unstable.sub(lambda match: match[0][:2], ident))
        return self.skip.isdisjoint(names) and not (self.only and self.only.isdisjoint(names))


class PytestPlugin:
    """Report the results of tests.

    A result is read from the exception that ended the test, not from pytest's report, which is easier to rewrite. The
    report counts only if it is worse: subtests that fail are in no exception.
    """

    __slots__ = (
        "collects", "function", "guard", "left", "logged", "report", "seen", "selection", "skips", "started", "variants",
    )  # fmt: skip

    def __init__(
        self, report: Report, selection: Selection, guard: Guard | None, variants: Any = None
    ) -> None:
        import pytest

        first = pytest.hookimpl(tryfirst=True)
        around = pytest.hookimpl(hookwrapper=True, tryfirst=True)
        first(PytestPlugin.pytest_configure)
        first(PytestPlugin.pytest_runtestloop)
        around(PytestPlugin.pytest_runtest_protocol)
        around(PytestPlugin.pytest_runtest_makereport)
        self.skips = (pytest.skip.Exception, pytest.xfail.Exception)
        self.function = pytest.Function
        self.report = report
        self.selection = selection
        self.guard = guard
        self.variants = variants
        self.seen: tuple[str, str] | None = None  # from exceptions; None if the test runs in another process
        self.logged: tuple[str, Any] = ("passed", None)  # from reports, with the report of a failure
        self.left = 0.0
        self.started = False  # whether pytest accepted its settings
        self.collects = False  # whether no test runs

    def pytest_configure(self, config: Any) -> None:
        """Make the order and the random numbers of tests the same in each run; a seed of the repository's own stays."""
        given = vars(config.option)
        self.collects = config.option.collectonly
        given.update((name, value) for name, value in STEADY.items() if name in given)
        own = [*config.getini("addopts"), *os.environ.get("PYTEST_ADDOPTS", "").split()]
        seeded = any(str(word).startswith(SEED) for word in own)
        if "randomly_seed" in given and (given["randomly_seed"] in ("default", "last") or not seeded):
            given["randomly_seed"] = 0

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
        until = self.selection.until
        return until is not None and self.report.now() - self.report.opened >= until

    def stop(self, session: Any) -> None:
        self.report.stopped = True
        session.shouldstop = "the time is over"

    def pytest_runtestloop(self, session: Any) -> bool | None:
        if self.guard is not None:
            # pytest takes from 5 to 20 ms to describe a failure with source code, and each canary fails
            session.config.option.tbstyle = "line"
        if session.items and self.over():  # the collection took all of the time
            self.stop(session)
            raise session.Interrupted(session.shouldstop)
        if self.variants is None:
            return None
        run_variants(session, self.variants, self.report)
        return True  # pytest runs no test itself

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        done: Any
        guard = self.guard
        real = guard is None or not guard.is_canary(item)
        self.seen = None
        self.logged = ("passed", None)
        if guard is not None:
            guard.check_item(item)
        self.report.start(item.nodeid, told=real)
        done = yield
        if done.excinfo is not None:  # the run ends in the middle of this test
            return
        outcome, text = self.seen or (self.logged[0], "")
        if self.logged[0] in BAD and not (self.seen and self.seen[0] in BAD):
            self.report.stop_clock()  # an alarm while pytest describes the failure would end pytest itself
            outcome, text = self.logged[0], self.text_of(self.logged[1])
        self.report.result(item.nodeid, outcome, text, told=real)
        if guard is not None:
            guard.check_item(item)
            if not real:
                guard.canary_ended(outcome)
        if nextitem is not None and self.over():
            self.stop(item.session)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        self.left = self.report.stop_clock()  # an alarm while pytest formats an error would end pytest itself
        done: Any = yield
        result = done.get_result()
        if call.when == "setup":
            self.seen = ("passed", "")  # another plugin may run a test again
        error = None if call.excinfo is None else call.excinfo.type
        outcome = "failed" if call.when == "call" else "error"
        if error is None:
            if not (call.when == "call" and result.failed):  # such as an unexpected success
                return
        elif issubclass(error, self.skips) or error.__name__ == "SkipTest":
            outcome = "skipped"
        elif getattr(result, "wasxfail", None) is not None and result.skipped:
            outcome = "xfailed"
        if self.seen is not None and self.seen[0] not in BAD:
            self.seen = (outcome, self.text_of_failure(item, call, result) if outcome in BAD else "")

    def text_of_failure(self, item: Any, call: Any, result: Any) -> str:
        if self.guard is None or not isinstance(item, self.function) or call.excinfo is None:
            return self.text_of(result)
        if self.guard.is_canary(item):
            return ""
        try:
            return str(item._repr_failure_py(call.excinfo, style="short"))
        except Exception:  # noqa: BLE001 - an older pytest, or an exception that cannot be described
            return self.text_of(result)

    @staticmethod
    def text_of(result: Any) -> str:
        """Return the text of a failure.

        pytest 5 cannot describe some failures, such as one whose message has a traceback of pytest's own. Its error must not end
        the run, so the text names that error.
        """
        try:
            return getattr(result, "longreprtext", "") or str(result.longrepr)
        except Exception as error:  # noqa: BLE001 - the tested code may be pytest itself, and raise anything
            crash = getattr(result.longrepr, "reprcrash", None)
            message = getattr(crash, "message", "the failure cannot be described")
            return "pytest cannot describe this failure: %s\nE   %s" % (type(error).__name__, message)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.logged[0] not in BAD:
            self.logged = ("failed" if report.when == "call" else "error", report)
        elif report.skipped and self.logged[0] == "passed":
            self.logged = ("skipped", None)
        self.report.resume_clock(self.left)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.report.result(report.nodeid or ".", "error", self.text_of(report))
        elif report.skipped and self.collects:
            self.report.result(report.nodeid or ".", "skipped", str(report.longrepr[-1]))


def has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def run_pytest(report: Report, request: Any, targets: list[str], *more: str) -> int:
    import pytest

    selection = Selection(request)
    options = ["-q", "-p", "no:cacheprovider", "--color=no", "--tb=short", "--continue-on-collection-errors"]
    options += ["--rootdir=."]  # otherwise ids would start at the folder of a target with its own settings
    options += ["--maxfail=0", *more]  # run all tests, even if the repository's addopts contain -x
    options += ["--ignore=" + path for path in selection.ignore]
    options += request.get("options", ())
    record = request.get("record")
    recorder = Recorder(report, **record) if record else None
    collects = "--collect-only" in more

    if targets == ["."]:  # named on the command line, it would also collect what is outside of `testpaths`
        targets = []

    guarded = bool(request.get("guard")) and not collects
    watcher = Watcher(report.tell) if guarded else None

    def run(*others: str) -> tuple[int, bool]:
        guard = None if watcher is None else Guard(report.tell, watcher, **request["guard"])
        plugin = PytestPlugin(report, selection, guard, request.get("variants"))
        plugins = [plugin, guard, imports if collects else recorder]
        arguments = [*options, *others, *targets]
        report.tell("command", *arguments)
        status = pytest.main(arguments, plugins=[one for one in plugins if one is not None])
        return int(status), plugin.started

    # results of tests in other processes would not arrive here
    serial = ["-n0"] if has_module("xdist") else []
    with contextlib.ExitStack() as stack:
        imports = stack.enter_context(recorder.imports()) if recorder is not None and collects else None
        status, started = run(*serial)
        if status == 4 and serial:  # the repository's settings may turn the plugin xdist off
            status, started = run()
        # If pytest accepted its settings, the id is wrong, and other settings would not help.
        wrong_id = started and any("::" in target for target in targets)
        if status == 4 and (not targets or is_there(targets[0])) and not wrong_id:
            # A frequent cause: the repository's settings name a plugin that is not installed here.
            print(
                "usage error: once more without the repository's addopts and required_plugins",
                file=sys.stderr,
            )
            status, _ = run("-o", "addopts=", "-o", "required_plugins=")
    return status


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


def main(tell: Any, request: Any) -> int:
    sys.path.insert(0, os.getcwd())
    if request.get("bytecode"):
        lay(request["bytecode"])
    keep = request.get("keep")
    if keep:
        sys.dont_write_bytecode = False
    report = Report(tell, request["limit"])
    targets = request["targets"]
    # If one target is missing, pytest runs no test at all. If all are missing, it gets one of them and
    # reports that.
    wanted = [target for target in targets if is_there(target)] or list(targets[:1])
    if request["framework"] == "unittest":
        status = run_unittest(report, wanted)
    else:
        more = ["--collect-only"] if request["framework"] == "collect" else []
        status = run_pytest(report, request, wanted, *more)
    report.end(status)
    if keep:
        collect(keep)
    return status
