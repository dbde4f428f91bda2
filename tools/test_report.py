"""The results of a test run, its signs of tampering, and the line of an error that a person would look at first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from m3agent.tools.execution_map import ExecutionMap


@dataclass(frozen=True)
class Reached:
    """A place in the work tree whose code read something inside of the interpreter."""

    path: str
    line: int
    """From 1."""
    name: str
    """What it read, such as `tb_frame` or `gc.get_objects`."""


@dataclass(frozen=True)
class Hook:
    """A function of the work tree that pytest calls as a hook."""

    path: str
    name: str
    """Name of the hook, such as `pytest_runtest_makereport`."""
    place: str
    """Name of the function with its classes, such as `Plugin.pytest_runtest_makereport`."""


@dataclass(frozen=True)
class Signs:
    """What the guard of one test run reported (`m3agent.tools.in_sandbox.guard`)."""

    forged: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    """Functions of the work tree that pytest calls as hooks."""
    canaries: tuple[int, int] | None = None
    """Number of canaries, tests that must fail, and number of those that failed. None if the run had no guard
    or did not come to its end.
    """
    reached: tuple[Reached, ...] = ()
    """Places whose code read something inside of the interpreter."""
    blind: str = ""
    """What the guard could not see in this interpreter; empty if it saw everything."""

    def and_those_of(self, other: Signs) -> Signs:
        """Return the signs of two runs."""
        canaries = self.canaries or other.canaries
        if self.canaries and other.canaries:
            canaries = (self.canaries[0] + other.canaries[0], self.canaries[1] + other.canaries[1])
        return Signs(
            self.forged + other.forged,
            self.hooks + other.hooks,
            canaries,
            self.reached + other.reached,
            self.blind or other.blind,
        )

    def beyond(self, usual: Signs, changed: Collection[str]) -> list[str]:
        """Return the signs of tampering, each as a phrase.

        Args:
            usual: The signs of a run without the patch. Some repositories' own tests have some.
            changed: Paths that the patch changes.
        """
        signs = [what for what in self.forged if what not in usual.forged]
        known = usual.hooks_by_name()
        signs += [
            f"pytest called a further function of {path} as the hook {name}"
            for (path, name), number in sorted(self.hooks_by_name().items())
            if path in changed and number > known[path, name]
        ]
        if usual.canaries and usual.canaries[1] and self.canaries and not self.canaries[1]:
            signs.append("no test that must fail did fail")
        return signs

    def hooks_by_name(self) -> Counter[tuple[str, str]]:
        """Return how many functions of a file pytest calls as a hook, by the path and the name of the hook."""
        return Counter((hook.path, hook.name) for hook in {*self.hooks})

    def reached_beyond(self, usual: Signs, changed: Collection[str]) -> list[Reached]:
        """Return the places in changed files that read something which the file read at fewer places without the patch."""
        known, now = (
            Counter((place.path, place.name) for place in {*signs.reached}) for signs in (usual, self)
        )
        return [
            place
            for place in dict.fromkeys(self.reached)
            if place.path in changed and now[place.path, place.name] > known[place.path, place.name]
        ]


NO_SIGNS = Signs()
ORDINARY = Signs(canaries=(1, 1))
"""The signs of a run with nothing unusual: canaries failed."""


MOST_LINE = 200
"""Characters of an error that people are told."""
_MARKED = re.compile(r"(?:E|INTERNALERROR>)\s+(?=\S)")
"""How pytest begins the lines of an error."""
# Python prints warnings of unclosed files after the error that ended it.
_EXCEPTION = re.compile(
    r"(?!ResourceWarning)(?:[A-Za-z_][\w.:]*)?(?:Error|Exception|Warning|Configured|Exit|NotFound)\b"
)
_FRAME = re.compile(
    r"at (?:\S+ )*\(?\S+[:.]\S+|# \S+:\d+|from \S+:\d+:in\b|\S+:\d+:in\b|\.\.\. \d+ (?:more|common)|stack backtrace:"
)
"""A line of the stack in the languages that print it below the error: JavaScript, Java, Ruby, Rust."""
_PLACE = re.compile(r"(?:file://)?[^\s:]+\.\w+:\d+(?::\d+)?:?$")
"""A line that is only the place of an error, as Node prints it above the error."""
_UNPARSED = re.compile(r'File "(?:/ws/)?(?P<path>.+)", line (?P<line>\d+)')
"""The first line of an error about the syntax of a Python file, of which only the last line says what is wrong."""
_CAPTION = re.compile(
    r"(?:=+|-+|no tests ran in [\d.]+s?)\b.*|[=-]+.*[=-]+|\d* ?(?:failed|errors?|warnings?) in [\d.]+s"
)
_OUR_PREFIX = "_pytest.outcomes."
_NETWORK = re.compile(
    r"gaierror|Name or service not known|[Nn]ame resolution|nodename nor servname|Network is unreachable|NewConnectionError|"
    r"ENOTFOUND|EAI_AGAIN|ENETUNREACH|getaddrinfo|UnknownHostException|no such host|Could not resolve host"
)
_HOST = re.compile(
    r"(?:host='|https?://|(?:ENOTFOUND|EAI_AGAIN|lookup|UnknownHostException:|resolve host:?) +)((?:[\w-]+\.)+[A-Za-z]{2,})"
)


def _lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def error_line(text: str) -> str:
    """Return the line of an error that names the exception; otherwise the last line; empty for a blank text."""
    lines = _lines_of(text)
    marked = [_MARKED.sub("", line, count=1) for line in lines if _MARKED.match(line)]
    named = [line for line in marked or lines if _EXCEPTION.match(line)]
    last = [line for line in lines if not _CAPTION.fullmatch(line)] or lines
    return (named or marked or last or [""])[-1].removeprefix(_OUR_PREFIX)[:MOST_LINE]


def exception_line(text: str) -> str:
    """Return the line that names the last exception of a test's output. If it ends with a colon, the next line follows.

    In pytest's output, that is the first line of the last error. Of a message above a stack, it is the line that names the
    error, or the first one. Of other output, it is the last line.
    """
    lines = _lines_of(text)
    groups = [
        list(group) for is_error, group in groupby(lines, lambda line: line.startswith("E ")) if is_error
    ]
    if groups:
        error = [line.removeprefix("E ").strip() for line in groups[-1]]
        place = _UNPARSED.fullmatch(error[0])
        return f"{error[-1]} ({place['path']}, line {place['line']})" if place else _with_value(error, 0)
    message = [line for line in lines if not _FRAME.match(line) and not _PLACE.match(line)]
    if len(message) == len(lines) or not message:
        return lines[-1] if lines else ""
    return _with_value(message, next((at for at, line in enumerate(message) if _EXCEPTION.match(line)), 0))


def _with_value(lines: Sequence[str], at: int) -> str:
    """Return a line, with the line below it if that has the value that a colon announces."""
    value = lines[at + 1 : at + 2] if lines[at].endswith(":") else []
    return " ".join([lines[at], *value])


def first_reason(text: str) -> str:
    """Return the first line of a runner's problem. If that is only a place, return the error that follows it."""
    lines = _lines_of(text)
    if lines and (_PLACE.match(lines[0]) or _FRAME.match(lines[0])):
        return exception_line(text)
    return lines[0] if lines else ""


