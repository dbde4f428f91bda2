"""The runners of Ruby without a sandbox: detection, selection, surroundings, reading."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from m3agent.tools.runners.base import Limits, Output, Reading, Suite
from m3agent.tools.runners.canaries import MISSING, PASSED
from m3agent.tools.runners.ruby import Minitest, Rspec
from tests.ecosystems.table import tree_of

TEST = "require 'minitest/autorun'\n"
SPEC = "RSpec.describe('x') {}\n"
KEY = b"k" * 32


def roots(runner: Minitest | Rspec, files: dict[str, str]) -> list[str]:
    return [suite.root for suite in runner.detect(tree_of(files))]


def records(*given: list[object]) -> bytes:
    lines = []
    for number, record in enumerate(given, 1):
        body = f"{number}\t{json.dumps(record)}"
        lines.append(f"{body}\t{hmac.new(KEY, body.encode(), hashlib.sha256).hexdigest()}\n")
    return "".join(lines).encode()


def read(report: bytes, **fields: object) -> Reading:
    suite = Suite("minitest", "service")
    (command,) = Minitest().commands(
        suite, tree_of({}), ["service/test/a_test.rb"], [], Limits(), "/tmp/work"
    )
    return Minitest().read(suite, tree_of({}), [], [Output(command, 0, report, key=KEY, **fields)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "minitest", "rspec"),
    [
        ({"test/test_a.rb": TEST}, [""], []),
        ({"test/a_test.rb": "require 'test_helper'\n", "test/test_helper.rb": TEST}, [""], []),
        ({"test/a_test.rb": "class A < ActiveSupport::TestCase\nend\n"}, [""], []),
        ({"test/a_test.rb": "require 'test/unit'\n"}, [], []),
        ({"spec/a_spec.rb": SPEC}, [], [""]),
        ({"spec/a_spec.rb": "describe('x') {}\n", ".rspec": ""}, [], [""]),
        ({"spec/a_spec.rb": TEST}, [""], []),
        ({"spec/a_spec.rb": SPEC, "test/a_test.rb": TEST}, [""], [""]),
        ({"spec/a_spec.rb": SPEC, "Gemfile": "gem 'minitest'\n"}, [], [""]),
        (
            {"one/Gemfile": "", "one/test/a_test.rb": TEST, "two/x.gemspec": "", "two/spec/a_spec.rb": SPEC},
            ["one"],
            ["two"],
        ),
        ({"test/fixtures/app/test/a_test.rb": TEST, "vendor/gem/test/a_test.rb": TEST}, [], []),
        ({"lib/a_test.rb": TEST, "a_spec.rb": SPEC}, [], []),
    ],
)
def test_detection(files: dict[str, str], minitest: list[str], rspec: list[str]) -> None:
    assert roots(Minitest(), files) == minitest
    assert roots(Rspec(), files) == rspec


@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        (["test/a_test.rb::ATest > test_x"], ("test/a_test.rb",)),
        (["test/a_test.rb", "test/sub"], ("test/a_test.rb", "test/sub/b_test.rb")),
        (["test"], ()),
        (["."], ()),
        ([], ()),
        (["test/shared.rb::ATest > test_shared"], ()),
        (["test/a_test.rb", "test/missing_test.rb"], ()),
    ],
)
def test_selection(wanted: list[str], targets: tuple[str, ...]) -> None:
    tree = tree_of({f"test/{name}_test.rb": TEST for name in ("a", "sub/b", "c")} | {"test/shared.rb": ""})
    assert Minitest().select(Suite("minitest"), tree, wanted) == targets


@pytest.mark.parametrize(
    "path",
    ["test/a.rb", "spec/spec_helper.rb", "gem/test/fixtures/a.txt", "a_test.rb", "test_a.rb", "a_spec.rb"],
)
def test_files_of_tests(path: str) -> None:
    assert Minitest().is_test(path)
    assert Rspec().is_test(path)


@pytest.mark.parametrize(
    "path", ["lib/rack/test/cookies.rb", "lib/a.rb", "app/models/test/a.rb", "latest.rb", "lib/my_spec.rb"]
)
def test_files_of_the_product(path: str) -> None:
    assert not Minitest().is_test(path)


@pytest.mark.parametrize(
    "path",
    [".rspec", "one/.rspec-local", "Gemfile", "Gemfile.lock", "a.gemspec", "Rakefile", ".ruby-version", ".bundle/config",
     "lib/minitest/forge_plugin.rb", "vendor/bundle/ruby/3.1.0/gems/minitest/lib/minitest.rb", ".env.test"],
)  # fmt: skip
def test_surroundings(path: str) -> None:
    assert Minitest().surroundings(path, ())


@pytest.mark.parametrize("path", ["lib/cart.rb", "lib/minitest/forge.rb", "README.md"])
def test_no_surroundings(path: str) -> None:
    assert not Minitest().surroundings(path, ())


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
    suite = Suite("minitest", "s")
    (command,) = Minitest().commands(suite, tree, ["s/test/b_test.rb"], [], Limits(per_test=3), "/tmp/work")
    assert command.cwd == "s"
    assert all(path.startswith("/tmp/work/") for path in command.files)
    assert command.files["/tmp/work/minitest.known"] == b"test/a_test.rb\ntest/b_test.rb"
    assert command.files["/tmp/work/minitest.files"] == b"test/b_test.rb"
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
        records(*GREEN, ["result", "test/b_test.rb", [], "error", "no"], ["canaries", 1, 1, 0], ["end"])
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
    assert read(records(*GREEN, *last)).tampering == signs


def test_a_report_without_the_key_is_no_report() -> None:
    forged = records(*GREEN, ["canaries", 1, 1, 0], ["end"]).replace(b"passed", b"PASSED")
    assert not read(forged).ended


def test_no_report_is_explained() -> None:
    reading = read(b"", stderr=b"cannot load such file -- minitest (LoadError)\n")
    assert reading.problem == "the test runner wrote no report: cannot load such file -- minitest (LoadError)"
    assert not reading.ended
