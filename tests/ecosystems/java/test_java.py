"""The runners of Java without a sandbox: the tests of a run, reading of Surefire's reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.tools.runners.base import Job, Output, Suite
from m3agent.tools.runners.java import Gradle, Maven
from m3agent.tools.runners.reporters import surefire
from tests.ecosystems.records import WORK, tree_of

TEST = "src/test/java/shop/CartTest.java"


def test_chosen_classes_and_their_modules() -> None:
    other = "a/src/test/java/shop/deep/OtherTest.java"
    tree = tree_of(dict.fromkeys(("pom.xml", "a/pom.xml", f"b/{TEST}", "b/pom.xml", other), ""))
    (command,) = Maven().commands(Job(Suite("maven"), tree, [other], work=WORK), [])
    assert "-Dtest=shop.deep.OtherTest" in command.argv
    assert command.files[f"{WORK}/maven.poms"] == b"a/pom.xml"
    (command,) = Gradle().commands(Job(Suite("gradle"), tree, [other], work=WORK), [])
    assert command.files[f"{WORK}/gradle.classes"] == b"shop.deep.OtherTest"


def test_preparation() -> None:
    plan = Maven().prepare(Suite("maven"), tree_of({"pom.xml": "", "a/pom.xml": "", TEST: ""}))
    assert plan.inputs == ("a/pom.xml", "pom.xml")
    assert plan.keep == (".m2/repository",)


def test_no_report_is_explained() -> None:
    job = Job(Suite("maven"), tree_of({}), work=WORK)
    (command,) = Maven().commands(job, [])
    reading = Maven().read(job, [], [Output(command, 1, b"", stderr=b"mvn is not installed\n")])
    assert reading.problem == "the test runner wrote no report: mvn is not installed"


XML = """\
<testsuite name="shop.CartTest">
  <testcase classname="shop.CartTest" name="adds"/>
  <testcase classname="shop.CartTest" name="fails"><failure message="m">expected 3</failure></testcase>
  <testcase classname="shop.CartTest" name="breaks"><error message="no device"/></testcase>
  <testcase classname="shop.CartTest" name="waits"><skipped/></testcase>
</testsuite>
"""


def results_of(
    folder: Path, xml: str, printed: dict[str, list[tuple[int, ...]]]
) -> tuple[list[Any], list[str]]:
    path = folder / "TEST-shop.CartTest.xml"
    path.write_text(xml)
    records: list[Any] = []
    signs = surefire.write_results(
        lambda *record: records.append(record), str(path), "a/pom.xml", [f"a/{TEST}"], printed
    )
    return [record for record in records if record[0] == "result"], signs


@pytest.mark.parametrize(("counted", "running"), [(0, ["shop.CartTest"]), (1, []), (2, [])])
def test_a_class_that_is_announced_twice_may_be_counted_once(counted: int, running: list[str]) -> None:
    log = surefire.Log()
    counts = (
        "[INFO] Tests run: 4, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s -- in shop.CartTest"
    )
    for line in [*["[INFO] Running shop.CartTest"] * 2, *[counts] * counted]:
        log.add(line)
    assert log.running == running


def test_reading_of_a_report(tmp_path: Path) -> None:
    printed: dict[str, list[tuple[int, ...]]] = {"shop.CartTest": [(4, 1, 1, 1)]}
    results, signs = results_of(tmp_path, XML, printed)
    file = f"a/{TEST}"
    assert results == [
        ("result", file, ["CartTest", "adds"], "passed", ""),
        ("result", file, ["CartTest", "fails"], "failed", "expected 3"),
        ("result", file, ["CartTest", "breaks"], "error", "no device"),
        ("result", file, ["CartTest", "waits"], "skipped", ""),
    ]
    assert signs == []
    assert printed == {"shop.CartTest": []}


@pytest.mark.parametrize(
    ("xml", "printed"),
    [
        (XML, {"shop.CartTest": [(4, 2, 1, 1)]}),
        (XML, {}),
        (XML.replace("</testsuite>", ""), {"shop.CartTest": [(4, 1, 1, 1)]}),
    ],
)
def test_a_report_that_differs_from_mavens_log_is_a_sign(
    tmp_path: Path, xml: str, printed: dict[str, list[tuple[int, ...]]]
) -> None:
    assert results_of(tmp_path, xml, printed)[1]
