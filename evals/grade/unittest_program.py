"""Run a script or module of the work tree that runs tests through unittest, and report each result.

It runs in the sandbox, in place of `tools/in_sandbox/runner.py`, and writes the same kinds of lines. The request has these
keys:

- "program": the script or module.
- "words": its arguments.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from m3agent.tools.in_sandbox.guard import MOST_FOUND, PASSED, REPLACED, Members, is_watched


class Canary(AssertionError):
    """The exception of a test that cannot pass."""


def listen_to_unittest(tell: Any) -> Any:
    """Make unittest report its results, whatever program runs the tests.

    The patched methods are those of the base classes, which overriding test cases call in the end. After its
    tests, each runner runs a canary.
    """
    import unittest

    base, runner = unittest.TestResult, unittest.TextTestRunner
    state: dict[str, Any] = {"outcome": None, "canary": False, "canaries": 0, "failed": 0}

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
            tell("result", ident, outcome, "0", state["text"])
            described = test.shortDescription()
            if described and described != ident:  # a log shows the description instead of the id
                tell("result", described, outcome, "0", state["text"])

    def canary(self: Any) -> None:
        raise Canary

    def run_tests(self: Any, test: Any) -> Any:
        done = run(self, test)
        state["canary"] = True
        case: Any = type("Canaries", (unittest.TestCase,), {"test_that_cannot_pass": canary})
        case("test_that_cannot_pass").run(type(done)(self.stream, self.descriptions, self.verbosity))
        state["canary"] = False
        state["canaries"] += 1
        if state["outcome"] in ("failed", "error"):
            state["failed"] += 1
        else:
            tell("forged", PASSED)
        return done

    base.startTest, base.stopTest, runner.run = start_test, stop_test, run_tests  # type: ignore[method-assign]
    before = Members()

    def over() -> None:
        for name in [name for name in before.replaced() if is_watched(name)][:MOST_FOUND]:
            tell("forged", REPLACED + name)
        tell("canaries", str(state["canaries"]), str(state["failed"]))

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


def main(tell: Any, request: Any) -> int:
    status = run_program(tell, request["program"], request["words"])
    tell("end", str(min(status, 1)), "")
    return status
