"""The runner of ExUnit without a sandbox."""

from __future__ import annotations

from m3agent.tools.runners.base import Output
from m3agent.tools.runners.elixir import Exunit
from tests.ecosystems.records import WORK, job_of

JOB = job_of(Exunit(), {"p/mix.exs": "", "p/test/a_test.exs": ""}, per_test=2)


def test_the_formatter_and_a_canary_come_from_outside_the_tree() -> None:
    (command,) = Exunit().commands(JOB, [])
    assert all(path.startswith(f"{WORK}/") for path in command.files)
    assert command.argv[-2] == "test/a_test.exs"
    assert command.argv[-1] in command.files
    assert command.argv[command.argv.index("--timeout") + 1] == "2000"
    assert command.env["MIX_BUILD_PATH"] == f"{WORK}/build"


def test_without_records_all_files_are_planned() -> None:
    (command,) = Exunit().commands(JOB, [])
    output = Output(command, 1, b"", stderr=b"** (SyntaxError) lib/a.ex:1\n")
    reading = Exunit().read(JOB, [], [output])
    assert reading.planned == {"p/test/a_test.exs"}
    assert reading.problem == "the test runner wrote no report: ** (SyntaxError) lib/a.ex:1"
