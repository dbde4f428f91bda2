"""The runners of Ruby without a sandbox: preparation, command, reading."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Job, Limits, Output, Reading, Suite
from m3agent.tools.runners.records import MISSING, PASSED
from m3agent.tools.runners.ruby import Minitest, Rspec
from tests.ecosystems.records import KEY, WORK, signed, tree_of

TEST = "require 'minitest/autorun'\n"
SPEC = "RSpec.describe('x') {}\n"


def read(report: bytes, **fields: object) -> Reading:
    job = Job(Suite("minitest", "service"), tree_of({}), ["service/test/a_test.rb"], work=WORK)
    (command,) = Minitest().commands(job, [])
    return Minitest().read(job, [], [Output(command, 0, report, key=KEY, **fields)])  # type: ignore[arg-type]


def test_preparation_with_bundler() -> None:
    files = {
        "s/Gemfile": "",
        "s/s.gemspec": "",
        "s/lib/s/version.rb": "",
        "Gemfile": "",
        "s/test/a_test.rb": TEST,
    }
    plan = Minitest().prepare(Suite("minitest", "s"), tree_of(files))
    assert plan.inputs == ("s/Gemfile", "s/lib/s/version.rb", "s/s.gemspec")
    assert plan.keep == ("vendor/bundle", "vendor/cache")
    assert "no lock file" in plan.notices[0]
    assert Rspec().prepare(Suite("rspec"), tree_of({"spec/a_spec.rb": SPEC})).system_packages == (
        "ruby",
        "ruby-rspec",
    )


def test_the_reporter_comes_from_outside_the_tree() -> None:
    tree = tree_of({"s/Gemfile": "", "s/test/a_test.rb": TEST, "s/test/b_test.rb": TEST})
    job = Job(Suite("minitest", "s"), tree, ["s/test/b_test.rb"], Limits(per_test=3), WORK)
    (command,) = Minitest().commands(job, [])
    assert command.cwd == "s"
    assert all(path.startswith(f"{WORK}/") for path in command.files)
    assert command.files[f"{WORK}/minitest.known"] == b"test/a_test.rb\ntest/b_test.rb"
    assert command.files[f"{WORK}/minitest.files"] == b"test/b_test.rb"
    assert command.argv[-1] == "3"
    assert command.env["BUNDLE_GEMFILE"] == "/ws/s/Gemfile"


FILE = "test/a_test.rb"
GREEN: list[list[object]] = [
    ["plan", FILE],
    ["start", FILE, ["A", "x"]],
    ["result", FILE, ["A", "x"], "passed", ""],
    ["unit", FILE],
]


def test_reading() -> None:
    reading = read(
        signed(*GREEN, ["result", "test/b_test.rb", [], "error", "no"], ["canaries", 1, 1, 0], ["end"])
    )
    assert [(result.ident, result.outcome) for result in reading.results] == [
        ("service/test/a_test.rb::A > x", "passed"),
        ("service/test/b_test.rb", "error"),
    ]
    assert reading.ended
    assert reading.planned == reading.reported == {"service/test/a_test.rb"}
    assert reading.tampering == []
    assert reading.problem == ""


@pytest.mark.parametrize(
    ("last", "signs"),
    [
        ([["canaries", 3, 3, 1], ["end"]], [PASSED]),
        ([["canaries", 3, 0, 0], ["end"]], [MISSING]),
        ([["end"]], [MISSING]),
        (
            [["tampering", "Minitest::Test#run was replaced"], ["canaries", 1, 1, 0], ["end"]],
            ["Minitest::Test#run was replaced"],
        ),
        ([], []),
    ],
)
def test_canaries(last: list[list[object]], signs: list[str]) -> None:
    assert read(signed(*GREEN, *last)).tampering == signs


def test_a_report_without_the_key_is_no_report() -> None:
    forged = signed(*GREEN, ["canaries", 1, 1, 0], ["end"]).replace(b"passed", b"PASSED")
    assert not read(forged).ended


def test_no_report_is_explained() -> None:
    reading = read(b"", stderr=b"cannot load such file -- minitest (LoadError)\n")
    assert reading.problem == "the test runner wrote no report: cannot load such file -- minitest (LoadError)"
    assert not reading.ended
