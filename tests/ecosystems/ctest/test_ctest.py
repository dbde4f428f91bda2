"""ctest without a sandbox: detection, options, selection, and reading of reports; and with the real toolchain in real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.runners.programs import Program, chosen_programs
from m3agent.tools.runners.run import report_of
from m3agent.tools.test_report import TestReport
from tests.ecosystems.ctest import project
from tests.ecosystems.records import WORK, job_of, output_of, report_from, tree_of
from tests.ecosystems.sandbox_run import RealRuns, run_files

RUNNER = CtestRunner()
B = f"{WORK}/build"
TESTS = "enable_testing()\nadd_test(NAME a COMMAND a)\n"


OPTIONS = """\
option(SHOP_BUILD_TESTS "Tests" OFF)
option(SHOP_TESTING_ASAN "Tests with ASan" OFF)
option(ENABLE_UTILS "More" OFF)
option(ENABLE_SAFE "Safe" OFF)
option(ENABLE_SANITIZERS "Sanitizers" OFF)
option(WITH_EXTRA "Extra" ON)
option(LATEST "Not about tests" OFF)
enable_testing()
"""


@pytest.mark.parametrize(
    ("ci", "expected"),
    [
        ("", {}),
        ('cmake .. -DENABLE_UTILS=On -DENABLE_SAFE="${SAFE}"', {"ENABLE_UTILS": "ON"}),
        (
            "x: '-DENABLE_UTILS=ON -DENABLE_SAFE=ON'\ny: '-DENABLE_UTILS=ON -DENABLE_SAFE=OFF'",
            {"ENABLE_UTILS": "ON"},
        ),
        (
            "cmake -DENABLE_SANITIZERS=ON -DCMAKE_C_COMPILER=evil -DUNKNOWN=ON -DWITH_EXTRA:BOOL=OFF ..",
            {"WITH_EXTRA": "OFF"},
        ),
        ("cmake -DSHOP_BUILD_TESTS=OFF", {}),
    ],
)
def test_options_come_from_test_switches_and_the_ci(ci: str, expected: dict[str, str]) -> None:
    (suite,) = RUNNER.detect(tree_of({"CMakeLists.txt": OPTIONS, ".github/workflows/ci.yml": ci}))
    assert suite.options == {"SHOP_BUILD_TESTS": "ON", **expected}


def test_prepares_the_frameworks_that_the_build_names() -> None:
    tree = tree_of({"CMakeLists.txt": TESTS + "find_package(GTest)\nFetchContent_Declare(Catch2 GIT_TAG v2)"})
    (suite,) = RUNNER.detect(tree)
    prepared = RUNNER.prepare(suite, tree)
    assert prepared.system_packages == (
        "cmake",
        "ninja-build",
        "g++",
        "libgtest-dev",
        "libgmock-dev",
        "catch2",
    )
    assert prepared.notices


FILES = {
    "CMakeLists.txt": TESTS,
    "tests/CMakeLists.txt": "",
    "tests/main.c": "",
    "tests/cart_test.c": "",
    "src/cart.c": "",
    "tests/unit_test.cpp": "",
}
JOB = job_of(RUNNER, FILES)
TARGET = {
    "name": "cart",
    "type": "EXECUTABLE",
    "artifacts": [{"path": "tests/cart"}],
    "sources": [{"path": "src/cart.c"}, {"path": "tests/main.c"}, {"path": "tests/cart_test.c"}],
    "compileGroups": [{"defines": [{"define": "X=1"}], "compileCommandFragments": [{"fragment": "-O2"}]}],
}


def listing(*tests: dict[str, Any]) -> str:
    graph = {
        "files": ["/ws/tests/CMakeLists.txt", "/usr/share/x.cmake"],
        "nodes": [{"file": 0}, {"file": 1, "parent": 0}],
    }
    return json.dumps({"backtraceGraph": graph, "tests": list(tests)})


def units_of(*tests: dict[str, Any], build: str = "", more: str = "") -> list[Any]:
    done: dict[str, dict[str, Any]] = {
        "configure": {},
        "build": {"output": build},
        "list": {"report": listing(*tests)},
        "targets": {"files": {"target-a.json": json.dumps(TARGET), "target-b.json": "{"}},
        "registered": {"files": {"CTestTestfile.cmake": more}},
    }
    return RUNNER.units(JOB, output_of(RUNNER.build(JOB), done))


def prop(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "value": value}


def test_units_are_the_registered_programs() -> None:
    properties = [
        prop("WORKING_DIRECTORY", "/ws/tests"),
        prop("ENVIRONMENT", ["A=b=c", "bad"]),
        prop("TIMEOUT", 7.0),
        prop("SKIP_RETURN_CODE", 5),
    ]
    (unit,) = units_of({"name": "a b", "command": [f"{B}/tests/cart", "-v"], "properties": properties})
    assert unit == Program(
        "tests/cart_test.c::a b",
        program=f"{B}/tests/cart",
        file="tests/cart_test.c",
        title="a b",
        argv=(f"{B}/tests/cart", "-v"),
        cwd="/ws/tests",
        env={"A": "b=c"},
        seconds=7.0,
        skip=(5,),
        sources=("src/cart.c", "tests/main.c", "tests/cart_test.c"),
        make=("ninja", "-C", B, "tests/cart"),
        facts=unit.facts,
    )
    assert unit.facts["compiler flags"] == "X=1 -O2"


def test_unknown_program_belongs_to_the_file_that_registers_it() -> None:
    (unit,) = units_of({"name": "s", "command": ["/bin/sh", "x"], "backtrace": 1, "properties": []})
    assert unit.name == "tests/CMakeLists.txt::s"


def test_special_properties_need_ctest() -> None:
    (unit,) = units_of({"name": "a+b", "command": ["/bin/x"], "properties": [prop("WILL_FAIL", True)]})
    assert "^a\\+b$" in unit.via


def test_command_of_a_missing_program_comes_from_cmakes_own_file() -> None:
    more = f'add_test([=[lazy]=] "{B}/tests/lazy" "a \\"b\\"")\nset_tests_properties([=[lazy]=] PROPERTIES A "b")\n'
    (unit,) = units_of({"name": "lazy", "properties": []}, more=more)
    assert unit.argv == (f"{B}/tests/lazy", 'a "b"')
    assert unit.built


def test_target_that_was_not_built_is_a_red_unit() -> None:
    build = "FAILED: CMakeFiles/other.dir/o.o\nx error: no\nFAILED: tests/CMakeFiles/cart.dir/c.o\nc.c:1: error: 'y'\n"
    (unit,) = units_of(
        {"name": "cart_NOT_BUILT", "command": ["cart_NOT_BUILT"], "properties": []}, build=build
    )
    assert (unit.name, unit.built, unit.text) == (
        "tests/cart_test.c::cart_NOT_BUILT",
        False,
        "c.c:1: error: 'y'",
    )


@pytest.mark.parametrize(
    ("done", "text"),
    [
        ({"configure": {"exit": 1, "output": "CMake Error at CMakeLists.txt:3"}}, "CMake Error"),
        ({"configure": {}, "list": {"report": "{not json"}, "build": {}}, "ctest lists no tests"),
        ({"configure": {}, "list": {"report": '{"tests": [1]}'}, "build": {}}, "ctest lists no tests"),
        ({"configure": {}, "list": {"report": "[" * 100_000}, "build": {}}, "ctest lists no tests"),
        ({}, "the build did not end"),
    ],
)
def test_no_list_is_one_red_unit(done: dict[str, Any], text: str) -> None:
    (unit,) = RUNNER.units(JOB, output_of(RUNNER.build(JOB), done))
    assert (unit.name, unit.built) == ("CMakeLists.txt", False)
    assert text in unit.text


UNIT = Program(
    "tests/unit_test.cpp::unit",
    program=f"{B}/unit",
    file="tests/unit_test.cpp",
    title="unit",
    argv=(f"{B}/unit",),
    cwd=B,
    skip=(77,),
)
RETURNED = [["loaded", 0, 0, ""], ["main", 0, 1, ""], ["return", 0, 2, ""]]


def read(*done: dict[str, Any], units: tuple[Program, ...] = (UNIT,), ended: bool = True) -> TestReport:
    steps = {str(number): {"linked": True, "watched": RETURNED, **what} for number, what in enumerate(done)}
    return report_from(RUNNER, JOB, steps, units, ended=ended)


@pytest.mark.parametrize(
    ("done", "outcome"),
    [
        ({"exit": 0}, "passed"),
        ({"exit": 1}, "failed"),
        ({"exit": -11}, "failed"),
        ({"exit": 0, "timed_out": True}, "failed"),
        ({"exit": 77, "watched": [["main", 0, 1, ""], ["return", 77, 2, ""]]}, "skipped"),
        ({"missing": True, "exit": 127}, "errored"),
        ({"exit": "0"}, "failed"),
    ],
)
def test_plain_program(done: dict[str, Any], outcome: str) -> None:
    report = read(done)
    assert report.sets[outcome] == [UNIT.name]
    assert report.complete
    assert not report.signs.forged


EARLY = [["loaded", 0, 0, ""]]


@pytest.mark.parametrize(
    ("events", "sign"),
    [
        (EARLY, "before main() was called"),
        ([*EARLY, ["_exit", 0, 0, "/ws/src/cart.c"]], "before main() was called (in src/cart.c)"),
        ([*EARLY, ["main", 0, 1, ""]], "without a return from main()"),
        (
            [*EARLY, ["main", 0, 1, ""], ["exit", 0, 1, "/ws/src/cart.c"]],
            "exit() ended the program (in src/cart.c)",
        ),
        ([*EARLY, ["main", 0, 1, ""], ["exit", 0, 1, "/ws/tests/cart_test.c"]], ""),
        ([*EARLY, ["main", 0, 1, ""], ["exit", 0, 1, "/ws/tests/no_such_test.c"]], "exit() ended"),
        ([*EARLY, ["main", 0, 1, ""], ["return", 1, 2, ""]], "main() returned 1"),
        ([*EARLY, ["replaced:abort", 0, 1, "/ws/src/cart.c"], *RETURNED[1:]], "src/cart.c replaces abort()"),
        ([], "nothing could watch"),
        (None, "nothing could watch"),
        (RETURNED, ""),
    ],
)
def test_how_a_program_ended(events: Any, sign: str) -> None:
    forged = read({"exit": 0, "watched": events}).signs.forged
    assert all(sign in text for text in forged)
    assert bool(forged) == bool(sign)


LIST = "Running main() from x.cc\nCart.\n  Adds\n  Fails  # TypeParam = int\n"


def gtest(**results: str) -> str:
    inner = {
        "off": ('status="notrun" result="suppressed"', ""),
        "failed": ("", '<failure message="no luck"/>'),
    }
    tests = [
        '<testcase name="{}" classname="Cart" file="tests/unit_test.cpp" {}>{}</testcase>'.format(
            name, *inner.get(result, ("", ""))
        )
        for name, result in results.items()
    ]
    return f'<testsuites><testsuite name="Cart">{"".join(tests)}</testsuite></testsuites>'


def test_gtest_report() -> None:
    report = read(
        {"exit": 1, "mode": "gtest", "listed": LIST, "report": gtest(Adds="passed", Fails="failed")}
    )
    assert report.passed == ("tests/unit_test.cpp::Cart.Adds",)
    assert report.errors == {"tests/unit_test.cpp::Cart.Fails": "no luck"}
    assert report.complete


@pytest.mark.parametrize(
    ("done", "red", "sign"),
    [
        # a result is missing
        ({"exit": 0, "report": gtest(Adds="passed")}, "Cart.Fails", "ended with 0"),
        # the program did not come to its end
        ({"exit": -6, "report": ""}, "Cart.Adds", ""),
        ({"exit": 0, "report": "", "watched": EARLY}, "Cart.Adds", "ended with 0"),
        ({"exit": -6, "listed": "", "report": ""}, "unit", ""),
        # the report contradicts the exit status, the program's text or the list
        ({"exit": 1, "report": gtest(Adds="passed", Fails="passed")}, "unit", ""),
        ({"exit": 0, "report": gtest(Adds="passed", Fails="failed")}, "Cart.Fails", "ended with 0"),
        (
            {
                "exit": 0,
                "report": gtest(Adds="passed", Fails="passed"),
                "output": "[ RUN      ] Cart.Fails\n[  FAILED  ] Cart.Fails (0 ms)\n",
            },
            "",
            "the program's output says that it failed",
        ),
        ({"exit": 0, "report": gtest(Adds="passed", Fails="passed", Ghost="passed")}, "", "does not contain"),
        ({"exit": 0, "report": gtest(Adds="passed", Fails="passed"), "watched": EARLY}, "", "before main()"),
    ],
)
def test_gtest_is_not_believed(done: dict[str, Any], red: str, sign: str) -> None:
    report = read({"mode": "gtest", "listed": LIST, **done})
    assert bool(red) == any(ident.endswith(f"::{red}") for ident in report.red)
    assert sign in "\n".join(report.signs.forged)


@pytest.mark.parametrize("mode", ["gtest", "catch2", "catch3"])
@pytest.mark.parametrize(
    "done",
    [
        {"report": ""},
        {"report": "[" * 50_000},
        {"report": '{"testsuites": [{"testsuite": [{"name": 3}]}]}'},
        {"report": "<Catch2TestRun><Test name='of a later version'/></Catch2TestRun>"},
        {"listed": "", "report": gtest(Adds="passed")},
    ],
)
@pytest.mark.parametrize("status", [0, 1, 255])
def test_results_that_cannot_be_read_are_not_red(done: dict[str, Any], mode: str, status: int) -> None:
    returned = [*RETURNED[:-1], ["return", status, 2, ""]]
    report = read({"exit": status, "mode": mode, "listed": LIST, "watched": returned, **done}, {"exit": 0})
    assert (report.ran, report.complete) == (0, False)
    assert report.cause.endswith("cannot be read")


def test_skipped_tests_of_catch_are_skipped_whatever_the_exit_status() -> None:
    case = '<TestCase name="adds"><Skip/><OverallResult success="true" skips="1"/></TestCase>'
    done = {
        "exit": 4,
        "mode": "catch3",
        "listed": "adds\n",
        "report": f"<Catch2TestRun>{case}</Catch2TestRun>",
    }
    done["watched"] = [*RETURNED[:-1], ["return", 4, 2, ""]]
    report = read(done)
    assert (report.sets["skipped"], report.red, report.complete) == (
        ["tests/unit_test.cpp::adds"],
        set(),
        True,
    )
    assert not report.signs.forged


def test_gtest_text_counts_only_for_the_running_test() -> None:
    text = "[ RUN      ] Cart.Adds\n[       OK ] Cart.Fails (0 ms)\n[       OK ] Cart.Adds (0 ms)\n[ RUN      ] Cart.Fails\n"
    report = read({"exit": -6, "mode": "gtest", "listed": LIST, "output": text})
    assert report.passed == ("tests/unit_test.cpp::Cart.Adds",)
    assert "ended by SIGABRT" in report.errors["tests/unit_test.cpp::Cart.Fails"]


CATCH = """<?xml version="1.0"?><Catch><Group>
<TestCase name="adds" filename="/ws/tests/unit_test.cpp"><OverallResult success="true"/></TestCase>
<TestCase name="fails" filename="/ws/tests/unit_test.cpp"><Expression success="false" type="CHECK" filename="a.cpp" line="3">
<Original>x</Original><Expanded>1 == 2</Expanded></Expression>"""


def test_catch_report_that_is_cut_off() -> None:
    report = read({"exit": 0, "mode": "catch2", "listed": "adds\nfails\nnever\n", "report": CATCH})
    assert report.passed == ("tests/unit_test.cpp::adds",)
    assert report.failed == ("tests/unit_test.cpp::fails",)
    assert report.errored == ("tests/unit_test.cpp::never",)


def test_program_without_a_step_did_not_end() -> None:
    report = read(units=(UNIT,), ended=False)
    assert report.failed == (UNIT.name,)
    assert not report.complete


def test_report_without_the_key_is_no_report() -> None:
    (command,) = RUNNER.commands(JOB, [UNIT])
    output = output_of(command, {"0": {"exit": 0, "watched": RETURNED}})
    forged = type(output)(**{**vars(output), "key": b"another"})
    report = report_of(RUNNER.read(JOB, [UNIT], [forged]), [UNIT], [forged])
    assert not report.complete
    assert report.red == {UNIT.name}


PROGRAMS = [
    Program("tests/a_test.c::a", file="tests/a_test.c", title="a", sources=("tests/a_test.c", "src/a.c")),
    Program("tests/a_test.c::b", file="tests/a_test.c", title="b"),
    Program(
        "tests/unit_test.cpp::unit",
        file="tests/unit_test.cpp",
        title="unit",
        sources=("tests/more_test.cpp",),
    ),
]


@pytest.mark.parametrize(
    ("target", "titles"),
    [
        ("tests/a_test.c::a", "a"),
        ("tests/a_test.c", "ab"),
        ("src/a.c", "a"),
        ("tests/more_test.cpp::Cart.Adds", ["unit"]),
        ("tests", ["a", "b", "unit"]),
        (".", ["a", "b", "unit"]),
        ("test", ""),
    ],
)
def test_selection(target: str, titles: list[str]) -> None:
    assert [program.title for program in chosen_programs(PROGRAMS, [target])] == list(titles)


class TestCtest(RealRuns):
    runner = RUNNER
    every_kind, outcomes, folder = project.EVERY_KIND, project.OUTCOMES, "tests/"
    errors = (
        ("fails_test.c::fails", "1 + 2 is not 4\nended with status 1"),
        ("crashes_test.c::crashes", "ended by SIGABRT"),
        ("hangs_test.c::hangs", "timed out"),
        ("unit_test.cpp::Cart.Fails", "no luck"),
        ("broken_test.c::broken", "no_such_name"),
        ("lost_test.cpp::lost_tests_NOT_BUILT", "no_such_name"),
        ("dies_test.cpp::Dies.Second", "ended by SIGABRT"),
    )
    signs = ("tests/stops_test.c::stops: exit() ended the program (in src/cart.c)",)
    forging = project.forging_project()
    forged = [f"tests/{n}_test.c" for n in project.PLAIN_FORGERIES] + [
        f"tests/{n}_test.cpp" for n in project.GTEST_FORGERIES
    ]

    async def test_googletest_that_the_build_would_fetch(self, backend: Backend, tmp_path: Path) -> None:
        report = await run_files(RUNNER, project.FETCHED, tmp_path, backend)
        assert report.sets["passed"] == ["tests/cart_test.cpp::Cart.Adds"]
        assert report.sets["failed"] == ["tests/cart_test.cpp::Cart.Fails"]

    async def test_catch2(self, backend: Backend, tmp_path: Path) -> None:
        report = await run_files(RUNNER, project.CATCH, tmp_path, backend)
        ids = {name: {ident.removeprefix("tests/") for ident in ids} for name, ids in report.sets.items()}
        assert ids == project.CATCH_OUTCOMES
        assert "cases_test.cpp:5: Expression: 1 == 2" in report.errors["tests/cases_test.cpp::fails"]
