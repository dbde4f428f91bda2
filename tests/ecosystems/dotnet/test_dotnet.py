"""The runner of .NET without a sandbox. No SDK is here, so the reports are those that its documentation shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from m3agent.tools.runners.dotnet import Dotnet
from m3agent.tools.test_report import TestReport
from tests.ecosystems.records import WORK, job_of, outcomes, report_from, tree_of
from tests.ecosystems.table import believed

TESTS = '<PackageReference Include="Microsoft.NET.Test.Sdk" Version="17.8.0" />'
PROJECT = "tests/Shop.Tests/Shop.Tests.csproj"
CART = "tests/Shop.Tests/CartTests.cs"
FILES = {"Shop.sln": "", "src/Shop/Shop.csproj": "", PROJECT: TESTS, CART: "", "src/Shop/Cart.cs": ""}
CLASSES = {"1": "Shop.CartTests", "2": "Shop.OtherTests"}


def trx(*results: tuple[str, str, str], counters: Mapping[str, int] | None = None, cut: int = 0) -> str:
    """Return a report of results: number of the class, name, outcome."""
    count = {"total": len(results), "passed": sum(outcome == "Passed" for *_, outcome in results)}
    shown = " ".join(f'{name}="{value}"' for name, value in {**count, **(counters or {})}.items())
    error = "<Output><ErrorInfo><Message>Expected: 3</Message><StackTrace>at Cart.cs:4</StackTrace></ErrorInfo></Output>"
    listed = "".join(
        f'<UnitTestResult testId="{group}" testName="{name}" outcome="{outcome}">'
        f"{error if outcome == 'Failed' else ''}</UnitTestResult>"
        for group, name, outcome in results
    )
    defined = "".join(
        f'<UnitTest id="{number}"><TestMethod className="{group}" name="x" /></UnitTest>'
        for number, group in CLASSES.items()
    )
    text = (
        '<?xml version="1.0"?><TestRun xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010">'
        f"<Results>{listed}</Results><TestDefinitions>{defined}</TestDefinitions>"
        f'<ResultSummary outcome="Completed"><Counters {shown} /></ResultSummary></TestRun>'
    )
    return text[: len(text) - cut]


def read(*reports: str, exit_status: int = 0, **more: Any) -> TestReport:
    files = {f"{WORK}/dotnet-0/{number}.trx": text for number, text in enumerate(reports)}
    done = {PROJECT: {"exit": exit_status, **more}, f"reports {PROJECT}": {"files": files}}
    return report_from(Dotnet(), job_of(Dotnet(), FILES), done)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (FILES, [""]),
        ({"a/A.sln": "", "a/t/T.csproj": TESTS, "b/t/T.fsproj": TESTS}, ["a", "b/t"]),
        ({"T.csproj": "<IsTestProject>true</IsTestProject>"}, [""]),
        ({"A.sln": "", "src/A.csproj": ""}, []),
        ({"obj/T.csproj": TESTS}, []),
    ],
)
def test_detection(files: dict[str, str], expected: list[str]) -> None:
    assert [suite.root for suite in Dotnet().detect(tree_of(files))] == expected


def test_selection() -> None:
    tree = tree_of({**FILES, "tests/Api.Tests/Api.Tests.csproj": TESTS})
    (suite,) = Dotnet().detect(tree)
    assert Dotnet().select(suite, tree, [f"{CART}::Shop.CartTests > Adds"]) == (PROJECT,)
    assert Dotnet().select(suite, tree, ["tests/Shop.Tests"]) == (PROJECT,)
    assert Dotnet().select(suite, tree, ["tests"]) == ()
    assert Dotnet().select(suite, tree, [CART, "src/Shop/Cart.cs"]) == ()


@pytest.mark.parametrize(
    ("frameworks", "option"),
    [
        ("", []),
        ("<TargetFramework>net8.0</TargetFramework>", []),
        (
            "<TargetFrameworks>net48;net6.0; net10.0;netstandard2.0</TargetFrameworks>",
            ["--framework", "net10.0"],
        ),
    ],
)
def test_one_framework_runs(frameworks: str, option: list[str]) -> None:
    (command,) = Dotnet().commands(job_of(Dotnet(), {**FILES, PROJECT: TESTS + frameworks}), [])
    job = command.files[f"{WORK}/dotnet.json"].decode()
    assert ('"--framework"' in job) == bool(option)
    assert all(f'"{word}"' in job for word in option)


def test_results() -> None:
    report = read(
        trx(
            ("1", "Shop.CartTests.Adds(a: 1)", "Passed"),
            ("1", "Shop.CartTests.Adds(a: 2)", "Failed"),
            ("1", "Shop.CartTests.Later", "NotExecuted"),
            ("2", "Slow", "Timeout"),
            ("2", "Odd", "NotRunnable"),
        ),
        exit_status=1,
    )
    assert report.complete
    assert outcomes(report) == {
        f"{CART}::Shop.CartTests > Adds(a: 1)": "passed",
        f"{CART}::Shop.CartTests > Adds(a: 2)": "failed",
        f"{CART}::Shop.CartTests > Later": "skipped",
        f"{PROJECT}::Shop.OtherTests > Slow": "failed",
        f"{PROJECT}::Shop.OtherTests > Odd": "error",
    }
    assert report.errors[f"{CART}::Shop.CartTests > Adds(a: 2)"] == "Expected: 3\nat Cart.cs:4"
    assert not report.signs.forged


GREEN = ("1", "Shop.CartTests.Adds", "Passed")


def test_green_run_is_believed() -> None:
    assert believed(read(trx(GREEN)))


@pytest.mark.parametrize(
    ("reports", "more"),
    [
        ([], {}),
        ([trx(GREEN), trx(GREEN)], {}),
        ([trx(GREEN, cut=20)], {}),
        ([trx(GREEN, counters={"total": 2})], {}),
        ([trx(GREEN, counters={"passed": 0})], {}),
        ([trx(GREEN)], {"exit_status": 1}),
        ([trx(GREEN)], {"exit_status": -9}),
        ([trx(GREEN)], {"timed_out": True}),
        ([trx(GREEN, ("1", "Shop.CartTests.Other", "Failed"))], {"exit_status": 0}),
        (["<!DOCTYPE a []>" + trx(GREEN)], {}),
    ],
)
def test_run_that_is_not_believed(reports: list[str], more: dict[str, Any]) -> None:
    assert not believed(read(*reports, **more))


def test_project_that_does_not_build_is_red_with_its_first_error() -> None:
    said = "Restored\nCart.cs(4,1): error CS1002: ; expected\n"
    report = read(exit_status=1, output=said)
    assert outcomes(report) == {PROJECT: "error"}
    assert report.errors[PROJECT].startswith("Cart.cs(4,1): error CS1002")


def test_packages_are_restored_from_manifests_alone() -> None:
    tree = tree_of({**FILES, "Directory.Packages.props": "", "nuget.config": ""})
    (suite,) = Dotnet().detect(tree)
    needs = Dotnet().prepare(suite, tree)
    assert needs.commands == (("dotnet", "restore", PROJECT),)
    assert needs.inputs == ("Directory.Packages.props", "nuget.config", "src/Shop/Shop.csproj", PROJECT)
    assert needs.keep == (".nuget/packages",)
