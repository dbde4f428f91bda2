"""The runners of Java without a sandbox: detection, selection, surroundings, reading of Surefire's reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.tools.runners.base import Limits, Output, Suite
from m3agent.tools.runners.java import Gradle, Maven
from m3agent.tools.runners.reporters import surefire
from tests.ecosystems.table import tree_of

TEST = "src/test/java/shop/CartTest.java"


def roots(runner: Maven | Gradle, *paths: str) -> list[str]:
    return [suite.root for suite in runner.detect(tree_of(dict.fromkeys(paths, "")))]


@pytest.mark.parametrize(
    ("paths", "maven", "gradle"),
    [
        (("pom.xml", TEST), [""], []),
        (("pom.xml",), [], []),
        (("pom.xml", "a/pom.xml", f"a/{TEST}"), [""], []),
        (("a/pom.xml", f"a/{TEST}", "b/build.gradle", f"b/{TEST}"), ["a"], ["b"]),
        (("settings.gradle.kts", "app/build.gradle.kts", f"app/{TEST}"), [], [""]),
        (("pom.xml", "build.gradle", TEST), [""], []),
        (("pom.xml", "build.gradle", "gradlew", TEST), [], [""]),
        (("pom.xml", "src/test/java/shop/Helper.java"), [], []),
        (("src/test/resources/x/pom.xml", f"src/test/resources/x/{TEST}"), [], []),
        (("build.gradle", "src/test/kotlin/CartTest.kt"), [], [""]),
    ],
)
def test_detection(paths: tuple[str, ...], maven: list[str], gradle: list[str]) -> None:
    assert roots(Maven(), *paths) == maven
    assert roots(Gradle(), *paths) == gradle


def test_selection() -> None:
    other = "a/src/test/java/shop/deep/OtherTest.java"
    tree = tree_of(dict.fromkeys(("pom.xml", "a/pom.xml", f"b/{TEST}", "b/pom.xml", other), ""))
    suite = Suite("maven")
    assert Maven().select(suite, tree, [f"{other}::OtherTest > x"]) == (other,)
    assert Maven().select(suite, tree, ["a"]) == (other,)
    assert Maven().select(suite, tree, ["a/pom.xml"]) == ()
    (command,) = Maven().commands(suite, tree, [other], [], Limits(), "/tmp/work")
    assert "-Dtest=shop.deep.OtherTest" in command.argv
    assert command.files["/tmp/work/maven.poms"] == b"a/pom.xml"
    (command,) = Gradle().commands(Suite("gradle"), tree, [other], [], Limits(), "/tmp/work")
    assert command.files["/tmp/work/gradle.classes"] == b"shop.deep.OtherTest"


@pytest.mark.parametrize("path", [TEST, "a/src/test/resources/x.json", "a/CartIT.java", "x/CartSpec.groovy"])
def test_files_of_tests(path: str) -> None:
    assert Maven().is_test(path)
    assert not Maven().is_test("src/main/java/shop/Cart.java")


@pytest.mark.parametrize(
    "path",
    ["pom.xml", "a/build.gradle.kts", "settings.gradle", "gradle.properties", "gradle/libs.versions.toml", ".mvn/jvm.config",
     "mvnw", "src/main/resources/META-INF/services/org.junit.X", "src/test/resources/junit-platform.properties",
     "target/surefire-reports/TEST-a.xml"],
)  # fmt: skip
def test_surroundings(path: str) -> None:
    assert Gradle().surroundings(path, ())
    assert not Gradle().surroundings("src/main/java/shop/Cart.java", ())


def test_preparation() -> None:
    plan = Maven().prepare(Suite("maven"), tree_of({"pom.xml": "", "a/pom.xml": "", TEST: ""}))
    assert plan.inputs == ("a/pom.xml", "pom.xml")
    assert plan.keep == (".m2/repository",)


def test_no_report_is_explained() -> None:
    (command,) = Maven().commands(Suite("maven"), tree_of({}), (), [], Limits(), "/tmp/work")
    reading = Maven().read(
        Suite("maven"), tree_of({}), [], [Output(command, 1, b"", stderr=b"mvn is not installed\n")]
    )
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
