"""Run tests in the grading sandbox (`python3 -I -c`) and report results that the patch cannot forge.

The patched code runs in this process, so nothing that it can reach is trusted:
- Results go to a file descriptor that the code does not know. Each has a number and an authentication code,
  whose key arrives on standard input. The output of tests goes elsewhere.
- An outcome is read from the exception itself, not from a report that can be rewritten.
- Canaries, tests that cannot pass, run among the real tests under the same names. Code that forges passing
  tests also makes the canaries pass.
- The functions of pytest, pluggy and unittest are recorded before any of the code is imported, and compared
  at the end.

Uses only the standard library, Python 3.7+. Standard input is one line of JSON (see `main`).
"""

from __future__ import annotations

import sys

sys.path[:] = [
    place for place in sys.path if place
]  # with -c, Python 3.7 to 3.10 would search the work tree first

import hashlib
import json
import os
import types
from typing import Any

WATCHED = ("_pytest", "pytest", "pluggy", "unittest")
"""Packages whose functions determine the results."""
MOST_CANARIES = 20


def channel(key: bytes) -> Any:
    """Return a function that reports one line.

    It takes references to its parts now, before the code can replace them.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    state = [0]
    write, code = os.write, hashlib.blake2b

    def tell(*fields: str) -> None:
        state[0] += 1
        # str methods only, because the code can replace the functions of json
        line = "\t".join([str(state[0]), *[f.encode("unicode_escape").decode("ascii") for f in fields]])
        line = line + "\t" + code(line.encode(), key=key, digest_size=16).hexdigest() + "\n"
        write(out, line.encode())

    return tell


def functions_of(names: Any) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return the functions and classes of the watched packages, with their code objects."""
    found: dict[tuple[str, str], tuple[Any, Any]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in names or not isinstance(module, types.ModuleType):
            continue
        for attribute, value in sorted(vars(module).items()):
            if isinstance(value, (types.FunctionType, type)):
                found[name, attribute] = (value, code_of(value))
            if isinstance(value, type) and value.__module__ == name:
                for inner, member in vars(value).items():
                    if code_of(member) is not None:
                        found[name, attribute + "." + inner] = (member, code_of(member))
    return found


def code_of(value: Any) -> Any:
    """Return the code object of a function, property, static or class method; None for anything else."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    return value.__code__ if isinstance(value, types.FunctionType) else None


def replaced(before: dict[tuple[str, str], tuple[Any, Any]]) -> list[str]:
    """Return the names of functions and classes that are missing or differ from `before`."""
    after = functions_of(WATCHED)
    gone = [
        key
        for key, (value, code) in before.items()
        if key not in after or after[key][0] is not value or after[key][1] is not code
    ]
    return sorted({".".join(key) for key in gone})


class Canary(AssertionError):
    """The exception that a canary raises."""


def canary_of(item: Any) -> Any:
    """Return a test that cannot pass, with the name, parent and type of `item`.

    Returns:
        None if this pytest cannot create such a test.
    """

    def canary() -> None:
        raise Canary

    canary.__name__ = getattr(item, "originalname", None) or item.name
    try:
        made = type(item).from_parent(item.parent, name=item.name, callobj=canary)
        made._getobj = lambda: canary  # older pytest calls this again during setup
        made.fixturenames[:] = []
    except Exception:  # noqa: BLE001 - this pytest lacks something; the other guards remain
        return None
    return made


def plugin(tell: Any, base: Any, report: Any, wanted: list[str]) -> Any:
    """Return the pytest plugin that reports outcomes.

    Its base class, from tools/in_sandbox_runner.py, limits each test's time.
    """
    import pytest

    class Guard(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(report)
            self.before: dict[tuple[str, str], tuple[Any, Any]] = {}
            self.canaries: dict[int, tuple[Any, str]] = {}
            self.beside: set[str] = set()
            self.outcome: dict[int, tuple[str, str]] = {}

        def pytest_load_initial_conftests(self) -> None:
            # plugins are loaded, and pytest's own ones have done their replacements; no code of the work tree
            # is loaded yet
            self.before = functions_of(WATCHED)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_make_collect_report(self, collector: Any) -> Any:
            # as early as possible: no hook of the code gets the tests without the canaries among them
            done = yield
            self.add_canaries([] if done.excinfo else done.get_result().result or [])

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            # the run may have only some of a file's tests, and none with a canary
            self.beside = {item.nodeid for item in items if id(item) in self.canaries}
            self.add_canaries(items)

        def add_canaries(self, nodes: list[Any]) -> None:
            files = {nodeid.partition("::")[0] for nodeid in self.beside}
            for item in list(nodes):
                plain = type(item) is pytest.Function and not hasattr(item, "_testcase")
                if not plain or item.nodeid in self.beside or len(self.beside) >= MOST_CANARIES:
                    continue
                file = item.nodeid.partition("::")[0]
                made = None
                if file not in files or any(name in item.nodeid for name in wanted):
                    made = canary_of(item)
                    files.add(file)
                if made is not None:
                    self.canaries[id(made)] = (made, item.nodeid)
                    self.beside.add(item.nodeid)
                    place = nodes.index(item)
                    nodes.insert(place + (id(made) >> 4) % 2, made)  # before or after: no pattern to detect

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            super().pytest_runtest_makereport(item, call)
            done = yield
            outcome, text = self.outcome.get(id(item), ("passed", ""))
            excinfo = call.excinfo
            if excinfo is not None:
                kind = excinfo.type
                result = done.get_result()
                if (
                    issubclass(kind, (pytest.skip.Exception, pytest.xfail.Exception))
                    or kind.__name__ == "SkipTest"
                ):
                    new = "skipped"  # even if the code under test skips
                elif getattr(result, "wasxfail", None) is not None and result.skipped:
                    new = "xfailed"  # through the test's own mark
                else:
                    new = "failed" if call.when == "call" else "error"
                if outcome in ("passed", "skipped", "xfailed"):
                    outcome, text = new, str(getattr(result, "longrepr", ""))[-2000:]
            elif call.when == "call" and done.get_result().failed:
                outcome, text = "failed", str(done.get_result().longrepr)[-2000:]  # an unexpected success
            if report.over:  # even if the test caught the timeout's exception
                outcome, text = "failed", "timed out"
            self.outcome[id(item)] = (outcome, text)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: Any) -> Any:
            canary = id(item) in self.canaries
            if not canary:
                tell("start", item.nodeid)
            self.outcome.pop(id(item), None)
            yield
            outcome, text = self.outcome.get(id(item), ("error", "it was not run"))
            if not canary:
                tell("result", item.nodeid, outcome, text)
            elif outcome == "passed":
                tell("forged", "a test that cannot pass passed, beside " + item.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell("result", report.nodeid or ".", "error", str(report.longrepr)[-2000:])

        def pytest_sessionfinish(self) -> None:
            for name in replaced(self.before)[:20]:
                tell("forged", "replaced while the tests ran: " + name)
            tell("canaries", str(len(self.beside)))

    return Guard()


def listen_to_unittest(tell: Any) -> Any:
    """Make unittest report its results, whatever program runs the tests.

    The patched methods are those of the base classes, which overriding test cases call in the end. After its
    tests, each runner runs a canary.

    Returns:
        A function to call after the tests.
    """
    import unittest

    base, runner = unittest.TestResult, unittest.TextTestRunner
    state: dict[str, Any] = {"outcome": None, "canary": False, "canaries": 0}

    def noting(name: str, outcome: str, error_at: int | None) -> None:
        old = getattr(base, name)

        def method(self: Any, test: Any, *given: Any, **named: Any) -> Any:
            error = given[error_at] if error_at is not None and len(given) > error_at else None
            if not (name == "addSubTest" and error is None) and state["outcome"] in (None, "passed"):
                state["outcome"] = outcome
                state["text"] = "" if error is None or isinstance(error, str) else repr(error[1])[-2000:]
            return old(self, test, *given, **named)

        setattr(base, name, method)

    for name, outcome, error_at in (
        ("addSuccess", "passed", None),
        ("addFailure", "failed", 0),
        ("addError", "error", 0),
        ("addSubTest", "failed", 1),
        ("addSkip", "skipped", None),
        ("addExpectedFailure", "xfailed", None),
        ("addUnexpectedSuccess", "failed", None),
    ):
        noting(name, outcome, error_at)
    start, stop, run = base.startTest, base.stopTest, runner.run

    def start_test(self: Any, test: Any) -> None:
        state.update(outcome=None, text="")
        if not state["canary"]:
            tell("start", str(test))
        start(self, test)

    def stop_test(self: Any, test: Any) -> None:
        stop(self, test)
        if not state["canary"]:
            ident, outcome = str(test), state["outcome"] or "error"
            tell("result", ident, outcome, state["text"])
            described = test.shortDescription()
            if described and described != ident:  # a log shows the description instead of the id
                tell("result", described, outcome, state["text"])

    def canary(self: Any) -> None:
        raise Canary

    def run_tests(self: Any, test: Any) -> Any:
        done = run(self, test)
        state["canary"] = True
        case: Any = type("Canaries", (unittest.TestCase,), {"test_that_cannot_pass": canary})
        case("test_that_cannot_pass").run(type(done)(self.stream, self.descriptions, self.verbosity))
        state["canary"] = False
        state["canaries"] += 1
        if state["outcome"] not in ("failed", "error"):
            tell("forged", "a test that cannot pass passed")
        return done

    base.startTest, base.stopTest, runner.run = start_test, stop_test, run_tests  # type: ignore[method-assign]
    before = functions_of(WATCHED)

    def over() -> None:
        for name in replaced(before)[:20]:
            tell("forged", "replaced while the tests ran: " + name)
        tell("canaries", str(state["canaries"]))

    return over


def run_program(tell: Any, program: str, words: list[str]) -> int:
    """Run a script of the work tree, or a module, that runs tests through unittest.

    Return its exit status.
    """
    import runpy

    over = listen_to_unittest(tell)
    sys.argv[:] = [program, *words]
    status: Any = 0
    try:
        if os.path.exists(program):
            sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    over()
    return int(status) if isinstance(status, int) else int(status is not None)


def main() -> int:
    """Read the request, run the tests and report the end.

    The request has these keys:
        key: Key of the authentication codes, in hexadecimal.
        source: Source code of the test runner, tools/in_sandbox_runner.py.
        limit: Time limit of one test, in seconds.
        options: Options of pytest.
        targets: Files and tests to run.
        wanted: Node ids; canaries run next to these tests.
        program: A script or module that runs tests through unittest, instead of pytest; empty for pytest.
        words: Arguments of `program`.
    """
    given = json.loads(sys.stdin.readline())
    tell = channel(bytes.fromhex(given.pop("key")))
    runner: Any = types.ModuleType("m3agent_runner")
    exec(given["source"], runner.__dict__)
    # only now: the guard's own imports must not come from there, so the interpreter runs with -I
    sys.path[0:0] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    if given["program"]:
        status = run_program(tell, given["program"], given["words"])
        tell("end", str(min(status, 1)))
        return status
    import pytest

    report = runner.Report(os.devnull, given["limit"])
    guard = plugin(tell, runner.PytestPlugin, report, given["wanted"])
    options = ["-q", "-p", "no:cacheprovider", "--color=no", "--tb=short", "--continue-on-collection-errors"]
    # results of tests in other processes would not arrive here
    options += ["--rootdir=.", "--maxfail=0", "-p", "no:xdist", *given["options"]]
    status = pytest.main([*options, *given["targets"]], plugins=[guard])
    if status == 4:  # usage error: often a plugin's options in the repository's settings
        options += ["-o", "addopts=", "-o", "required_plugins="]
        guard = plugin(tell, runner.PytestPlugin, report, given["wanted"])
        status = pytest.main([*options, *given["targets"]], plugins=[guard])
    tell("end", str(int(status)))
    return int(status)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # do not wait for threads that tests left behind
