"""Meson without a sandbox, and with the real toolchain in real ones."""

from __future__ import annotations

import json

from m3agent.tools.runners.other_builds import MesonRunner
from tests.ecosystems.ctest.project import GTEST_FORGERIES, PLAIN_FORGERIES
from tests.ecosystems.meson import project
from tests.ecosystems.records import WORK, job_of, output_of
from tests.ecosystems.sandbox_run import RealRuns

RUNNER = MesonRunner()
PROJECT = "project('a', 'c')\n"
FILES = {
    "meson.build": PROJECT + "test('a', a)\ntest('k', b, should_fail: true)\n",
    "tests/a_test.c": "",
    "tests/s.sh": "",
}
JOB = job_of(RUNNER, FILES)


def test_units() -> None:
    build = f"{WORK}/build"
    tests = [
        {
            "name": "a",
            "cmd": [f"{build}/a"],
            "env": {"X": "1"},
            "workdir": None,
            "timeout": 9,
            "protocol": "exitcode",
        },
        {
            "name": "k",
            "cmd": ["/ws/tests/s.sh"],
            "env": {},
            "workdir": "/ws",
            "timeout": 0,
            "protocol": "tap",
        },
    ]
    targets = [
        {
            "name": "a",
            "filename": [f"{build}/a"],
            "target_sources": [{"sources": ["/ws/tests/a_test.c", "/usr/x.c"], "parameters": ["-DX"]}],
        }
    ]
    done: dict[str, dict[str, object]] = {
        "configure": {},
        "list": {"report": json.dumps(tests)},
        "targets": {"files": {"programs.json": json.dumps(targets)}},
    }
    one, two = RUNNER.units(JOB, output_of(RUNNER.build(JOB), done))
    assert (one.name, two.name) == ("tests/a_test.c::a", "tests/s.sh::k")
    assert vars(one)["make"] == ("ninja", "-C", build, "a")
    assert vars(one)["facts"] == {"compiler flags": "-DX", "PROTOCOL": "exitcode"}
    assert vars(two)["expected_to_fail"]
    assert vars(two)["tap"]


def test_build_that_cannot_be_configured_is_one_red_unit() -> None:
    failed = {"configure": {"exit": 1, "output": "meson.build:1:0: ERROR: no\n"}}
    (unit,) = RUNNER.units(JOB, output_of(RUNNER.build(JOB), failed))
    assert (unit.name, unit.built) == ("meson.build", False)


class TestMeson(RealRuns):
    runner = RUNNER
    every_kind, outcomes, folder = project.EVERY_KIND, project.OUTCOMES, "tests/"
    signs = ("tests/stops_test.c::stops: exit() ended the program (in src/cart.c)",)
    forging = project.forging_project()
    forged = [f"tests/{n}_test.c" for n in PLAIN_FORGERIES] + [f"tests/{n}_test.cpp" for n in GTEST_FORGERIES]
