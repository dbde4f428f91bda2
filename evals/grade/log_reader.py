"""Run a benchmark's parser on the log of a test run. This file runs in a sandbox, and needs only the standard library.

Standard input is a JSON object with `form` and `entry` (see `OwnRules`). The parser is in `parser.py`, the log in `out`
and `err`. Standard output gets a JSON object of outcomes by test. If the parser fails, the last line of standard error says why.
"""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar


class TestStatus(str, enum.Enum):  # noqa: UP042 - the sandbox may have Python 3.9
    """Outcomes under the names that parsers use."""

    __test__ = False

    PASSED = "PASSED"
    PASS = "PASS"  # noqa: S105 - not a password
    FAILED = "FAILED"
    FAIL = "FAIL"
    SKIPPED = "SKIPPED"
    SKIP = "SKIP"
    ERROR = "ERROR"
    XFAIL = "XFAIL"
    NONE = "NONE"


class TestResult:
    """What the classes of Multi-SWE-bench return."""

    __test__ = False

    def __init__(
        self, *_: Any, passed_tests: Any = (), failed_tests: Any = (), skipped_tests: Any = (), **__: Any
    ) -> None:
        self.outcomes = {
            **dict.fromkeys(skipped_tests, "SKIP"),
            **dict.fromkeys(failed_tests, "FAIL"),
            **dict.fromkeys(passed_tests, "PASS"),
        }


class Instance:
    """The base of these classes."""

    known: ClassVar[dict[str, Any]] = {}

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @classmethod
    def register(cls, org: str, name: str) -> Callable[[Any], Any]:
        """Return the decorator of a class for a repository."""

        def keep(made: Any) -> Any:
            cls.known[f"{org}/{name}"] = made
            return made

        return keep


def mapping_to_testresult(mapping: Mapping[str, Any]) -> TestResult:
    """Return outcomes by test as a `TestResult`."""
    word = {test: getattr(status, "value", status).upper() for test, status in mapping.items()}
    return TestResult(
        passed_tests=[test for test, status in word.items() if status in {"PASS", "PASSED", "XFAIL"}],
        failed_tests=[test for test, status in word.items() if status in {"FAIL", "FAILED", "ERROR"}],
        skipped_tests=[test for test, status in word.items() if status in {"SKIP", "SKIPPED"}],
    )


def provide(name: str, **content: Any) -> None:
    """Make a module that parsers import. Only what parsing needs is in it."""
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        module = sys.modules.setdefault(".".join(parts[:number]), types.ModuleType(".".join(parts[:number])))
        module.__path__ = []  # a package
    vars(sys.modules[name]).update(content)


def provide_all() -> None:
    """Make all modules that parsers import from their own repositories."""
    provide("lib.agent.swe_constants", TestStatus=TestStatus)
    base = "multi_swe_bench.harness"
    plain = {
        name: type(name, (), {}) for name in ("Config", "File", "Image", "SWEImageDefault", "PullRequest")
    }
    provide(f"{base}.image", **plain)
    provide(f"{base}.pull_request", **plain)
    provide(f"{base}.instance", Instance=Instance, TestResult=TestResult)
    provide(
        f"{base}.test_result",
        TestStatus=TestStatus,
        TestResult=TestResult,
        mapping_to_testresult=mapping_to_testresult,
    )


def by_function(source: dict[str, Any], entry: str, log: str) -> Any:
    """Return the outcomes that a function of the parser finds in a log."""
    found = source.get("NAME_TO_PARSER", {}).get(entry) or source.get(entry)
    if found is None:
        raise LookupError(f"it has no function {entry}")
    return found(log)


def by_class(_: dict[str, Any], entry: str, log: str) -> Any:
    """Return the outcomes that a class of Multi-SWE-bench finds in a log."""
    made = Instance.known.get(entry)
    if made is None:
        raise LookupError(f"it registers no class for {entry}")
    return made.parse_log(made.__new__(made), log).outcomes


def by_program(scratch: Path) -> dict[str, str]:
    """Return the outcomes that the parser of SWE-bench Pro writes into a file."""
    result = scratch / "result.json"
    done = subprocess.run([sys.executable, "parser.py", "out", "err", str(result)], stdout=2, check=False)
    if not result.exists():
        raise LookupError(f"it wrote no result, and its exit status is {done.returncode}")
    return {test["name"]: test["status"] for test in json.loads(result.read_text("utf-8"))["tests"]}


def main() -> None:
    """Read the request, run the parser and print the outcomes."""
    asked = json.loads(sys.stdin.read())
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the parser prints
    if asked["form"] == "program":
        found = by_program(Path(os.environ.get("TMPDIR", "/tmp")))  # noqa: S108 - in a sandbox
    else:
        provide_all()
        source = {"__name__": "parser"}
        exec(compile(Path("parser.py").read_text("utf-8"), "parser.py", "exec"), source)  # noqa: S102 - its purpose
        log = Path("out").read_bytes() + Path("err").read_bytes()
        read = by_function if asked["form"] == "function" else by_class
        found = read(source, asked["entry"], log.decode("utf-8", "replace"))
    outcomes = {str(test): str(getattr(status, "value", status)) for test, status in found.items()}
    json.dump(outcomes, answer)
    answer.close()


if __name__ == "__main__":
    main()
