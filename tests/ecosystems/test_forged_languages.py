"""Forgeries in other languages than Python: none is verified, and a right patch with a test is."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from tests.abuse.forged_languages import HONEST, LANGUAGES, PROJECTS
from tests.abuse.forged_rows import Row
from tests.abuse.test_forged_rows import judged
from tests.ecosystems.table import MAVENS, needs

PROGRAMS = {
    "rust": ["cargo"],
    "ruby": ["ruby", "rspec"],
    "java": ["javac", "mvn", *MAVENS],
    "go": ["go"],
    "js": ["node"],
}
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.languages,
    pytest.mark.supervisor,
    pytest.mark.timeout(600),
]


def of_language(name: str) -> pytest.MarkDecorator:
    return needs(*PROGRAMS[name.partition(":")[0]], path="/usr/bin")


@pytest.mark.parametrize("name", [pytest.param(name, marks=of_language(name)) for name in LANGUAGES])
async def test_a_forged_fix_is_not_verified(name: str, one_backend: Backend, tmp_path: Path) -> None:
    judgement = await judged(LANGUAGES[name], LANGUAGES[name].forged, one_backend, tmp_path)
    assert not judgement.startswith("verified"), judgement


@pytest.mark.parametrize("name", [pytest.param(name, marks=of_language(name)) for name in HONEST])
async def test_a_right_fix_with_a_test_is_verified(name: str, one_backend: Backend, tmp_path: Path) -> None:
    row = Row("K9", PROJECTS[name], {}, HONEST[name])
    judgement = await judged(row, row.honest, one_backend, tmp_path)
    assert judgement.startswith("verified"), judgement
