"""Which tests of several suites a selection has, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import EVERYTHING, Selection, part_of, run_tests
from m3agent.tools.runners import suites
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.python import PYTEST, Pytest
from m3agent.tools.runners.suites import tree_files
from m3agent.tools.test_report import EMPTY, TestReport, ids_by_outcome, joined
from tests.fakes.machine import memory_sandbox
from tests.tools.runners.test_runner_suites import Lua

API, WEB, ROOT = Suite("lua", "api"), Suite("lua", "web"), Suite(PYTEST)
ALL = [ROOT, API, WEB]


@pytest.fixture(autouse=True)
def two_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "RUNNERS", {PYTEST: Pytest(), "lua": Lua()})
    monkeypatch.setattr("m3agent.tools.run_tests.RUNNERS", suites.RUNNERS)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (EVERYTHING, [["."], ["."], ["."]]),
        (Selection(["./web/a_spec.lua"]), [None, None, ["./web/a_spec.lua"]]),
        (Selection(["lua:web::web/a_spec.lua::adds"]), [None, None, ["web/a_spec.lua::adds"]]),
        (Selection(["tests/test_a.py"]), [["tests/test_a.py"], None, None]),
        (Selection(["./api"]), [["./api"], ["./api"], None]),
        (Selection(["lua:api"]), [None, ["."], None]),
    ],
)
def test_targets(selection: Selection, expected: list[list[str] | None]) -> None:
    parts = [part_of(selection, suite, ALL) for suite in ALL]
    assert [None if part is None else part.targets for part in parts] == expected


def test_ids_that_are_selected_or_left_out() -> None:
    selection = Selection(
        only=["lua:web::web/a_spec.lua::adds", "pytest:.::tests/test_a.py::test_b"],
        skip=["lua:web::web/b_spec.lua"],
        ignore=["api/c_spec.lua"],
        seconds=5.0,
    )
    root, api, web = (part_of(selection, suite, ALL) for suite in ALL)
    assert api is None
    assert root is not None
    assert (root.only, root.skip, root.ignore) == (["tests/test_a.py::test_b"], [], [])
    assert web is not None
    assert (web.only, web.skip, web.seconds) == (["web/a_spec.lua::adds"], ["web/b_spec.lua"], 5.0)


def test_one_suite_gets_every_target() -> None:
    part = part_of(Selection(["./README.rst"]), ROOT, [ROOT])
    assert part is not None
    assert part.targets == ["./README.rst"]


def test_results_of_a_selection() -> None:
    chosen = Selection(only=["a.js::group", "b.js"], skip=["a.js::group > slow"], ignore=["c.js"])
    assert [
        chosen.has(ident) for ident in ("a.js::group", "a.js::group[1]", "b.js::x", "a.js::other", "c.js::x")
    ] == [True, True, True, False, False]
    assert EVERYTHING.has("c.js::x")
    assert not Selection(skip=["a.js::group"]).has("a.js::group")


async def test_a_suite_that_cannot_run_does_not_make_the_others_incomplete(
    monkeypatch: pytest.MonkeyPatch, workspace_of: Callable[[dict[str, str | bytes]], Workspace]
) -> None:
    """Without its toolchain, tests in Lua must not keep a fix of the Python service from being verified."""
    missing = replace(EMPTY, complete=False, output="lua is not installed\nmore")
    results = {"web": missing, "api": replace(EMPTY, passed=("api/a_spec.lua::x",), complete=False)}

    async def run_suite(_: object, __: object, suite: Suite, *___: object, **____: object) -> TestReport:
        return results[suite.root]

    monkeypatch.setattr("m3agent.tools.run_tests.run_suite", run_suite)
    workspace = workspace_of({"a_spec.lua": ""})
    tree = tree_files(workspace.store, workspace.base)
    sandbox = memory_sandbox(workspace)
    report = await run_tests(sandbox, [WEB], tree, timeout=9)
    assert (report.complete, report.not_run) == (True, {"lua:web": "lua is not installed"})
    report = await run_tests(sandbox, [API, WEB], tree, timeout=9)
    assert (report.complete, set(report.not_run)) == (False, {"lua:web"})
    assert report.passed == ("lua:api::api/a_spec.lua::x",)


def test_reports_of_suites_are_one_report() -> None:
    one = replace(EMPTY, passed=("a",), output="first", seconds=1.0)
    other = replace(
        EMPTY, failed=("b",), errors={"b": "wrong"}, exit=1, output="second", seconds=2.0, complete=False
    )
    both = joined(one, other)
    assert (both.passed, both.failed, both.errors) == (("a",), ("b",), {"b": "wrong"})
    assert (both.exit, both.output, both.seconds, both.complete) == (1, "first\nsecond", 3.0, False)


def test_what_is_no_outcome_has_no_place_in_a_report() -> None:
    """Code that found the key of a report can write any word."""
    found = ids_by_outcome({"b": "passed", "a": "passed", "c": "xfailed", "d": "error", "e": "splendid"})
    assert found == {"passed": ("a", "b"), "failed": (), "errored": ("d",), "skipped": ("c",)}
