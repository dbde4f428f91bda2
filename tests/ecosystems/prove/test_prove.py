"""Perl's tests without a sandbox, and in real ones."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.tap_files import ProveRunner
from m3agent.tools.test_report import TestReport
from tests.ecosystems.prove import project
from tests.ecosystems.records import WORK, job_of, report_from, tree_of
from tests.ecosystems.sandbox_run import RealRuns

RUNNER = ProveRunner()
TEST = "use strict;\nuse Test::More tests => 2;\n"


def test_command_takes_over_taint_mode() -> None:
    (command,) = RUNNER.commands(job_of(RUNNER, {"one/t/a.t": "#!/usr/bin/perl -wT\n" + TEST}), ())
    assert b'"argv": ["perl", "-T", "-Ilib", "t/a.t"], "cwd": "/ws/one"' in command.files[f"{WORK}/run.json"]


def test_code_in_c_is_not_built() -> None:
    for files, notices in (
        ({"t/a.t": TEST}, ()),
        ({"t/a.t": TEST, "lib/A.xs": ""}, ("the distribution has XS code, which is not built",)),
    ):
        tree = tree_of(files)
        (suite,) = RUNNER.detect(tree)
        found = RUNNER.prepare(suite, tree)
        assert (found.system_packages, found.notices) == (("perl",), notices)


EVENTS = "result 1 t/a.t\nresult 1 /ws/t/a.t\nend\n"


def read(output: str, events: str = EVENTS, exit_status: int = 0, *, timed_out: bool = False) -> TestReport:
    step = {"output": output, "report": events, "exit": exit_status, "timed_out": timed_out}
    return report_from(RUNNER, job_of(RUNNER, {"t/a.t": TEST}), {"t/a.t": step})


GREEN = "1..2\nok 1 - one\nok 2 - two\n"


def test_green_run() -> None:
    report = read(GREEN)
    assert report.passed == ("t/a.t::one", "t/a.t::two")
    assert report.complete
    assert not report.signs.forged


@pytest.mark.parametrize(
    ("output", "events", "exit_status"),
    [
        ("", EVENTS, 0),
        ("1..2\nok 1 - one\n", EVENTS, 0),
        (GREEN, EVENTS, 255),
        (GREEN.replace("ok 2", "not ok 2"), EVENTS, 0),
        (GREEN, "", 0),
        (GREEN, "result 1 t/a.t\nresult 1 t/a.t\n", 0),
        (GREEN, "result 1 t/a.t\nend\n", 0),
        (GREEN, "result 1 t/a.t\nresult 1 lib/A.pm\nend\n", 0),
    ],
)
def test_run_that_is_not_believed(output: str, events: str, exit_status: int) -> None:
    report = read(output, events, exit_status)
    assert report.red or report.signs.forged


def test_hanging_file_is_red() -> None:
    assert read("1..2\nok 1 - one\n", timed_out=True).errors["t/a.t"] == "timed out"


class TestProve(RealRuns):
    runner = RUNNER
    every_kind, outcomes, folder = project.EVERY_KIND, project.OUTCOMES, "t/"
    errors = (("dies.t", "no luck"), ("cart.t::fails", "got: '3'"))
    signs = ("t/old.t: it printed results that Test::Builder did not give",)
    forging, forged = project.forging_project(), [f"t/{name}.t" for name in project.FORGERIES]
