"""bats in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.bats import BatsRunner
from tests.ecosystems.bats.project import EVERY_KIND, FORGERIES, forging_project
from tests.ecosystems.sandbox_run import run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(300)]


async def test_every_kind_of_test(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        BatsRunner(), EVERY_KIND, tmp_path, backend, limits=Limits(total=240, per_test=1)
    )
    assert {name: set(ids) for name, ids in report.sets.items()} == {
        "passed": {
            "test/cart.bats::adds",
            "test/cart.bats::comes last",
            "test/cart.bats::prints # a hash",
            "test/fine.bats::one",
            "test/fine.bats::two",
        },
        "failed": {
            "test/broken.bats::setup_file failed",
            "test/cart.bats::exits early",
            "test/cart.bats::fails: 'quoted' \"twice\"",
            "test/cart.bats::hangs",
            "test/cart.bats::kills its own shell",
            "test/setup.bats::setup_file failed",
        },
        "errored": {"test/cart.bats", "test/twice.bats"},
        "skipped": {"test/cart.bats::is skipped"},
    }
    assert report.errors["test/cart.bats::hangs"] == "timed out"
    assert "not what we want" in report.errors["test/cart.bats::fails: 'quoted' \"twice\""]
    assert report.complete
    assert report.signs.forged == ()


async def test_forgeries_are_found(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        BatsRunner(), forging_project(), tmp_path, backend, limits=Limits(total=240, per_test=2)
    )
    signs = "\n".join(report.signs.forged)
    for name in FORGERIES:
        red = {ident for ident in report.red if ident.startswith(f"test/{name}.bats")}
        assert red or f"test/{name}.bats:" in signs, name


async def test_selected_file_only(one_backend: Backend, tmp_path: Path) -> None:
    report = await run_files(BatsRunner(), EVERY_KIND, tmp_path, one_backend, ["test/fine.bats::two"])
    assert report.ids == {"test/fine.bats::one", "test/fine.bats::two"}
