"""Suites of a tree, the names of their tests, and which files belong to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.sandbox.store.git import TreeEntry, TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.execution_map import ExecutionMap
from m3agent.tools.runners import suites
from m3agent.tools.runners.base import Runner, Suite, Tree
from m3agent.tools.runners.command import CommandRunner
from m3agent.tools.runners.python import PYTEST, Pytest
from m3agent.tools.runners.suites import (
    DEFAULT,
    TestFiles,
    described,
    file_of,
    files_of_tests,
    find_suites,
    of_suites,
    prefix_of,
    running,
    suite_of,
    suites_of,
    with_prefix,
    without_suite,
)
from m3agent.tools.test_report import EMPTY


class Lua(Runner):
    """Tests of an invented runner: `lua.json` names the root of a suite."""

    name = "lua"
    language = "Lua"

    def detect(self, tree: Tree) -> list[Suite]:
        found = tree.named("lua.json")
        return [Suite("lua", path.rpartition("/")[0], path) for path in found]

    def is_test(self, path: str) -> bool:
        return path.endswith("_spec.lua")

    def surroundings(self, path: str, base: object = ()) -> bool:
        return path.endswith("lua.json")

    def restored(self, path: str, base: bytes | None, patched: bytes | None) -> bytes | None:
        if base is None or patched is None:
            return base
        return json.dumps({**json.loads(patched), "tests": json.loads(base).get("tests")}).encode()

    def commands(self, *_: object) -> list[object]:  # type: ignore[override]
        raise NotImplementedError

    def read(self, *_: object) -> object:  # type: ignore[override]
        raise NotImplementedError


@pytest.fixture(autouse=True)
def two_runners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(suites, "RUNNERS", {PYTEST: Pytest(), "lua": Lua(), "command": CommandRunner()})
    suites.suites_of.cache_clear()
    yield
    suites.suites_of.cache_clear()


def tree(*paths: str, **texts: str) -> Tree:
    contents = {**dict.fromkeys(paths, ""), **texts}
    return Tree(contents.keys(), lambda path: contents[path].encode())


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.py", "tests/test_a.py"], ["pytest:."]),
        (["a.py", "a_test.py"], ["pytest:."]),
        (["a.py", "setup.py"], ["pytest:."]),
        (["a.py", "lua.json"], ["lua:."]),
        (["docs/conf.py", "tests/summary.py", "lua.json", "x/lua.json"], ["lua:.", "lua:x"]),
        (
            ["web/app/lua.json", "lua.json", "tests/test_a.py", "api/lua.json"],
            ["pytest:.", "lua:.", "lua:api", "lua:web/app"],
        ),
        (["node_modules/x/lua.json", "tests/fixtures/lua.json", "vendor/lua.json"], []),
        (["README.md"], []),
    ],
)
def test_suites_of_a_tree(paths: list[str], expected: list[str]) -> None:
    assert [suite.name for suite in find_suites(tree(*paths))] == expected


def test_a_repository_without_tests_has_pytest(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace],
) -> None:
    workspace = workspace_of({"README.md": "x"})
    assert suites_of(workspace.store, workspace.base) == DEFAULT


COMMAND = 'command = "./t"\nreport = "tap"\n'


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (COMMAND, ["command:."]),
        ('leave_out = ["lua"]', ["pytest:."]),
        ('leave_out = ["lua:x"]', ["pytest:.", "lua:web"]),
        ('leave_out = ["lua", 3]', ["pytest:."]),
        ('leave_out = "lua"', ["pytest:.", "lua:web", "lua:x"]),
        (f'{COMMAND}leave_out = ["lua"]', ["command:."]),
        (f'{COMMAND}leave_out = ["command"]', ["pytest:.", "lua:web", "lua:x"]),
    ],
)
def test_what_the_configuration_runs(table: str, expected: list[str]) -> None:
    """The repository's command runs instead of what is detected: else all tests would run twice."""
    paths = ["tests/test_a.py", "web/lua.json", "x/lua.json"]
    for file, head in ((".m3agent.toml", "tests"), ("pyproject.toml", "tool.m3agent.tests")):
        files = tree(*paths, **{file: f"[{head}]\n{table}"})
        assert [suite.name for suite in running(files)] == expected
        assert len(find_suites(files)) == 3 + ("command" in table.partition("=")[0])


def test_files_of_replaced_tests_still_count_as_tests(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace],
) -> None:
    workspace = workspace_of({"a_spec.lua": "", "lua.json": "{}", ".m3agent.toml": f"[tests]\n{COMMAND}"})
    assert [suite.name for suite in suites_of(workspace.store, workspace.base)] == ["command:."]
    files = files_of_tests(workspace.store, workspace.base)
    assert files.is_test("a_spec.lua")
    assert files.is_surrounding("lua.json", ())


def test_pyproject_files_of_other_tools_are_no_python_project() -> None:
    for text, count in (("[tool.typos]\n", 0), ("[project]\nname = 'a'\n", 1), ("not toml [", 0)):
        assert len(Pytest().detect(tree("script.py", **{"pyproject.toml": text}))) == count


def test_a_single_suite_at_the_root_has_plain_ids() -> None:
    root, other = Suite("lua"), Suite("lua", "web")
    assert prefix_of(root, [root]) == ""
    assert prefix_of(other, [other]) == "lua:web::"
    assert prefix_of(root, [root, other]) == "lua:.::"


