"""What the repair needs to know about a language: how its tests judge, and how its code is localised and changed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from m3agent.serving.embedded.localise import Scores, localise, localise_plain
from m3agent.serving.embedded.operators.base import Mutation
from m3agent.serving.embedded.probe.commands import is_code
from m3agent.serving.embedded.probe.tree import is_test
from m3agent.serving.embedded.request import NamedSuite
from m3agent.serving.embedded.source import SourceFile
from m3agent.serving.embedded.syntax import PlainSource, available, go_bodies

PYTEST = "pytest"
TYPESCRIPT = (".ts", ".tsx", ".mts", ".cts")
FAMILIES = {
    "go": "Go",
    **dict.fromkeys(("jest", "vitest", "mocha", "node-test", "ava"), "JavaScript or TypeScript"),
}
"""Languages of the test runners, other than Python's, whose code the engine changes."""

Source = SourceFile | PlainSource


@dataclass(frozen=True)
class Python:
    """Python: candidates are swapped into a running process, and pytest judges them."""

    framework: str = "pytest"
    """The argument of `test_runner`; empty for the repository's own runners."""
    name: ClassVar[str] = "Python"
    """The language, for people."""
    written: ClassVar[str] = "Python"
    """The language of the failing tests, in one word."""
    judged: ClassVar[str] = "every test that can be run here"
    """The tests that a candidate passed, for people."""
    measure: ClassVar[str] = "spectrum"
    """The probe's mode that runs the tests and finds the lines that they run."""
    judge: ClassVar[str] = "judge"
    """The probe's mode that tries candidates."""
    choice: ClassVar[int] = 120
    """Most candidates that are tried after the first one that passes."""
    attempts: ClassVar[int] = 3
    """Most passing candidates that are tried in the repository itself."""
    batch_seconds: ClassVar[float] = 45.0
    """Seconds of judging per call."""
    harmless: ClassVar[str] = "no test fails when they are run one by one, so there is nothing to repair."
    """Why nothing is repaired if no test fails in the probe."""

    def tests(self) -> dict[str, Any]:
        """Return the probe's input that says which tests run: the targets of pytest, and its options."""
        extra = ["-o", "python_files=test*.py *_test.py"] if self.framework == "unittest" else []
        return {"targets": ["."], "extra": extra}

    def evidence(self, spectrum: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input of the mode `judge` that is the same for all candidates.

        It says which tests fail, which of them run first, and how long tests take.
        """
        same = ("doubted", "passed", "whole", "slowest", "beside", "suite_seconds")
        return {
            "first": spectrum["groups"],
            "failing": spectrum["failed_ids"],
            "hung": [node for node, outcome, *_ in spectrum["failed"] if outcome == "timeout"],
            **{key: spectrum[key] for key in same},
        }

    def surroundings(self, source: Source, mutation: Mutation) -> list[Any]:
        """Return what the judge needs to know about a place: nothing, because it compiles the whole file."""
        return []

    def may_change(self, path: str) -> bool:
        """Return whether a file is code of this language and no test."""
        return path.endswith(".py") and not is_test(path)

    def source(self, path: str, text: str) -> Source:
        """Return a file that was read. Raises SyntaxError or ValueError if it cannot be changed."""
        return SourceFile(path, text)

    def scores(self, spectrum: Mapping[str, Any], sources: Mapping[str, Source], issue: str) -> Scores:
        """Return the suspicion of each line."""
        return localise(spectrum, cast("Mapping[str, SourceFile]", sources), issue)


@dataclass(frozen=True)
class Curly:
    """Go, JavaScript or TypeScript: commands in private copies judge each candidate (see `Python`)."""

    runner: str
    """Name of the test runner."""
    folder: str
    """Folder of its suite; empty for the root."""
    units: tuple[str, ...]
    """The files (in Go: packages) with failing tests, relative to the folder."""
    framework: ClassVar[str] = ""
    measure: ClassVar[str] = "profile"
    judge: ClassVar[str] = "try"
    choice: ClassVar[int] = 24
    attempts: ClassVar[int] = 6
    batch_seconds: ClassVar[float] = 240.0
    harmless: ClassVar[str] = (
        "the failing tests pass in my private copy of the repository, so no repair can be judged."
    )

    @property
    def name(self) -> str:
        """The language, for people."""
        return FAMILIES[self.runner]

    @property
    def written(self) -> str:
        """The language of the failing tests, in one word."""
        if self.runner == "go":
            return "Go"
        return "TypeScript" if any(unit.endswith(TYPESCRIPT) for unit in self.units) else "JavaScript"

    @property
    def judged(self) -> str:
        """The tests that a candidate passed, for people."""
        return f"every test of the {'packages' if self.runner == 'go' else 'files'} with failing tests"

    def tests(self) -> dict[str, Any]:
        """Return the suite and its units."""
        return {"folder": self.folder, "runner": self.runner, "units": list(self.units)}

    def evidence(self, spectrum: Mapping[str, Any]) -> dict[str, Any]:
        """Return which tests fail and pass, by which names they are selected, and how long they take."""
        same = ("green", "first", "names", "suite_seconds", "first_seconds")
        return {"failing": spectrum["failed_ids"], **{key: spectrum[key] for key in same}}

    def surroundings(self, source: Source, mutation: Mutation) -> list[Any]:
        """Return for Go the body of the function that a change is in, so that many changes share one program."""
        start, end = mutation.edits[0].start, mutation.edits[-1].end
        bodies = go_bodies(source.path, source.text) if self.runner == "go" else ()
        return [list(body) for body in bodies if body[0] < start and end < body[1]][:1]

    def may_change(self, path: str) -> bool:
        """Return whether a file is code and no test."""
        return is_code(path)

    def source(self, path: str, text: str) -> Source:
        """Return the text, which is parsed later."""
        return PlainSource(path, text)

    def scores(self, spectrum: Mapping[str, Any], sources: Mapping[str, Source], issue: str) -> Scores:
        """Score lines by the spectrum, stack traces, definitions and the issue."""
        return localise_plain(spectrum, sources, issue)


Language = Python | Curly


def failing_suites(red: Iterable[str], suites: Sequence[NamedSuite]) -> dict[NamedSuite, list[str]]:
    """Return the failing tests of each suite, as paths and names in the repository.

    Args:
        red: Ids of the failing tests, as `test_runner` lists them. The ids of several suites start with their names.
        suites: All suites.
    """
    names = {f"{suite.runner}:{suite.folder or '.'}": suite for suite in suites}
    found: dict[NamedSuite, list[str]] = {}
    for ident in red:
        first, _, rest = ident.partition("::")
        known = names.get(first)
        found.setdefault(known or suites[0], []).append(rest if known else ident)
    return found


def language_of(suite: NamedSuite, red: Iterable[str]) -> Language | None:
    """Return the language of a suite with failing tests; None if the engine cannot change it."""
    if suite.runner == PYTEST:
        return Python()
    return Curly(suite.runner, suite.folder, units_of(suite, red)) if suite.runner in FAMILIES else None


def units_of(suite: NamedSuite, idents: Iterable[str]) -> tuple[str, ...]:
    """Return the files, in Go the packages, of failing tests, relative to the suite's folder."""
    found: dict[str, None] = {}
    for ident in idents:
        path = posixpath.relpath(ident.partition("::")[0] or ".", suite.folder or ".")
        if suite.runner == "go":
            folder = posixpath.dirname(path) if path.endswith(".go") else path
            path = "./" + folder if folder not in ("", ".") else "."
        found[path] = None
    return tuple(found)


def unchangeable(runners: Iterable[str]) -> list[str]:
    """Return the languages of test runners that the engine cannot change without the extra `outlines`."""
    return [] if available() else sorted({FAMILIES[name] for name in runners if name in FAMILIES})
