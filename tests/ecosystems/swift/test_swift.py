"""The runner of Swift without a sandbox. No toolchain is here, so the output is what the documentation shows."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.tools.runners.swift import SwiftPackage
from m3agent.tools.test_report import TestReport
from tests.ecosystems.records import WORK, job_of, outcomes, report_from, tree_of
from tests.ecosystems.table import believed

MANIFEST = 'targets: [.target(name: "Shop"), .testTarget(name: "ShopTests", dependencies: ["Shop"])]'
CART = "Tests/ShopTests/CartTests.swift"
FILES = {"Package.swift": MANIFEST, CART: "", "Sources/Shop/Cart.swift": ""}
PASSED = """\
Test Case 'CartTests.testAdds' started at 2026-01-01 10:00:00.000
Test Case 'CartTests.testAdds' passed (0.001 seconds)
"""
FAILED = """\
Test Case 'CartTests.testRemoves' started at 2026-01-01 10:00:00.000
/ws/Tests/ShopTests/CartTests.swift:9: error: CartTests.testRemoves : XCTAssertEqual failed: ("1") is not equal to ("0") -
Test Case 'CartTests.testRemoves' failed (0.002 seconds)
"""
SKIPPED = """\
Test Case 'CartTests.testLater' started at 2026-01-01 10:00:00.000
Test Case 'CartTests.testLater' skipped (0.001 seconds)
"""
ONE = "\t Executed 1 test, with 0 failures (0 unexpected) in 0.001 (0.001) seconds\n"
NEW = """\
<?xml version="1.0"?><testsuites><testsuite name="TestResults" errors="0" tests="2" failures="1" skipped="0">
<testcase classname="ShopTests.CartTests" name="adds()" time="0.1" />
<testcase classname="ShopTests.CartTests" name="removes()" time="0.1"><failure message="Expectation failed" /></testcase>
</testsuite></testsuites>"""


def read(log: str, new: str = "", exit_status: int = 0, **more: Any) -> TestReport:
    files = {f"{WORK}/tests.log": log}
    files |= {f"{WORK}/tests-swift-testing.xml": new} if new else {}
    done = {"tests": {"exit": exit_status, **more}, "reports": {"files": files}}
    return report_from(SwiftPackage(), job_of(SwiftPackage(), FILES), done)


def test_results() -> None:
    summary = (
        "\t Executed 3 tests, with 1 test skipped and 1 failure (0 unexpected) in 0.004 (0.004) seconds\n"
    )
    report = read(PASSED + FAILED + SKIPPED + summary, exit_status=1)
    assert report.complete
    assert outcomes(report) == {
        f"{CART}::CartTests > testAdds": "passed",
        f"{CART}::CartTests > testRemoves": "failed",
        f"{CART}::CartTests > testLater": "skipped",
    }
    assert "XCTAssertEqual failed" in report.errors[f"{CART}::CartTests > testRemoves"]


def test_both_libraries_together() -> None:
    report = read(PASSED + ONE, NEW, exit_status=1)
    assert report.complete
    assert outcomes(report) == {
        f"{CART}::CartTests > testAdds": "passed",
        f"{CART}::ShopTests.CartTests > adds()": "passed",
        f"{CART}::ShopTests.CartTests > removes()": "failed",
    }
    assert report.errors[f"{CART}::ShopTests.CartTests > removes()"] == "Expectation failed"


def test_green_run_is_believed() -> None:
    assert believed(read(PASSED + ONE))


@pytest.mark.parametrize(
    ("log", "more"),
    [
        ("", {}),
        (PASSED, {}),
        (ONE, {}),
        (PASSED + PASSED + ONE, {}),
        (PASSED + SKIPPED + ONE, {}),
        (PASSED + SKIPPED.splitlines()[0] + "\n" + ONE, {}),
        (PASSED + ONE, {"exit_status": 1}),
        (PASSED + ONE, {"timed_out": True}),
        (PASSED + ONE, {"new": NEW.replace("failure message", "skipped message")[:-20]}),
        (PASSED + FAILED + ONE.replace("1 test", "2 tests"), {}),
    ],
)
def test_run_that_is_not_believed(log: str, more: dict[str, Any]) -> None:
    assert not believed(read(log, **more))


def test_package_that_does_not_build() -> None:
    said = "Building for debugging...\n/ws/Sources/Shop/Cart.swift:3:5: error: cannot find 'x' in scope\n"
    report = read(said, exit_status=1)
    assert not report.complete
    assert "cannot find 'x' in scope" in report.output


def test_dependencies_are_fetched_only_if_there_are_any() -> None:
    assert SwiftPackage().prepare(SwiftPackage().detect(tree_of(FILES))[0], tree_of(FILES)).commands == ()
    tree = tree_of(
        {**FILES, "Package.swift": f'dependencies: [.package(url: "u", from: "1.0.0")], {MANIFEST}'}
    )
    needs = SwiftPackage().prepare(SwiftPackage().detect(tree)[0], tree)
    assert (needs.commands, needs.inputs, needs.keep) == (
        (("swift", "package", "resolve"),),
        ("Package.swift",),
        (".build",),
    )
