"""Export a run: as JSON, as JUnit XML for continuous integration, and in the formats of SWE-bench's own tools.

Names and meanings of the latter are those of swebench 5.0.2 (swebench/harness/reporting.py, schema 2). That package
supports one prediction per instance, so both files contain only the first attempt at each instance.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree  # only for writing

from pydantic import TypeAdapter

from m3agent.evals.data.results import AttemptRecord, RunConfig, TestCount, Verdict
from m3agent.evals.report.counting import seconds_of
from m3agent.evals.report.model import RunComparison, RunReport

COUNTED = (
    *("total", "submitted", "completed", "resolved", "unresolved", "infra_failure", "ambiguous_failure"),
    *("empty_patch", "error"),
)
LISTED = (
    *("completed", "incomplete", "empty_patch", "submitted", "resolved", "unresolved", "infra_failure"),
    "ambiguous_failure",
)
"""Outcomes in the official report, in its order: those that are counted, and those whose instances it lists."""
ATTEMPT = 1
"""Number of the attempt that the files contain."""
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


def as_json(report: RunReport, comparison: RunComparison | None) -> bytes:
    """Return a JSON object with `complete`, the report's fields and `comparison`. Unknown values are null."""
    value = {
        "complete": report.complete,
        **TypeAdapter(RunReport).dump_python(report, mode="json"),
        "comparison": TypeAdapter(RunComparison | None).dump_python(comparison, mode="json"),
    }
    return TypeAdapter(dict[str, object]).dump_json(value, indent=2) + b"\n"


def predictions(config: RunConfig, patches: Mapping[str, bytes]) -> tuple[str, tuple[str, ...]]:
    """Return the predictions as JSON lines, sorted by instance id, and the ids of patches that are not UTF-8.

    JSON contains only text. Bytes that are not UTF-8 are replaced, and such a patch may not apply.
    """
    lines: list[str] = []
    damaged: list[str] = []
    for ident, patch in sorted(patches.items()):
        text = patch.decode(errors="replace")
        if text.encode() != patch:
            damaged.append(ident)
        row = {"instance_id": ident, "model_name_or_path": config.agent, "model_patch": text}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines), tuple(damaged)


def submitted(results: Iterable[AttemptRecord]) -> list[AttemptRecord]:
    """Return the first attempts that have a result.

    Attempts with the verdict `infra` are still to be made and left out.
    """
    return sorted(
        (result for result in results if result.attempt == ATTEMPT and result.verdict is not Verdict.INFRA),
        key=lambda result: result.instance_id,
    )


def official_report(config: RunConfig, results: Iterable[AttemptRecord]) -> str:
    """Return the run report as JSON.

    The official verdict decides if there is one, else the strict verdict (`asked_official` counts both
    cases). The official tools also guess infrastructure failures from logs. Those labels change no score and
    are not computed here.
    """
    ids: dict[str, set[str]] = {name: set() for name in (*COUNTED, *LISTED)}
    for result in submitted(results):
        ids[_outcome(result)].add(result.instance_id)
    ids["total"] = set(config.instances)
    ids["completed"] = ids["resolved"] | ids["unresolved"]
    ids["submitted"] = ids["completed"] | ids["empty_patch"] | ids["error"]
    ids["incomplete"] = ids["total"] - ids["submitted"]
    report: dict[str, Any] = {f"{name}_instances": len(ids[name]) for name in COUNTED}
    report |= {f"{name}_ids": sorted(ids[name]) for name in LISTED}
    report |= {"failure_reasons": {}, "error_ids": sorted(ids["error"]), "schema_version": 2}
    return json.dumps(report, indent=4) + "\n"


def asked_official(results: Iterable[AttemptRecord]) -> tuple[int, int]:
    """Return how many non-empty submitted patches have an official verdict, and how many have none."""
    graded = [result for result in submitted(results) if result.patch_bytes]
    asked = sum(result.official is not None and result.official.resolved is not None for result in graded)
    return asked, len(graded) - asked


def _outcome(result: AttemptRecord) -> str:
    """Return an attempt's category in the official report.

    It is empty patch, resolved, unresolved, or error (the patch was not graded).
    """
    if not result.patch_bytes:
        return "empty_patch"
    if result.official is not None and result.official.resolved is not None:
        return "resolved" if result.official.resolved else "unresolved"
    if result.verdict is Verdict.RESOLVED:
        return "resolved"
    return "unresolved" if result.verdict is Verdict.UNRESOLVED else "error"


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
            name = _text(report.config.label(ident, number))
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
