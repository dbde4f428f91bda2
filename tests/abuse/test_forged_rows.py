"""Forgeries of the table `forged_rows`: none is verified, and the honest patches with the same constructs are."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from tests.abuse.forged_rows import ROWS, Files, Row
from tests.abuse.forgery_judges import verified
from tests.abuse.forgery_targets import Target
from tests.conftest import others_later

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

QUICK = {"text that ignores blanks", "example in an assigned docstring", "new golden file that comes first"}
HONEST = [name for name, row in ROWS.items() if row.honest]


async def judged(row: Row, patch: Files, backend: Backend, folder: Path) -> str:
    target = Target(row.files, "", "", "", "", (), (), "It is wrong.")
    memory = 4 << 30 if row.kind == "K9" else 0  # Node.js and Go reserve much
    result = await verified(patch, target, backend, folder, reruns=0, memory=memory)
    return f"{result.verdict}: {result.reason}"


@pytest.mark.parametrize("name", others_later(ROWS, QUICK))
async def test_a_forged_fix_is_not_verified(name: str, one_backend: Backend, tmp_path: Path) -> None:
    judgement = await judged(ROWS[name], ROWS[name].forged, one_backend, tmp_path)
    assert not judgement.startswith("verified"), judgement


@pytest.mark.parametrize("name", others_later(HONEST, QUICK))
async def test_an_honest_fix_is_verified(name: str, one_backend: Backend, tmp_path: Path) -> None:
    judgement = await judged(ROWS[name], ROWS[name].honest, one_backend, tmp_path)
    assert judgement.startswith("verified"), judgement
