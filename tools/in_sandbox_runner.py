"""Run tests with pytest or unittest and write each result to a report; runs in the sandbox (`python3 -c`).

Uses only the standard library, except for pytest; Python 3.8+. The report consists of JSON lines. When a test
begins: {"start": id}. When it ends: {"id", "outcome", "seconds", "text"}; outcomes are passed, failed, error,
skipped. At the end: {"end": exit status}.

The framework is pytest, unittest, or collect: pytest, but no test runs, so that only errors of imports are reported.

Arguments: framework, report path, seconds that one test may take, targets. Of several targets, missing ones
are ignored. Without a target, pytest takes those of the repository's settings.

Standard input may hold a JSON object: {"only": [ids], "ignore": [paths], "unstable": pattern}. Then pytest runs only the
tests with these ids, and all tests of the functions, classes, files and folders with these ids; none means all tests. It
leaves out the files to ignore. Text that matches the pattern is different in every run and is cut to its first two
characters, as in the ids.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from typing import Any

# A test may take this many times the duration of the longest passed test, if that is more than the limit.
GROW = 20
# After each timeout, the limit is divided by this number, down to a second. A suite in which an endless loop
# makes every test hang therefore still ends.
SHRINK = 3
MOST_TEXT = 4000


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
        self.current: str | None = None
        self.began = 0.0
        self.over = False
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, *_: object) -> None:
        self.over = True
        raise OverTime("timed out after %g s" % self.limit)

    def start(self, ident: str) -> None:
        self.current = ident
        self.began = self.now()
        self.over = False
        self.file.write(json.dumps({"start": ident}) + "\n")
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
        line = {"id": ident, "outcome": outcome, "seconds": round(seconds, 4), "text": text[-MOST_TEXT:]}
        self.file.write(json.dumps(line) + "\n")

    def end(self, status: int) -> None:
        self.stop_clock()
        self.file.write(json.dumps({"end": int(status)}) + "\n")


class Selection:
    """The ids of the tests to run; none for all. And the files to leave out."""

    def __init__(self, text: str) -> None:
        wanted = json.loads(text)
        self.only = frozenset(wanted["only"])
        self.ignore = list(wanted["ignore"])
        self.unstable = re.compile(wanted["unstable"])

    def has(self, ident: str) -> bool:
        if not self.only:
            return True
        ident = self.unstable.sub(lambda found: found[0][:2], ident)
        function = ident.partition("[")[0]
        outer = {ident[: border.start()] for border in re.finditer("::|/", ident)}
        return not self.only.isdisjoint({ident, function, ".", *outer})


class PytestPlugin:
    """Write the results that pytest reports."""

    def __init__(self, report: Report, selection: Selection | None = None) -> None:
        self.report = report
        self.selection = selection
        self.worst = ("passed", "")
        self.left = 0.0
        self.started = False  # whether pytest accepted its settings

    def pytest_sessionstart(self, session: object) -> None:
        self.started = True

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self.selection is not None:
            kept: list[Any] = []
            dropped: list[Any] = []
            for item in items:
                (kept if self.selection.has(item.nodeid) else dropped).append(item)
            items[:] = kept
            config.hook.pytest_deselected(items=dropped)

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


def run_pytest(report: Report, selection: Selection | None, targets: list[str], *more: str) -> int:
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "--color=no", "--tb=short", "--continue-on-collection-errors"]
    options += ["--rootdir=."]  # otherwise ids would start at the folder of a target with its own settings
    options += ["--maxfail=0", *more]  # run all tests, even if the repository's addopts contain -x
    options += ["--ignore=" + path for path in (selection.ignore if selection else ())]
    plugin = PytestPlugin(report, selection)
    status = pytest.main([*options, *targets], plugins=[plugin])
    # If pytest accepted its settings, the id is wrong, and other settings would not help.
    wrong_id = plugin.started and any("::" in target for target in targets[:1])
    if status == pytest.ExitCode.USAGE_ERROR and (not targets or is_there(targets[0])) and not wrong_id:
        # A frequent cause: the repository's settings name a plugin that is not installed here.
        print("usage error: once more without the repository's addopts and required_plugins", file=sys.stderr)
        options += ["-o", "addopts=", "-o", "required_plugins="]
        status = pytest.main([*options, *targets], plugins=[PytestPlugin(report, selection)])
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
        given = sys.stdin.read()
        selection = Selection(given) if given else None
        status = run_pytest(
            report, selection, wanted, *(["--collect-only"] if framework == "collect" else [])
        )
    report.end(status)
    sys.exit(int(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
