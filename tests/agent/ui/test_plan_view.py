"""What `m3agent plan` draws: the table and the bars, at several widths."""

from __future__ import annotations

import pytest

from m3agent.agent.ui.agents_view import numbers
from m3agent.agent.ui.layout import Block, in_ascii
from m3agent.agent.ui.plan_view import bar, described, overview, speed
from m3agent.serving.plan.agents import team_plan
from m3agent.serving.plan.gpus import parse_gpus
from m3agent.serving.plan.plan import HardwarePrices, PlanRequest
from m3agent.serving.plan.planner import plans
from m3agent.serving.plan.recipe import LICENCE

FOUND = plans(parse_gpus("4xH200"), PlanRequest(), HardwarePrices(4.84))


def lines(block: Block, width: int | None) -> list[str]:
    return [line.plain.rstrip() for line in block(width)]


def test_the_plans_of_four_h200_at_80_columns() -> None:
    assert lines(overview(FOUND), 79) == [
        "#  ENGINE  WEIGHTS  GPUS    LAYOUT      KV CACHE   KV TOKENS  SEQUENCES  $/HOUR",
        "1  vllm    mxfp8    4xH200  TP4         bf16       545,408    1          19.36",
        "2  vllm    mxfp8    4xH200  TP2 DP2 EP  fp8+index  1,050,624  2          19.36",
        "fp8+index: the cache keeps keys, values and index keys (for sparse attention)",
        "in fp8.",
        "",
        "Memory of each GPU",
        "█ weights   ▒ KV cache   ░ activations   · free",
        "1  █████████████████████████████████▒▒▒▒▒▒▒░····  103.1 + 23.0 + 2.5 + 11.2 GiB",
        "2  ██████████████████████████████████▒▒▒▒▒▒░····  106.8 + 18.6 + 3.2 + 11.2 GiB",
    ]


def test_a_narrow_terminal_lacks_columns_and_keeps_the_numbers() -> None:
    shown = lines(overview(FOUND), 59)
    assert shown[:2] == [
        "#  ENGINE  WEIGHTS  GPUS    LAYOUT      SEQUENCES  $/HOUR",
        "1  vllm    mxfp8    4xH200  TP4         1          19.36",
    ]
    assert shown[3] == "too narrow for KV CACHE, KV TOKENS: --json has them"
    assert shown[7] == "1  ██████████████████▒▒▒▒░··  103.1 + 23.0 + 2.5 + 11.2 GiB"


@pytest.mark.parametrize("width", [40, 59, 79, 119])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    shown = [
        *lines(overview(plans(parse_gpus("8xH200"), PlanRequest())), width),
        *lines(described(FOUND[0]), width),
    ]
    assert max(len(line) for line in shown if LICENCE not in line) <= width
    assert f"licence      {LICENCE}" in shown


def test_the_speed_is_the_same_in_both_views_and_says_where_it_comes_from() -> None:
    wish = PlanRequest(context=181_120)
    measured, estimated = (plans(parse_gpus(gpus), wish)[0] for gpus in ("4xH200", "8xH200"))
    said = "106 output tokens/s for one sequence of 181,120 tokens"
    assert speed(measured) == f"{said} (from measurements on 4xH200 with mxfp8, TP4, vLLM 0.24)"
    assert speed(estimated) == (
        f"{said} (estimated from measurements on 4xH200 with mxfp8, TP4, vLLM 0.24; this plan was not measured)"
    )
    team = team_plan(parse_gpus("4xH200"), PlanRequest(), 1, 50_000)
    assert team is not None
    assert ("speed", speed(measured)) in numbers(team)


def test_without_unicode_the_parts_still_differ() -> None:
    shown = [in_ascii(line) for line in lines(overview(FOUND), None)]
    assert "# weights   = KV cache   + activations   - free" in shown
    assert all(line.isascii() for line in shown)


def test_a_bar_has_its_width_and_shows_each_part() -> None:
    parts = (("a", 1, ""), ("b", 10**9, ""), ("c", 0, ""), ("d", 10**9, ""))
    for width in (4, 10, 57):
        drawn = bar(parts, width).plain
        assert len(drawn) == width
        assert drawn.count("a") == 1
        assert "c" not in drawn
    assert bar((("a", 1, ""), ("b", 3, "")), 8).plain == "aabbbbbb"