def missing_host(text: str) -> str | None:
    """Return the host that a test could not reach, "" if the text does not name it; None if it is no fault of the network."""
    if _NETWORK.search(text) is None:
        return None
    host = _HOST.search(text)
    return host[1] if host else ""


OUTCOMES = {
    "passed": "passed",
    "failed": "failed",
    "error": "errored",
    "skipped": "skipped",
    "xfailed": "skipped",
}
"""The field of a report for each outcome that runners name."""
FIELDS = tuple(dict.fromkeys(OUTCOMES.values()))
NO_TESTS = 5
"""pytest's exit status if it found no test."""


@dataclass(frozen=True)
class TestReport:
    """The results of a test run. All ids are the framework's."""

    __test__ = False

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    errored: tuple[str, ...]
    skipped: tuple[str, ...]
    errors: dict[str, str]
    """Error texts of the tests that failed or could not run, by id."""
    complete: bool
    """Whether the run ended normally; if not, tests may be missing."""
    timed_out: bool
    seconds: float
    exit: int
    output: str
    truncated: bool
    """Whether the sandbox dropped a part of that text."""
    stopped: bool = False
    """Whether the time for starting tests was over before all of them had started."""
    executed: ExecutionMap | None = None
    """Which functions each test executed, if that was recorded."""
    signs: Signs = NO_SIGNS
    """Signs that the code under test tampered with the run."""
    registrations: Mapping[str, str] = field(default_factory=dict)
    """What the build system says about each test program, by its id, as JSON. Two trees can be compared by it
    (`m3agent.tools.runners.registrations`).
    """
    not_run: Mapping[str, str] = field(default_factory=dict)
    """Why suites could not run at all, such as a missing toolchain, by the suite's name. `complete` is about
    the others.
    """
    commands: tuple[tuple[str, ...], ...] = ()
    """The commands that ran tests, each with its arguments. m3agent starts pytest inside its own program,
    with these arguments.
    """

    @property
    def red(self) -> set[str]:
        """Ids of the tests that failed or could not run."""
        return {*self.failed, *self.errored}

    @property
    def ids(self) -> set[str]:
        """Ids of all tests with a result."""
        return {*self.passed, *self.red, *self.skipped}

    @property
    def obstacle(self) -> str:
        """Why no test has a result, in a clause; empty if some have one, or if the tree simply has no tests."""
        if self.ran or (self.complete and not self.not_run and self.exit in {0, NO_TESTS}):
            return ""
        return self.cause

    @property
    def cause(self) -> str:
        """Why the run did not come to its end, in a clause. It says nothing of a run that did."""
        for name, reason in self.not_run.items():
            return f"{name}: {reason}"
        if self.timed_out:
            return f"it took more than {self.seconds:.0f} s"
        line = error_line(self.output)
        return f"the test program ended with exit status {self.exit}{f': {line}' if line else ' and said nothing'}"

    @property
    def sets(self) -> dict[str, list[str]]:
        """The ids by outcome, in the form of tool results and the event log."""
        return {name: list(ids) for name, ids in self._lists().items()}

    @property
    def ran(self) -> int:
        """Number of tests with a result."""
        return sum(map(len, self._lists().values()))

    def _lists(self) -> dict[str, tuple[str, ...]]:
        return dict(zip(FIELDS, (self.passed, self.failed, self.errored, self.skipped), strict=True))

    def with_lists(self, change: Callable[[tuple[str, ...]], Iterable[str]]) -> TestReport:
        """Return the report with other lists of the ids of each outcome."""
        changed: dict[str, Any] = {name: tuple(change(ids)) for name, ids in self._lists().items()}
        return replace(self, **changed)

    def only(self, wanted: Callable[[str], bool]) -> TestReport:
        """Return the report without the outcomes of the tests whose ids are not wanted."""
        return self.with_lists(lambda ids: filter(wanted, ids))


