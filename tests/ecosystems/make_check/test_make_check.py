"""automake without a sandbox, and with the real toolchain in real ones."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Unit
from m3agent.tools.runners.other_builds import AutomakeRunner
from m3agent.tools.test_report import TestReport
from tests.ecosystems.ctest.project import PLAIN_FORGERIES
from tests.ecosystems.make_check import project
from tests.ecosystems.records import WORK, job_of, output_of, report_from
from tests.ecosystems.sandbox_run import RealRuns

RUNNER = AutomakeRunner()
FILES = {
    "configure.ac": "",
    "Makefile.am": "",
    "tests/Makefile.am": "TESTS = a b.sh\n",
    "tests/a.c": "",
    "tests/b.sh": "",
}
JOB = job_of(RUNNER, FILES)
LISTING = "D ./tests\nT a b.sh\nL a.log b.sh.log\nP a lib\nS a a.c\nS b.sh\nD .\nT x\nL\nP\n"


def units() -> list[Unit]:
    done = {"configure": {}, "list": {"output": LISTING}}
    return RUNNER.units(JOB, output_of(RUNNER.build(JOB), done))


def test_units() -> None:
    one, two = units()
    assert (one.name, one.program) == ("tests/a.c::a", f"{WORK}/build/tests/a")
    assert (two.name, two.program) == ("tests/b.sh::b.sh", "")


RETURNED = [["loaded", 0, 0, ""], ["main", 0, 1, ""], ["return", 0, 2, ""]]


def read(report: str, exit_status: int = 0, watched: object = RETURNED) -> TestReport:
    done = {"0": {"report": report, "exit": exit_status}, "0 direct": {"linked": True, "watched": watched}}
    return report_from(RUNNER, JOB, done, units()[:1])


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("PASS", "passed"),
        ("FAIL", "failed"),
        ("XFAIL", "skipped"),
        ("XPASS", "failed"),
        ("SKIP", "skipped"),
        ("ERROR", "errored"),
    ],
)
def test_results(word: str, outcome: str) -> None:
    report = read(f":test-result: {word}\n:global-test-result: {word}\n")
    assert report.sets[outcome] == ["tests/a.c::a"]
    assert report.complete


def test_tap_driver_has_a_result_for_each_point() -> None:
    report = read(
        ":test-result: PASS 1 - one\n:test-result: FAIL 2 - two\n:test-result: SKIP 3 # SKIP no\n", 1
    )
    assert report.passed == ("tests/a.c::a > one",)
    assert report.failed == ("tests/a.c::a > two",)


def test_missing_result_is_red() -> None:
    assert read("").errored == ("tests/a.c::a",)


def test_program_that_ends_before_main_is_a_sign() -> None:
    assert read(":test-result: PASS\n", watched=RETURNED[:1]).signs.forged == (
        "tests/a.c::a: the program ended before main() was called",
    )


def test_test_without_a_step_did_not_end() -> None:
    report = report_from(RUNNER, JOB, {}, units(), ended=False)
    assert report.red == {"tests/a.c::a", "tests/b.sh::b.sh"}
    assert not report.complete


class TestMakeCheck(RealRuns):
    runner = RUNNER
    every_kind, outcomes, folder = project.EVERY_KIND, project.OUTCOMES, "tests/"
    errors = (("fails.c::fails", "no luck"), ("broken.c::broken", "no_such_name"))
    signs = ("tests/stops.c::stops: exit() ended the program (in cart.c)",)
    forging, forged = project.forging_project(), [f"tests/{name}_test.c" for name in PLAIN_FORGERIES]
