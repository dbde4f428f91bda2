"""Meson with the real toolchain in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.meson import MesonRunner
from tests.ecosystems.ctest.project import GTEST_FORGERIES, PLAIN_FORGERIES
from tests.ecosystems.meson.project import EVERY_KIND, OUTCOMES, forging_project
from tests.ecosystems.sandbox_run import run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(300)]


async def test_every_kind_of_test(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        MesonRunner(), EVERY_KIND, tmp_path, backend, limits=Limits(total=240, per_test=1)
    )
    found = {name: {ident.removeprefix("tests/") for ident in ids} for name, ids in report.sets.items()}
    assert found == OUTCOMES
    assert report.complete
    assert report.signs.forged == ("tests/stops_test.c::stops: exit() ended the program (in src/cart.c)",)


async def test_forgeries_are_found(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(MesonRunner(), forging_project(), tmp_path, backend)
    signs = "\n".join(report.signs.forged)
    for name, file in [(n, f"tests/{n}_test.c") for n in PLAIN_FORGERIES] + [
        (n, f"tests/{n}_test.cpp") for n in GTEST_FORGERIES
    ]:
        red = {ident for ident in report.red if ident.startswith(f"{file}::")}
        assert red or f"{file}::{name}: " in signs, name
