"""Perl's tests in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.runners.base import Limits
from m3agent.tools.runners.prove import ProveRunner
from tests.ecosystems.prove.project import EVERY_KIND, FORGERIES, forging_project
from tests.ecosystems.sandbox_run import run_files

pytestmark = [pytest.mark.languages, pytest.mark.timeout(300)]


async def test_every_kind_of_test(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(
        ProveRunner(), EVERY_KIND, tmp_path, backend, limits=Limits(total=240, per_test=1)
    )
    assert {name: set(ids) for name, ids in report.sets.items()} == {
        "passed": {
            "t/cart.t::adds",
            "t/cart.t::adds #2",
            "t/cart.t::test 4",
            "t/dies.t::before",
            "t/fine.t::one",
            "t/fine.t::two",
            "t/hangs.t::before",
            "t/old.t::named",
            "t/old.t::test 1",
            "t/stops.t::before",
        },
        "failed": {"t/cart.t::fails", "t/cart.t::inside"},
        "errored": {"t/broken.t", "t/dies.t", "t/hangs.t", "t/stops.t"},
        "skipped": {"t/absent.t", "t/cart.t::test 6", "t/cart.t::to do"},
    }
    assert "no luck" in report.errors["t/dies.t"]
    assert "got: '3'" in report.errors["t/cart.t::fails"]
    assert report.complete
    assert report.signs.forged == ("t/old.t: it printed results that Test::Builder did not give",)


async def test_forgeries_are_found(backend: Backend, tmp_path: Path) -> None:
    report = await run_files(ProveRunner(), forging_project(), tmp_path, backend)
    signs = "\n".join(report.signs.forged)
    for name in FORGERIES:
        red = {ident for ident in report.red if ident.startswith(f"t/{name}.t")}
        assert red or f"t/{name}.t:" in signs, name
