"""Read JUnit's XML reports. There is no standard: this is what the common writers have in common."""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.tools.runners.base import Outcome
from m3agent.tools.runners.xml_events import Element, parse_xml

_RED: dict[str, Outcome] = {"failure": "failed", "error": "error", "rerunFailure": "failed"}


@dataclass(frozen=True)
class Case:
    """A test in a report.

    Attributes:
        group: Its class, or the name of its suite.
        name: Its name.
        file: The file that the report names; may be empty.
        outcome: Its outcome.
        text: Its error text, or why it was skipped.
    """

    group: str
    name: str
    file: str
    outcome: Outcome
    text: str


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
    outcome: Outcome = "passed"
    text = ""
    for child in element.children:
        if child.tag in _RED:
            outcome = "error" if "error" in (_RED[child.tag], outcome) else "failed"
            text = "\n".join(filter(None, (text, child.get("message"), child.text.strip())))
        elif child.tag == "skipped" and outcome == "passed":
            outcome, text = "skipped", child.get("message") or child.text.strip()
    if outcome == "passed" and not element.ended:
        outcome, text = "failed", "the report ends in this test"
    status = element.get("status").lower()
    if outcome == "passed" and status in ("fail", "failed", "error"):
        outcome = "failed"
    return Case(
        element.get("classname") or suite.get("name"),
        element.get("name"),
        element.get("file") or suite.get("file"),
        outcome,
        text,
    )
