"""Test which options of `m3agent serve` go together, and what a dry run prints, without a process."""

from __future__ import annotations

import pytest

from m3agent.agent.cli.serve.command import refuse_search_options
from m3agent.agent.errors import UsageError


@pytest.mark.parametrize(
    ("seed", "candidates", "said"),
    [
        (7, None, "pass it to the engine with `-- --seed 7`"),
        (0, None, "--seed is for"),
        (None, 3, "--candidates is for"),
    ],
)
def test_options_of_the_search_are_for_the_embedded_engine(
    seed: int | None, candidates: int | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_search_options(seed, candidates)
    refuse_search_options(None, None)