@pytest.mark.parametrize(
    ("ident", "suite", "rest", "file"),
    [
        ("tests/test_a.py::test_b[x::y]", "", "tests/test_a.py::test_b[x::y]", "tests/test_a.py"),
        ("lua:web::web/a_spec.lua::adds > up", "lua:web", "web/a_spec.lua::adds > up", "web/a_spec.lua"),
        ("lua:.::a_spec.lua", "lua:.", "a_spec.lua", "a_spec.lua"),
        ("lua:.", "lua:.", ".", "."),
        ("go:x::y.go::T", "", "go:x::y.go::T", "go:x"),
    ],
)
def test_parts_of_an_id(ident: str, suite: str, rest: str, file: str) -> None:
    assert (suite_of(ident), without_suite(ident), file_of(ident)) == (suite, rest, file)


def test_ids_get_the_name_of_their_suite() -> None:
    report = replace(
        EMPTY,
        passed=("a.lua::x",),
        failed=("a.lua::y",),
        errored=(".",),
        errors={"a.lua::y": "wrong", ".": "not built"},
        executed=ExecutionMap((("a.lua", 1, "f"),), {"a.lua::x": "numbers"}, ("a.lua::y",)),
    )
    named = with_prefix(report, "lua:web::")
    assert named.ids == {"lua:web::a.lua::x", "lua:web::a.lua::y", "lua:web"}
    assert named.errors == {"lua:web::a.lua::y": "wrong", "lua:web": "not built"}
    assert named.executed == ExecutionMap(
        (("a.lua", 1, "f"),), {"lua:web::a.lua::x": "numbers"}, ("lua:web::a.lua::y",)
    )
    assert with_prefix(report, "") is report


def test_suites_in_words() -> None:
    assert described([Suite(PYTEST, evidence="tests/test_a.py"), Suite("lua", "web", "web/lua.json")]) == (
        "pytest (found by tests/test_a.py), lua in web (found by web/lua.json)"
    )


def test_files_belong_to_the_suites_that_exist(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace],
) -> None:
    """A Go package called `testing` is no test, although Python's rules would say so."""
    only_lua = workspace_of({"lua.json": "{}", "testing/clock.lua": ""})
    files = files_of_tests(only_lua.store, only_lua.base)
    assert not files.is_test("testing/clock.lua")
    assert files.is_test("a_spec.lua")
    assert files.is_surrounding("lua.json", ())
    assert not files.is_surrounding("pytest.ini", ())


def test_restored_files_keep_what_a_fix_may_change() -> None:
    files = TestFiles([Suite("lua")])
    old, new = b'{"tests": "all", "version": 1}', b'{"tests": "none", "version": 2}'
    assert json.loads(files.restored("lua.json", (), old, new) or b"") == {"tests": "all", "version": 2}
    assert files.restored("lua.json", (), None, new) is None


def test_files_that_can_hold_tests() -> None:
    files = TestFiles([Suite(PYTEST)])
    assert [
        files.has_tests(path)
        for path in ("tests/test_a.py", "tests/data.py", "tests/a.json", "tests/a.js", "a.js")
    ] == [True, False, False, True, False]


def test_what_runs_show_holds_for_all_trees_of_a_store(tmp_path: Path) -> None:
    stores = [TreeStore(tmp_path / name) for name in ("one.git", "other.git")]
    trees = [
        stores[0].write_tree([TreeEntry("checks/sums.py", 0o100644, stores[0].put_blob(text))])
        for text in (b"a = 1", b"a = 2")
    ]
    assert files_of_tests(stores[0], trees[0]).learn(["checks/sums.py::check_add"]) == {"checks/sums.py"}
    for number in range(70):  # however many other trees matter meanwhile
        files_of_tests(
            stores[1], stores[1].write_tree([TreeEntry(f"{number}.txt", 0o100644, stores[1].put_blob(b""))])
        )
    assert all(files_of_tests(stores[0], each).is_test("checks/sums.py") for each in trees)
    assert not files_of_tests(stores[1], stores[1].write_tree([])).is_test("checks/sums.py")


def test_the_version_has_all_runners() -> None:
    assert "class Pytest" in suites.version()


def test_the_part_of_a_report_that_is_about_some_suites() -> None:
    report = replace(
        EMPTY,
        passed=("lua:web::a::x", "lua:api::a::x"),
        failed=("lua:web::a::y",),
        errored=("lua:api",),
        skipped=("lua:api::b::z",),
        errors={"lua:web::a::y": "E", "lua:api": "F"},
        registrations={"lua:web::a": "{}", "lua:api::a": "{}"},
        not_run={"lua:web": "lua is missing", "lua:api": "lua is missing"},
        seconds=2.0,
    )
    api = of_suites(report, {"lua:api"})
    assert (api.passed, api.failed, api.errored, api.skipped) == (
        ("lua:api::a::x",),
        (),
        ("lua:api",),
        ("lua:api::b::z",),
    )
    assert (api.errors, api.registrations) == ({"lua:api": "F"}, {"lua:api::a": "{}"})
    assert (api.not_run, api.seconds) == ({"lua:api": "lua is missing"}, 2.0)
    assert of_suites(report, {"lua:web", "lua:api"}) == report
