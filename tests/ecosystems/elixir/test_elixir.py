"""The runner of ExUnit without a sandbox: detection, selection, surroundings, reading."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Limits, Output, Suite
from m3agent.tools.runners.elixir import Exunit
from tests.ecosystems.table import tree_of


def roots(*paths: str) -> list[str]:
    return [suite.root for suite in Exunit().detect(tree_of(dict.fromkeys(paths, "")))]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("mix.exs", "test/a_test.exs"), [""]),
        (("mix.exs", "test/test_helper.exs"), []),
        (("mix.exs", "apps/a/mix.exs", "apps/a/test/a_test.exs", "apps/b/mix.exs"), ["apps/a"]),
        (("deps/x/mix.exs", "test/fixtures/x/mix.exs", "test/fixtures/x/test/a_test.exs"), []),
    ],
)
def test_detection(paths: tuple[str, ...], expected: list[str]) -> None:
    assert roots(*paths) == expected


def test_selection() -> None:
    tree = tree_of(dict.fromkeys(("p/mix.exs", "p/test/a_test.exs", "p/test/deep/b_test.exs"), ""))
    suite = Suite("exunit", "p")
    assert Exunit().select(suite, tree, ["p/test/a_test.exs::ATest > test x"]) == ("p/test/a_test.exs",)
    assert Exunit().select(suite, tree, ["p/test/deep"]) == ("p/test/deep/b_test.exs",)
    assert Exunit().select(suite, tree, ["p/lib/a.ex"]) == ()
    assert Exunit().select(suite, tree, ["p"]) == ()


def test_the_formatter_and_a_canary_come_from_outside_the_tree() -> None:
    tree = tree_of({"p/mix.exs": "", "p/test/a_test.exs": ""})
    (command,) = Exunit().commands(Suite("exunit", "p"), tree, (), [], Limits(per_test=2), "/tmp/work")
    assert all(path.startswith("/tmp/work/") for path in command.files)
    assert command.argv[-2] == "test/a_test.exs"
    assert command.argv[-1] in command.files
    assert command.argv[command.argv.index("--timeout") + 1] == "2000"
    assert command.env["MIX_BUILD_PATH"] == "/tmp/work/build"


def test_without_records_all_files_are_planned() -> None:
    tree = tree_of({"p/mix.exs": "", "p/test/a_test.exs": ""})
    suite = Suite("exunit", "p")
    (command,) = Exunit().commands(suite, tree, (), [], Limits(), "/tmp/work")
    reading = Exunit().read(
        suite, tree, [], [Output(command, 1, b"", stderr=b"** (SyntaxError) lib/a.ex:1\n")]
    )
    assert reading.planned == {"p/test/a_test.exs"}
    assert reading.problem == "the test runner wrote no report: ** (SyntaxError) lib/a.ex:1"


@pytest.mark.parametrize(
    "path", ["mix.exs", "apps/a/mix.lock", "config/test.exs", "deps/x/lib/x.ex", ".formatter.exs"]
)
def test_surroundings(path: str) -> None:
    assert Exunit().surroundings(path, ())
    assert not Exunit().surroundings("lib/a.ex", ())


def test_files_of_tests() -> None:
    assert Exunit().is_test("test/support/case.ex")
    assert Exunit().is_test("lib/a_test.exs")
    assert not Exunit().is_test("lib/testing.ex")
