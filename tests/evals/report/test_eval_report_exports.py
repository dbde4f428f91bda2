"""Exports for other programs: JUnit XML and SWE-bench's files."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.data.results import AttemptRecord, Grade, TestCount, Verdict
from m3agent.evals.report.counting import Tally
from m3agent.evals.report.exports import (
    MOST_TESTS,
    asked_official,
    junit,
    official_report,
    predictions,
    submitted,
)
from m3agent.evals.report.model import RunReport, report_of
from tests.evals.report.made import FIX, config, official, result, tally

KEYS = [
    "total_instances", "submitted_instances", "completed_instances", "resolved_instances", "unresolved_instances",
    "infra_failure_instances", "ambiguous_failure_instances", "empty_patch_instances", "error_instances", "completed_ids",
    "incomplete_ids", "empty_patch_ids", "submitted_ids", "resolved_ids", "unresolved_ids", "infra_failure_ids",
    "ambiguous_failure_ids", "failure_reasons", "error_ids", "schema_version",
]  # fmt: skip
"""Keys of the report that swebench 5.0.2's make_run_report writes without a Docker client, in its order."""


def made(results: list[AttemptRecord], *missing: str, **fields: object) -> RunReport:
    return report_of(tally(results, *missing, **fields))


def test_each_verdict_has_its_element() -> None:
    results = [result(f"o__{verdict.value}-1", verdict) for verdict in Verdict]
    suites = ElementTree.fromstring(junit(made(results, "o__gone-1")))
    kinds = {str(case.get("classname")): [child.tag for child in case] for case in suites.iter("testcase")}
    assert kinds == {
        "o/resolved": [], "o/unresolved": ["failure"], "o/empty": ["failure"], "o/error": ["error"], "o/timeout": ["error"],
        "o/infra": ["skipped"], "o/invalid": ["skipped"], "o/gone": ["skipped"],
    }  # fmt: skip
    assert [suites.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["8", "2", "2", "3"]
    message = {
        case.get("classname"): child.get("message") for case in suites.iter("testcase") for child in case
    }
    assert message["o/invalid"] == "invalid: it is invalid"
    assert message["o/gone"] == "missing: the attempt has no result"


def test_a_failure_names_the_tests_and_times_are_the_results_own() -> None:
    failed = tuple(f"test_lane.py::test[{n}]" for n in range(MOST_TESTS + 7))
    grade = Grade(
        verdict=Verdict.UNRESOLVED, fail_to_pass=TestCount(passed=1, failed=failed), undone=("conftest.py",)
    )
    suites = ElementTree.fromstring(junit(made([result("o__a-1", "unresolved", grade=grade)])))
    (case,) = suites.iter("testcase")
    assert case.get("time") == "24.000"
    said = str(case[0].text).splitlines()
    assert said[:2] == [f"{MOST_TESTS + 7} tests should pass now and do not pass:", failed[0]]
    assert said[-2:] == ["and 7 more", "undone: conftest.py"]


def test_each_attempt_is_a_case() -> None:
    suites = ElementTree.fromstring(junit(made([result("o__a-1", attempt=n) for n in (1, 2)], attempts=2)))
    assert [case.get("name") for case in suites.iter("testcase")] == ["o__a-1 #1", "o__a-1 #2"]


@given(st.text() | st.text(alphabet="\x00\x1b\ufffe\uffff\ud800<>&\"']]>\r\n\t a"))
def test_any_text_makes_well_formed_xml(words: str) -> None:
    grade = Grade(
        verdict=Verdict.UNRESOLVED, fail_to_pass=TestCount(passed=0, failed=(words,)), forged=(words,)
    )
    bad = result("o__a-1", "unresolved", reason=words, grade=grade)
    idents = ("o__a-1",)
    report = report_of(Tally(config(idents, agent=words), {"o__a-1": words}, [bad]))
    suites = ElementTree.fromstring(junit(report))
    (case,) = suites.iter("testcase")
    assert case[0].tag == "failure"


def test_the_official_report_has_the_official_names_and_meaning() -> None:
    results = [
        result("o__a-1", official=official(True)),
        result("o__a-2", official=official(False)),  # resolved only by our rules
        result("o__a-3", "unresolved", official=official(True)),  # resolved only by the official rules
        result("o__a-4", "unresolved"),
        result("o__a-5", "empty"),
        result("o__a-6", "error"),  # it ended without a patch
        result("o__a-7", "timeout", patch_bytes=9),  # its tests took too long: swebench then writes no report
        result("o__a-8", "invalid", patch_bytes=9),
        result("o__a-9", "infra"),
    ]
    found = json.loads(official_report(config([*(one.instance_id for one in results), "o__a-0"]), results))
    assert list(found) == KEYS
    ids = {name: [ident[-1] for ident in value] for name, value in found.items() if name.endswith("_ids")}
    assert ids == {
        "completed_ids": list("1234"), "incomplete_ids": list("09"), "empty_patch_ids": list("56"),
        "submitted_ids": list("12345678"), "resolved_ids": list("13"), "unresolved_ids": list("24"),
        "infra_failure_ids": [], "ambiguous_failure_ids": [], "error_ids": list("78"),
    }  # fmt: skip
    assert {name: found[f"{name}_instances"] for name in ("total", "submitted", "completed", "resolved")} == {
        "total": 10, "submitted": 8, "completed": 4, "resolved": 2,
    }  # fmt: skip
    assert (found["schema_version"], found["failure_reasons"]) == (2, {})
    assert asked_official(results) == (3, 3)


def test_the_official_files_are_about_the_first_attempt() -> None:
    results = [result("o__a-1", "unresolved"), result("o__a-1", "resolved", 2)]
    found = json.loads(official_report(config(["o__a-1"], attempts=2), results))
    assert found["unresolved_ids"] == ["o__a-1"]
    assert [one.attempt for one in submitted(results)] == [1]


def test_predictions_are_lines_that_the_official_tools_read() -> None:
    text, damaged = predictions(config(["o__a-1"]), {"o__b-1": b"", "o__a-1": FIX})
    rows = [json.loads(line) for line in text.splitlines()]
    assert rows == [
        {"instance_id": "o__a-1", "model_name_or_path": "m3agent 0.1.0", "model_patch": FIX.decode()},
        {"instance_id": "o__b-1", "model_name_or_path": "m3agent 0.1.0", "model_patch": ""},
    ]
    assert damaged == ()


@pytest.mark.parametrize("patch", [b"+caf\xe9\n", b"+\xff\n"])
def test_patch_that_is_not_utf_8_is_noted(patch: bytes) -> None:
    text, damaged = predictions(config(["o__a-1"]), {"o__a-1": patch})
    assert damaged == ("o__a-1",)
    text.encode()


@given(st.text())
def test_a_patch_s_text_comes_through(words: str) -> None:
    patch = words.encode(errors="replace")
    text, damaged = predictions(config(["o__a-1"]), {"o__a-1": patch})
    assert damaged == ()
    assert json.loads(text)["model_patch"].encode() == patch
    assert text.count("\n") == 1
