"""Test how many tokens of the repository a prompt gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.agent.fix.run_context import chosen_budget
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.settings import AUTO_BUDGET, Settings
from m3agent.serving.client.prices import Prices

AUTO = replace(Settings(), context_budget=AUTO_BUDGET)
HOSTED = Prices(prompt=0.3, completion=1.2, cached=0.06)
WINDOW = 1_048_576
LONG = "It fails. " * 500


def test_auto_is_read_from_every_place(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert load_settings(tmp_path, {"context_budget": "auto"}, env).settings.context_budget == AUTO_BUDGET
    variable = {**env, "M3AGENT_CONTEXT_BUDGET": "Auto"}
    loaded = load_settings(tmp_path, {}, variable)
    assert loaded.settings.context_budget == AUTO_BUDGET
    assert json.loads(loaded.json())["context_budget"]["value"] == "auto"
    assert str(AUTO_BUDGET) not in loaded.table()


def test_without_a_setting_the_whole_window_is_used_whatever_the_price() -> None:
    whole = chosen_budget(Settings(), WINDOW, HOSTED, "It fails.")
    assert whole.tokens is not None
    assert 700_000 < whole.tokens < WINDOW
    assert not whole.reason
    assert chosen_budget(Settings(), None, HOSTED, "It fails.").tokens is None


def test_a_number_is_kept_within_the_window() -> None:
    for given in (1, 5_000, 5_000_000):
        tokens = chosen_budget(replace(Settings(), context_budget=given), 100_000, None, "x").tokens
        assert tokens == min(given, 75_000)


@pytest.mark.parametrize("prices", [None, Prices(), Prices(hour=20.0)])
def test_auto_takes_the_whole_window_where_tokens_cost_nothing(prices: Prices | None) -> None:
    chosen = chosen_budget(AUTO, WINDOW, prices, "It fails.")
    assert chosen.tokens == chosen_budget(Settings(), WINDOW, prices, "It fails.").tokens
    assert f"{chosen.tokens:,}" in chosen.reason


def test_auto_takes_less_where_tokens_cost_more() -> None:
    def tokens(prices: Prices, issue: str = LONG) -> int:
        return chosen_budget(AUTO, WINDOW, prices, issue).tokens or 0

    uncached = replace(HOSTED, cached=None)
    assert tokens(uncached) < tokens(HOSTED) < tokens(replace(HOSTED, prompt=0.1, cached=0.01))
    assert tokens(HOSTED, "It fails.") < tokens(HOSTED)
    assert (
        tokens(replace(HOSTED, prompt=0.001, cached=0.0001))
        == chosen_budget(Settings(), WINDOW, None, LONG).tokens
    )
    assert tokens(replace(HOSTED, prompt=1000.0)) == 20_000


def test_auto_stays_below_a_limit_on_cost_and_inside_the_window() -> None:
    limited = chosen_budget(replace(AUTO, max_cost=0.4), WINDOW, HOSTED, LONG).tokens or 0
    assert limited < (chosen_budget(AUTO, WINDOW, HOSTED, LONG).tokens or 0)
    assert (chosen_budget(AUTO, 16_000, HOSTED, LONG).tokens or 0) == 12_000


def test_the_reason_names_tokens_and_price() -> None:
    chosen = chosen_budget(AUTO, WINDOW, HOSTED, LONG)
    assert f"{chosen.tokens:,} tokens" in chosen.reason
    assert "$0.3 " in chosen.reason
