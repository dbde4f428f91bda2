"""ctest with the real toolchain in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.ctest import CtestRunner
from m3agent.tools.test_report import TestReport
from tests.ecosystems.ctest.project import (
    CATCH,
    CATCH_OUTCOMES,
    EVERY_KIND,
    GTEST_FORGERIES,
    OUTCOMES,
    PLAIN_FORGERIES,
    forging_project,
)
from tests.ecosystems.sandbox_run import outcomes, run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(300)]


def sets(report: TestReport) -> dict[str, set[str]]:
    return {name: {ident.removeprefix("tests/") for ident in ids} for name, ids in report.sets.items()}


async def test_every_kind_of_test(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        CtestRunner(), EVERY_KIND, tmp_path, backend, limits=Limits(total=240, per_test=1)
    )
    assert sets(report) == OUTCOMES
    assert report.complete
    assert report.signs.forged == ("tests/stops_test.c::stops: exit() ended the program (in src/cart.c)",)
    for ident, text in (
        ("fails_test.c::fails", "1 + 2 is not 4\nended with status 1"),
        ("crashes_test.c::crashes", "ended by SIGABRT"),
        ("hangs_test.c::hangs", "timed out"),
        ("unit_test.cpp::Cart.Fails", "no luck"),
        ("broken_test.c::broken", "no_such_name"),
        ("lost_test.cpp::lost_tests_NOT_BUILT", "no_such_name"),
        ("dies_test.cpp::Dies.Second", "ended by SIGABRT"),
    ):
        assert text in report.errors[f"tests/{ident}"]


async def test_catch2(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(CtestRunner(), CATCH, tmp_path, backend)
    assert sets(report) == CATCH_OUTCOMES
    assert "cases_test.cpp:5: Expression: 1 == 2" in report.errors["tests/cases_test.cpp::fails"]


async def test_forgeries_are_found(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(CtestRunner(), forging_project(), tmp_path, backend)
    found = outcomes(report)
    signs = "\n".join(report.signs.forged)
    for name in PLAIN_FORGERIES:
        ident = f"tests/{name}_test.c::{name}"
        assert found[ident] in ("failed", "errored") or f"{ident}: " in signs, name
    for name in GTEST_FORGERIES:
        red = {ident for ident in report.red if ident.startswith(f"tests/{name}_test.cpp::")}
        assert red or f"tests/{name}_test.cpp::{name}: " in signs, name