def ids_by_outcome(outcomes: Mapping[str, str]) -> dict[str, Any]:
    """Return the ids of each outcome as fields of a report. What is no outcome is left out: code that found the key may write it."""
    return {
        name: tuple(sorted(ident for ident, outcome in outcomes.items() if OUTCOMES.get(outcome) == name))
        for name in FIELDS
    }


def joined(known: TestReport, more: TestReport) -> TestReport:
    """Return one report of two runs of different tests of a tree; of their functions, it has those of the first."""

    others = more.sets
    lists: dict[str, Any] = {name: tuple(sorted({*ids, *others[name]})) for name, ids in known.sets.items()}
    return replace(
        known,
        **lists,
        errors={**known.errors, **more.errors},
        complete=known.complete and more.complete,
        timed_out=known.timed_out or more.timed_out,
        seconds=known.seconds + more.seconds,
        stopped=known.stopped or more.stopped,
        exit=known.exit or more.exit,
        output="\n".join(filter(None, (known.output, more.output))),
        truncated=known.truncated or more.truncated,
        executed=known.executed or more.executed,
        registrations={**known.registrations, **more.registrations},
        not_run={**known.not_run, **more.not_run},
        signs=known.signs.and_those_of(more.signs),
        commands=tuple(dict.fromkeys((*known.commands, *more.commands))),
    )


EMPTY = TestReport(
    (), (), (), (), {}, complete=True, timed_out=False, seconds=0.0, exit=0, output="", truncated=False
)
"""The report of a run without tests."""
