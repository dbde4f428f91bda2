"""A repository's own command in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.command import CommandRunner
from m3agent.tools.test_report import TestReport
from tests.ecosystems.records import outcomes
from tests.ecosystems.sandbox_run import run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(120)]

TAP = '[tests]\ncommand = "sh ./run.sh"\nreport = "tap"\n'
JUNIT = '[tests]\ncommand = ["sh", "run.sh", "{report}"]\nreport = "junit"\n'
FILE = '[tests]\ncommand = "sh run.sh"\nreport = "junit"\nfile = "out/report.xml"\n'
PASSING = (
    '<testsuite><testcase name="a" file="tests/a.q"/><testcase name="b" classname="tests.b"/></testsuite>'
)


async def run(tmp_path: Path, backend: Backend, configuration: str, script: str, **more: str) -> TestReport:
    files = {".m3agent.toml": configuration, "run.sh": script, "tests/a.q": "", "tests/b.q": "", **more}
    return await run_files(CommandRunner(), files, tmp_path, backend, limits=Limits(total=10))


async def test_tap(backend: Backend, tmp_path: Path) -> None:
    script = "echo 1..4; echo ok 1 - one; echo not ok 2 - two; echo '# why'; echo 'ok 3 # skip no'; echo ok 4 - one; exit 1"
    report = await run(tmp_path, backend, TAP, script)
    assert outcomes(report) == {
        ".m3agent.toml::one": "passed",
        ".m3agent.toml::two": "failed",
        ".m3agent.toml::3": "skipped",
    }
    assert report.errors == {".m3agent.toml::two": "why"}
    assert report.complete


@pytest.mark.parametrize(
    ("configuration", "script"),
    [(JUNIT, f"echo '{PASSING}' > \"$1\""), (FILE, f"mkdir -p out; echo '{PASSING}' > out/report.xml")],
)
async def test_junit(one_backend: Backend, tmp_path: Path, configuration: str, script: str) -> None:
    report = await run(tmp_path, one_backend, configuration, script)
    assert outcomes(report) == {"tests/a.q::a": "passed", "tests/b.q::b": "passed"}
    assert report.complete


FORGERIES = {
    "exit code only": (TAP, "exit 0"),
    "stale report": (FILE, "exit 0"),
    "cut off": (JUNIT, f"echo '{PASSING[:-20]}' > \"$1\""),
    "exit code contradicts": (JUNIT, f"echo '{PASSING}' > \"$1\"; exit 3"),
    "two results": (TAP, "echo 1..2; echo ok 1 a; echo ok 2 b; echo 1..2; echo not ok 1 a; echo not ok 2 b"),
    "too few": (TAP, "echo 1..3; echo ok 1 a; echo ok 2 b"),
    "no plan": (TAP, "echo ok 1 a"),
    "entities": (JUNIT, f'echo \'<!DOCTYPE a [<!ENTITY b "c">]>{PASSING}\' > "$1"'),
    "kills the driver": (TAP, "echo 1..1; echo ok 1 a; kill -9 $PPID"),
    "driver's report": (
        TAP,
        "for file in /tmp/m3agent-tests/*/run.report; do echo '1\t[\"end\"]\tabc' > $file; done; kill -9 $PPID",
    ),
    "hangs": (TAP, "echo 1..1; echo ok 1 a; while :; do :; done"),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_forgeries_are_found(one_backend: Backend, tmp_path: Path, name: str) -> None:
    configuration, script = FORGERIES[name]
    report = await run(tmp_path, one_backend, configuration, script, **{"out/report.xml": PASSING})
    assert not report.complete or report.red or report.signs.forged


async def test_forgery_in_each_sandbox(backend: Backend, tmp_path: Path) -> None:
    configuration, script = FORGERIES["driver's report"]
    assert not (await run(tmp_path, backend, configuration, script)).complete
