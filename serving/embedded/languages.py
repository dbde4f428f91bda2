"""What the repair needs to know about a language: how its tests judge, and how its code is localised and changed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

from m3agent.serving.embedded.candidates import Propose
from m3agent.serving.embedded.localise import Scores, localise, localise_plain
from m3agent.serving.embedded.mutants import propose_python
from m3agent.serving.embedded.operators.base import Mutation
from m3agent.serving.embedded.probe.commands import is_code
from m3agent.serving.embedded.probe.tree import is_test
from m3agent.serving.embedded.request import NamedSuite
from m3agent.serving.embedded.rewrites import propose_plain
from m3agent.serving.embedded.source import SourceFile
from m3agent.serving.embedded.syntax import PlainSource, go_bodies

PYTEST = "pytest"
TYPESCRIPT = (".ts", ".tsx", ".mts", ".cts")
FAMILIES = {
    "go": "Go",
    **dict.fromkeys(("jest", "vitest", "mocha", "node-test", "ava"), "JavaScript or TypeScript"),
}
"""Languages of the test runners, other than Python's, whose code the engine changes."""


class Source(Protocol):
    """The text of a source file."""

    @property
    def path(self) -> str:
        """Its path in the repository."""
        ...

    @property
    def text(self) -> str:
        """Its text."""
        ...


class Language(Protocol):
    """One language.

    Attributes:
        measure: The probe's mode that runs the tests and finds the lines that they run.
        judge: The probe's mode that tries candidates.
        choice: Most candidates that are tried after the first one that passes.
        attempts: Most passing candidates that are tried in the repository itself.
        batch_seconds: Seconds of judging per call.
        harmless: Why nothing is repaired if no test fails in the probe.
    """

    measure: ClassVar[str]
    judge: ClassVar[str]
    choice: ClassVar[int]
    attempts: ClassVar[int]
    batch_seconds: ClassVar[float]
    harmless: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name, for people."""
        ...

    @property
    def written(self) -> str:
        """The language of the failing tests, in one word."""
        ...

    @property
    def judged(self) -> str:
        """The tests that a candidate passed, for people."""
        ...

    @property
    def framework(self) -> str:
        """The argument of `test_runner`; empty for the repository's own runners."""
        ...

    @property
    def propose(self) -> Propose:
        """The function that proposes changes of a file."""
        ...

    def tests(self) -> dict[str, Any]:
        """Return the probe's input that says which tests run."""
        ...

    def evidence(self, spectrum: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input of the mode `judge` that is the same for all candidates."""
        ...

    def surroundings(self, source: Source, mutation: Mutation) -> list[Any]:
        """Return what the mode `judge` needs to know about the place of a change, as the end of a candidate."""
        ...

    def may_change(self, path: str) -> bool:
        """Return whether a file is code of this language and no test."""
        ...

    def source(self, path: str, text: str) -> Source:
        """Return a file that was read. Raises SyntaxError or ValueError if it cannot be changed."""
        ...

    def scores(self, spectrum: Mapping[str, Any], sources: Mapping[str, Source], issue: str) -> Scores:
        """Return the suspicion of each line."""
        ...


@dataclass(frozen=True)
class Python:
    """Python: candidates are swapped into a running process, and pytest judges them."""

    framework: str = "pytest"
    name: str = "Python"
    written: str = "Python"
    judged: str = "every test that can be run here"
    measure: ClassVar[str] = "spectrum"
    judge: ClassVar[str] = "judge"
    choice: ClassVar[int] = 120
    attempts: ClassVar[int] = 3
    batch_seconds: ClassVar[float] = 45.0
    harmless: ClassVar[str] = "no test fails when they are run one by one, so there is nothing to repair."

    @property
    def propose(self) -> Propose:
        """The function that proposes changes of a module."""
        return propose_python

    def tests(self) -> dict[str, Any]:
        """Return the targets of pytest, and its options."""
        extra = ["-o", "python_files=test*.py *_test.py"] if self.framework == "unittest" else []
        return {"targets": ["."], "extra": extra}

    def evidence(self, spectrum: Mapping[str, Any]) -> dict[str, Any]:
        """Return which tests fail, which of them run first, and how long tests take."""
        same = ("doubted", "passed", "whole", "slowest", "beside", "suite_seconds")
        return {
            "first": spectrum["groups"],
            "failing": spectrum["failed_ids"],
            "hung": [node for node, outcome, *_ in spectrum["failed"] if outcome == "timeout"],
            **{key: spectrum[key] for key in same},
        }

    def surroundings(self, source: Source, mutation: Mutation) -> list[Any]:
        """Return nothing: the judge compiles the whole file."""
        return []

    def may_change(self, path: str) -> bool:
        """Return whether a file is a module and no test."""
        return path.endswith(".py") and not is_test(path)

    def source(self, path: str, text: str) -> SourceFile:
        """Parse a module."""
        return SourceFile(path, text)

    def scores(self, spectrum: Mapping[str, Any], sources: Mapping[str, Source], issue: str) -> Scores:
        """Score lines by the spectrum, tracebacks, definitions and the issue."""
        return localise(spectrum, cast("Mapping[str, SourceFile]", sources), issue)


@dataclass(frozen=True)
class Curly:
    """Go, JavaScript or TypeScript: commands in private copies judge each candidate.

    Attributes:
        runner: Name of the test runner.
        folder: Folder of its suite; empty for the root.
        units: The files (in Go: packages) with failing tests, relative to the folder.
    """

    runner: str
    folder: str
    units: tuple[str, ...]
    framework: str = ""
    measure: ClassVar[str] = "profile"
    judge: ClassVar[str] = "try"
    choice: ClassVar[int] = 24
    attempts: ClassVar[int] = 6
    batch_seconds: ClassVar[float] = 240.0
    harmless: ClassVar[str] = (
        "the failing tests pass in my private copy of the repository, so no repair can be judged."
    )

    @property
    def propose(self) -> Propose:
        """The function that proposes changes of a file."""
        return propose_plain

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
        if self.runner != "go":
            return []
        start, end = mutation.edits[0].start, mutation.edits[-1].end
        bodies = go_bodies(source.path, source.text)
        return [list(body) for body in bodies if body[0] < start and end < body[1]][:1]

    def may_change(self, path: str) -> bool:
        """Return whether a file is code and no test."""
        return is_code(path)

    def source(self, path: str, text: str) -> PlainSource:
        """Return the text, which is parsed later."""
        return PlainSource(path, text)

    def scores(self, spectrum: Mapping[str, Any], sources: Mapping[str, Source], issue: str) -> Scores:
        """Score lines by the spectrum, stack traces, definitions and the issue."""
        return localise_plain(spectrum, cast("Mapping[str, PlainSource]", sources), issue)


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
            found["./" + folder if folder not in ("", ".") else "."] = None
        else:
            found[path] = None
    return tuple(found)
