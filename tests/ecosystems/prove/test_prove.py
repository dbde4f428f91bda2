"""Perl's tests without a sandbox."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.prove import ProveRunner
from m3agent.tools.runners.run import report_of
from m3agent.tools.test_report import TestReport
from tests.ecosystems.records import output_of
from tests.ecosystems.sandbox_run import tree_of

RUNNER = ProveRunner()
TEST = "use strict;\nuse Test::More tests => 2;\n"


def test_detection() -> None:
    files = {"t/a.t": TEST, "lib/A.pm": "", "dist/B/t/b.t": TEST, "t/deep/t/c.t": TEST}
    assert [(suite.root, suite.evidence) for suite in RUNNER.detect(tree_of(files))] == [
        ("", "t/a.t is a Perl test")
    ]
    several = {"one/t/a.t": TEST, "two/t/b.t": "#!/usr/bin/perl -w\n"}
    assert [suite.root for suite in RUNNER.detect(tree_of(several))] == ["one", "two"]
    assert RUNNER.detect(tree_of({"t/a.t": "#!/bin/sh\necho 1..0\n", "a.t": TEST})) == []


def test_command_takes_over_taint_mode() -> None:
    tree = tree_of({"one/t/a.t": "#!/usr/bin/perl -wT\n" + TEST})
    (suite,) = RUNNER.detect(tree)
    (command,) = RUNNER.commands(suite, tree, (), (), Limits(), "/w")
    assert b'"argv": ["perl", "-T", "-Ilib", "t/a.t"], "cwd": "/ws/one"' in command.files["/w/run.json"]


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
    tree = tree_of({"t/a.t": TEST})
    (suite,) = RUNNER.detect(tree)
    (command,) = RUNNER.commands(suite, tree, (), (), Limits(), "/w")
    step = {"output": output, "report": events, "exit": exit_status, "timed_out": timed_out}
    outputs = [output_of(command, {"t/a.t": step})]
    return report_of(RUNNER.read(suite, tree, (), outputs), (), outputs)


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
