"""Export a run as JUnit XML for continuous integration: a suite per repository, a case per attempt."""

from __future__ import annotations

import re
from collections import defaultdict
from xml.etree import ElementTree  # only for writing

from m3agent.evals.data.results import AttemptRecord, TestCount, Verdict
from m3agent.evals.report.model import RunReport
from m3agent.evals.report.usage import seconds_of

MOST_TESTS = 50
"""Largest number of tests that a case lists."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids, even as references (production 2, Char)."""

KINDS = {
    Verdict.UNRESOLVED: "failure",
    Verdict.EMPTY: "failure",
    Verdict.ERROR: "error",
    Verdict.TIMEOUT: "error",
    Verdict.INFRA: "skipped",
    Verdict.INVALID: "skipped",
}
"""The JUnit element of each verdict; `resolved` has none."""


def junit(report: RunReport) -> bytes:
    """Return the run as XML in UTF-8. Times come from the results, so equal results give equal bytes."""
    cases: defaultdict[str, list[tuple[str, int, AttemptRecord | None]]] = defaultdict(list)
    there = {(result.instance_id, result.attempt): result for result in report.results}
    for ident, number in sorted({*there, *report.missing}):
        cases[report.repos[ident]].append((ident, number, there.get((ident, number))))
    suites = ElementTree.Element("testsuites", name=_text(report.config.agent))
    for repo, attempts in sorted(cases.items()):
        suite = ElementTree.SubElement(suites, "testsuite", name=_text(repo))
        for ident, number, result in attempts:
            name = _text(report.label(ident, number))
            _fill(ElementTree.SubElement(suite, "testcase", classname=_text(repo), name=name), result)
        _count(suite)
    _count(suites)
    ElementTree.indent(suites, "\t")
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _fill(case: ElementTree.Element, result: AttemptRecord | None) -> None:
    if result is None:
        ElementTree.SubElement(case, "skipped", message="missing: the attempt has no result")
        return
    case.set("time", f"{seconds_of(result):.3f}")
    if kind := KINDS.get(result.verdict):
        message = _text(f"{result.verdict}: {result.reason}" if result.reason else result.verdict)
        element = ElementTree.SubElement(case, kind, message=message)
        if kind != "skipped":
            element.set("type", result.verdict)
            element.text = _text(_details(result))


def _details(result: AttemptRecord) -> str:
    if result.grade is None:
        return ""
    grade = result.grade
    parts = [
        *_tests("should pass now and do not pass", grade.fail_to_pass),
        *_tests("passed before and do not pass now", grade.pass_to_pass),
        *(f"undone: {path}" for path in grade.undone[:MOST_TESTS]),
        *(f"forged: {what}" for what in grade.forged[:MOST_TESTS]),
        *(f"needs review: {line}" for line in grade.review[:MOST_TESTS]),
    ]
    return "\n".join(parts)


def _tests(what: str, count: TestCount) -> list[str]:
    if not count.failed:
        return []
    more = len(count.failed) - MOST_TESTS
    lines = [f"{len(count.failed)} tests {what}:", *count.failed[:MOST_TESTS]]
    return [*lines, f"and {more} more"] if more > 0 else lines


def _count(parent: ElementTree.Element) -> None:
    """Set the totals that readers of JUnit files expect on a suite."""
    cases = list(parent.iter("testcase"))
    parent.set("tests", str(len(cases)))
    for name, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        parent.set(attribute, str(sum(case.find(name) is not None for case in cases)))
    parent.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
