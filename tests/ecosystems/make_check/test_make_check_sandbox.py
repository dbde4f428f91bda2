"""automake with the real toolchain in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.automake import AutomakeRunner
from m3agent.tools.runners.base import Limits
from tests.ecosystems.ctest.project import PLAIN_FORGERIES
from tests.ecosystems.make_check.project import EVERY_KIND, OUTCOMES, forging_project
from tests.ecosystems.sandbox_run import run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(300)]


async def test_every_kind_of_test(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        AutomakeRunner(), EVERY_KIND, tmp_path, backend, limits=Limits(total=240, per_test=1)
    )
    found = {name: {ident.removeprefix("tests/") for ident in ids} for name, ids in report.sets.items()}
    assert found == OUTCOMES
    assert report.complete
    assert report.signs.forged == ("tests/stops.c::stops: exit() ended the program (in cart.c)",)
    assert "no luck" in report.errors["tests/fails.c::fails"]
    assert "no_such_name" in report.errors["tests/broken.c::broken"]


async def test_forgeries_are_found(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(AutomakeRunner(), forging_project(), tmp_path, backend)
    signs = "\n".join(report.signs.forged)
    for name in PLAIN_FORGERIES:
        ident = f"tests/{name}_test.c::{name}"
        assert ident in report.red or f"{ident}: " in signs, name
