"""Read the report formats that many runners write: XML, JUnit's XML, and the Test Anything Protocol.

Strangers wrote the reports, so they are read in bounded time and memory. A document that is cut off is read up to the cut. There
is no standard of JUnit's XML: what is read is what the common writers have in common. TAP is read in its versions 12 to 14; its
subtests are indented and count as their parent's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from xml.parsers import expat

from m3agent.tools.runners.base import Outcome, Result, ident_of
from m3agent.util.tap import tap_result

MOST_EVENTS = 200_000
MOST_DEPTH = 100
MOST_TEXT = 64 << 10
"""Most characters of text that an element's content is cut to."""


@dataclass
class Element:
    """An element with its attributes, the text directly in it, and the elements in it."""

    tag: str
    attributes: Mapping[str, str]
    text: str
    children: list[Element]
    ended: bool = False

    def get(self, name: str) -> str:
        """Return an attribute; empty if it is missing."""
        return self.attributes.get(name, "")

    def all(self, *tags: str) -> list[Element]:
        """Return all elements with one of these tags below this one, in the document's order."""
        elements: list[Element] = []
        waiting = list(reversed(self.children))
        while waiting:
            element = waiting.pop()
            if element.tag in tags:
                elements.append(element)
            waiting += reversed(element.children)
        return elements


class _Refused(Exception):
    """The document is not one that an honest test runner writes."""


def parse_xml(content: bytes) -> Element | None:
    """Return the root of a document, up to the place where the document is cut off.

    Returns:
        None if there is no root, or if the document declares a type or entities, is nested too deeply or is too large.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    root: Element | None = None
    path: list[Element] = []
    events = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal root, events
        events += 1
        if events > MOST_EVENTS or len(path) >= MOST_DEPTH:
            raise _Refused
        element = Element(tag, attributes, "", [])
        if path:
            path[-1].children.append(element)
        else:
            root = element
        path.append(element)

    def end(_: str) -> None:
        path.pop().ended = True

    def text(data: str) -> None:
        if path and len(path[-1].text) < MOST_TEXT:
            path[-1].text += data[:MOST_TEXT]

    def refuse(*_: object) -> None:
        raise _Refused

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except _Refused:
        return None
    except expat.ExpatError:
        pass  # cut off, or text of another program in it: what came before counts, and elements stay open
    except (ValueError, LookupError):  # an unknown encoding
        return None
    return root


_STATUS: dict[str, Outcome] = {
    **dict.fromkeys(("fail", "failed", "error"), "failed"),
    **dict.fromkeys(("notrun", "skipped", "suppressed"), "skipped"),
}
"""What the attributes of a test say that has no element for it. GoogleTest does not run disabled tests."""
_RED: dict[str, Outcome] = {"failure": "failed", "error": "error", "rerunFailure": "failed"}


@dataclass(frozen=True)
class Case:
    """A test in a report."""

    group: str
    name: str
    file: str
    """The file that the report names; may be empty."""
    outcome: Outcome
    text: str
    """Its error text, or why it was skipped."""


def read_junit(content: bytes) -> tuple[list[Case], bool]:
    """Return the tests of a report, and whether the report is complete."""
    root = parse_xml(content)
    if root is None or root.tag not in ("testsuites", "testsuite"):
        return [], False
    suites = [root, *root.all("testsuite")] if root.tag == "testsuite" else root.all("testsuite")
    cases = [
        _case(suite, element) for suite in suites for element in suite.children if element.tag == "testcase"
    ]
    return cases, root.ended


def _case(suite: Element, element: Element) -> Case:
    outcome, text = _outcome(element)
    group, file = element.get("classname") or suite.get("name"), element.get("file") or suite.get("file")
    return Case(group, element.get("name"), file, outcome, text)


def _outcome(element: Element) -> tuple[Outcome, str]:
    """Return the outcome of a test, and its error text or why it was skipped."""
    red = [child for child in element.children if child.tag in _RED]
    if red:
        is_error = "error" in {_RED[child.tag] for child in red}
        return "error" if is_error else "failed", "\n".join(filter(None, map(_message, red)))
    for child in element.children:
        if child.tag == "skipped":
            return "skipped", child.get("message") or child.text.strip()
    if not element.ended:
        return "failed", "the report ends in this test"
    for name in ("status", "result"):
        if (word := element.get(name).lower()) in _STATUS:
            return _STATUS[word], ""
    return "passed", ""


def _message(element: Element) -> str:
    """Return an element's message, and its text if that says more."""
    message, text = element.get("message"), element.text.strip()
    return text if message in text else "\n".join(filter(None, (message, text)))


MOST_TESTS = 100_000
MOST_TEXT_OF_TEST = 4000
_PLAN = re.compile(r"^1\.\.(\d{1,7})(?:\s*#\s*(.*))?$")


@dataclass(frozen=True)
class Point:
    """A test in a report."""

    number: int
    name: str
    """Its description without directive; may be empty."""
    outcome: Outcome
    """Its outcome; a test that is still to do is skipped."""
    text: str = ""
    """What was printed after it, or why it was skipped."""


@dataclass
class Tap:
    """What a report says."""

    points: list[Point] = field(default_factory=list)
    planned: int | None = None
    """Number of tests that the plan names; None if there is no plan."""
    reason: str = ""
    """Why all tests are skipped, if the plan says so."""
    disorder: list[str] = field(default_factory=list)
    """What contradicts itself in the report, as sentences."""
    bail_out: str = ""
    numbers: set[int] = field(default_factory=set[int])
    highest: int = 0

    def add(self, point: Point) -> None:
        """Add a test, and what its number contradicts."""
        number = point.number
        if number in self.numbers:
            self.disorder.append(f"test {number} has two results")
        elif number < self.highest:
            self.disorder.append(f"test {number} is out of order")
        self.numbers.add(number)
        self.highest = max(self.highest, number)
        self.points.append(point)

    @property
    def complete(self) -> bool:
        """Whether each planned test has exactly one result."""
        return self.planned is not None and not self.bail_out and len(self.numbers) == self.planned

    @property
    def red(self) -> bool:
        """Whether a test failed."""
        return any(point.outcome == "failed" for point in self.points)

    def results(self, file: str, *groups: str) -> list[Result]:
        """Return the results as tests of a file, which may belong to groups. A test without a name has its number."""
        return [
            Result(ident_of(file, [*groups, point.name or str(point.number)]), point.outcome, point.text)
            for point in self.points
        ]


def read_tap(text: str) -> Tap:
    """Return what a report says; other lines are text of the test before them."""
    tap = Tap()
    printed: list[list[str]] = []
    for line in text.splitlines():
        plan, test = _PLAN.match(line), tap_result(line)
        if plan:
            if tap.planned is not None:
                tap.disorder.append("it has two plans")
            tap.planned, tap.reason = int(plan[1]), plan[2] or ""
        elif test and len(tap.points) < MOST_TESTS:
            number, name, outcome, reason = test
            tap.add(Point(len(tap.points) + 1 if number is None else number, name, outcome, reason))
            printed.append([])
        elif line.startswith("Bail out!"):
            tap.bail_out = line.removeprefix("Bail out!").strip() or "without a reason"
        elif printed and sum(map(len, printed[-1])) < MOST_TEXT_OF_TEST:
            printed[-1].append(line.removeprefix("# "))
    tap.points = [
        replace(point, text=point.text or "\n".join(lines).strip()[:MOST_TEXT_OF_TEST])
        for point, lines in zip(tap.points, printed, strict=True)
    ]
    return tap
