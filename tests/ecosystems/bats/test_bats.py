"""bats without a sandbox, and in real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.tap_files import BatsRunner
from m3agent.tools.test_report import TestReport
from tests.ecosystems.bats import project
from tests.ecosystems.records import WORK, job_of, report_from, tree_of
from tests.ecosystems.sandbox_run import RealRuns, run_files
from tests.ecosystems.table import needs

RUNNER = BatsRunner()
FILE = "@test \"one\" {\n  true\n}\n@test 'two' { # why\n  true\n}\n"
FILES = {
    "test/a.bats": FILE,
    "test/deep/b.bats": FILE,
    "test/bats-core/c.bats": FILE,
    "test/fixtures/d.bats": FILE,
}
SUITE = Suite("bats")


def test_tests_of_bats_itself_and_data_are_left_out() -> None:
    assert RUNNER.files(tree_of(FILES), "") == ["test/a.bats", "test/deep/b.bats"]


def test_preparation_names_the_libraries() -> None:
    tree = tree_of({"a.bats": "load /usr/lib/bats-assert/load\n" + FILE})
    assert RUNNER.prepare(SUITE, tree).system_packages == ("bats", "bats-assert")


def read(output: str, exit_status: int = 0, canary: str = "1..1\nnot ok 1 one\n", **more: Any) -> TestReport:
    done = {
        "a.bats": {"output": output, "exit": exit_status, **more},
        "canary\tcommands\ta.bats": {"output": canary, "exit": 1},
    }
    return report_from(RUNNER, job_of(RUNNER, {"a.bats": FILE}), done)


def test_green_run() -> None:
    report = read("1..2\nok 1 one\nok 2 two # skip no\n")
    assert report.passed == ("a.bats::one",)
    assert report.skipped == ("a.bats::two",)
    assert report.complete
    assert not report.signs.forged


@pytest.mark.parametrize(
    ("output", "exit_status"),
    [
        ("", 0),
        ("1..2\nok 1 one\n", 0),
        ("1..2\nok 1 one\nok 2 two\n", 1),
        ("1..2\nok 1 one\nnot ok 2 two\n", 0),
        ("1..2\nok 1 one\nok 2 two\nok 1 one\n", 0),
        ("1..1\nok 1 one\n", 0),
        ("1..3\nok 1 one\nok 2 two\nok 3 three\n", 0),
    ],
)
def test_run_that_is_not_believed(output: str, exit_status: int) -> None:
    report = read(output, exit_status)
    assert report.red or report.signs.forged


def test_canary_that_passes_is_a_sign() -> None:
    assert read("1..2\nok 1 one\nok 2 two\n", canary="1..1\nok 1 one\n").signs.forged == (
        "a.bats::one passed although its last line fails (commands)",
    )


def test_canaries_need_tests_that_end_with_a_line_of_their_own() -> None:
    for text, kinds in ((FILE, 2), (FILE + "set +e\n", 1), ('@test "one" {\n  true; }\n', 0)):
        (command,) = RUNNER.commands(job_of(RUNNER, {"a.bats": text}), ())
        assert command.files[f"{WORK}/run.json"].count(b"canary") == kinds


@needs("bats")
class TestBats(RealRuns):
    runner = RUNNER
    every_kind, outcomes, folder = project.EVERY_KIND, project.OUTCOMES, "test/"
    errors = (("cart.bats::hangs", "timed out"), ("cart.bats::fails: 'quoted' \"twice\"", "not what we want"))
    forging, forged = project.forging_project(), [f"test/{name}.bats" for name in project.FORGERIES]
    per_test = 2

    async def test_selected_file_only(self, one_backend: Backend, tmp_path: Path) -> None:
        report = await run_files(RUNNER, self.every_kind, tmp_path, one_backend, ["test/fine.bats::two"])
        assert report.ids == {"test/fine.bats::one", "test/fine.bats::two"}
