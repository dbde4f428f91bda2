"""What a team gets from a server: sessions that stay cached, times, and what to add."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from m3agent.agent.ui.plan_view import overview
from m3agent.serving.plan.agents import (
    CONVERSATION,
    LONGEST_REPOSITORY,
    Activity,
    TeamPlan,
    session_tokens,
    simulate,
    team_plan,
)
from m3agent.serving.plan.gpus import GPUS, parse_gpus
from m3agent.serving.plan.host_cache import GIGABYTE
from m3agent.serving.plan.plan import HardwarePrices, PlanRequest
from m3agent.serving.plan.planner import plans
from m3agent.serving.plan.speed import Speed, seconds_between
from m3agent.util.errors import UsageError


def answer(gpus: str, agents: int, repository: int, wish: PlanRequest | None = None) -> TeamPlan:
    found = team_plan(parse_gpus(gpus), wish or PlanRequest(), agents, repository)
    assert found is not None
    return found


TEN = answer("8xH200", 10, 700_000)


def test_the_plan_keeps_as_many_sessions_as_any_plan_does() -> None:
    assert TEN.session_tokens == 831_104 >= 700_000 + CONVERSATION
    assert (TEN.kept, TEN.plan.tp, TEN.plan.dp, TEN.plan.index_dtype) == (8, 4, 2, "fp8")
    assert TEN.plan.context == TEN.session_tokens
    wish = PlanRequest(context=TEN.session_tokens, concurrency=9)
    assert all(plan.sequences < 9 for plan in plans(parse_gpus("8xH200"), wish))


def test_a_common_pack_is_kept_once_on_each_rank() -> None:
    own = TEN.session_tokens - 700_000
    assert TEN.kept_shared == 2 * ((TEN.plan.kv_tokens - 700_000) // own)
    assert TEN.kept_shared > TEN.kept


def test_one_session_too_many_makes_every_turn_slow_and_a_host_cache_mends_it() -> None:
    assert TEN.as_planned.cached_share == 0
    assert TEN.as_planned.turn_seconds > 5 * TEN.first_seconds * 0.9
    assert TEN.with_addition is not None
    assert TEN.with_addition.cached_share > 0.98
    assert TEN.with_addition.turn_seconds < 20


def test_what_to_add_is_enough_and_has_its_price() -> None:
    names = [addition.name for addition in TEN.additions]
    assert names[1:] == ["the same commit for all", "2 servers of 8xH200", "--context-budget 618000"]
    assert all(addition.agents >= 10 for addition in TEN.additions)
    flag, size = TEN.additions[0].options
    host = answer("8xH200", 10, 700_000, PlanRequest(host_cache=int(size) * GIGABYTE))
    assert flag == "--host-cache"
    assert (host.kept >= 10, host.additions) == (True, ())
    assert host.as_planned.cached_share > 0.98
    assert TEN.additions[2].dollars_per_hour == pytest.approx(2 * 8 * (GPUS["H200"].on_demand or 0))
    assert answer("8xH200", 10, 618_000).kept == 10
    assert answer("8xH200", 10, 619_000).kept < 10


def test_a_host_cache_that_is_too_small_is_said_to_be() -> None:
    small = answer("8xH200", 10, 700_000, PlanRequest(host_cache=100 * GIGABYTE))
    assert small.kept == 8
    assert small.as_planned.cached_share == 0
    assert small.additions[0].name == TEN.additions[0].name


def test_where_all_fit_nothing_is_added_and_fewer_gpus_are_named() -> None:
    found = answer("8xH200", 1, 200_000)
    assert (found.additions, found.with_addition, found.fewer) == ((), None, "4xH200")
    assert found.as_planned.cached_share > 0.98
    assert answer("4xH200", 1, 200_000).fewer is None


def test_times_are_those_that_were_measured_on_four_h200() -> None:
    speed = Speed(answer("4xH200", 1, 700_000).plan)
    assert speed.cold(131_072) == pytest.approx(10.7)
    assert speed.cold(1_000_000) == pytest.approx(183)
    assert 1 / seconds_between(131_072) == pytest.approx(109, abs=1)
    assert speed.cached(1_000_000) == pytest.approx(1.51 + 0.6, abs=0.1)
    assert speed.source.startswith("from measurements on 4xH200")
    assert Speed(answer("8xH200", 1, 700_000).plan).source.endswith("; this plan was not measured")
    assert Speed(answer("4xB200", 1, 700_000).plan).source.endswith("; other GPUs were not measured")
    assert Speed(replace(TEN.plan, tp=8)).cold(131_072) == pytest.approx(10.7 / 2)


def test_costs_follow_from_the_price_of_a_gpu_hour() -> None:
    assert TEN.dollars_per_agent_hour == pytest.approx(8 * (GPUS["H200"].on_demand or 0) / 10)
    given = team_plan(parse_gpus("8xB200"), PlanRequest(), 10, 700_000, HardwarePrices(5.0))
    assert given is not None
    assert given.dollars_per_agent_hour == pytest.approx(4.0)
    without = team_plan(parse_gpus("8xX100", 180), PlanRequest(), 10, 700_000)
    assert without is not None
    assert without.dollars_per_fix is None


def test_timelines_have_no_gaps_and_begin_with_the_whole_prompt() -> None:
    for row in TEN.as_planned.agents:
        assert row[0].start == 0
        assert row[-1].end == TEN.as_planned.seconds
        assert all(left.end == right.start for left, right in pairwise(row))
        assert next(part for part in row if part.activity is not Activity.WAITS).activity is Activity.WHOLE
    whole = [
        sum(part.activity is Activity.WHOLE for part in row)
        for row in simulate(Speed(TEN.plan), 8, 700_000, 8, host=False).agents
    ]
    assert whole == [2] * 8, "once for each session: the second begins after 50 turns"


def test_sizes_out_of_range_and_gpus_that_hold_nothing() -> None:
    assert session_tokens(LONGEST_REPOSITORY) == 1_048_576
    for repository in (0, LONGEST_REPOSITORY + 1):
        with pytest.raises(UsageError, match="out of range"):
            session_tokens(repository)
    assert team_plan(parse_gpus("1xH200"), PlanRequest(), 1, 1000) is None


def test_the_json_has_the_same_numbers() -> None:
    told = json.loads(json.dumps(TEN.json()))
    assert (told["kept"], told["kept_shared"]) == (TEN.kept, TEN.kept_shared)
    assert told["additions"][0]["name"] == TEN.additions[0].name
    assert len(told["as_planned"]["agents"]) == 10
    assert told["as_planned"]["agents"][0][0] == {
        "activity": "whole",
        "start": 0.0,
        "end": pytest.approx(103.7, abs=0.2),
    }
    assert told["plan"]["tp"] == 4


def test_servers_are_named_as_a_command_only_where_each_keeps_its_sessions() -> None:
    def command(gpus: str, repository: int) -> str:
        [why] = [one.why for one in answer(gpus, 10, repository).additions if "servers of" in one.name]
        return why.partition(": m3agent ")[2]

    said = "serve --servers HOST1,HOST2,... --gpus 4xH200 --context 331136 --concurrency 10 --write FOLDER"
    assert command("4xH200", 200_000) == f"{said}, with the names of 3 machines"
    wish = PlanRequest(context=331_136, concurrency=4)
    assert plans(parse_gpus("4xH200"), wish)[0].sequences >= 4
    assert command("8xH200", 700_000) == "", "its best plan has two ranks"
    assert command("8xH100-80", 200_000) == "", "with four sequences its best plan keeps one session"


@pytest.mark.parametrize(
    ("gpus", "agents", "repository"),
    [("8xH200", 64, 300_000), ("8xH200", 64, 20_000), ("8xB300", 40, 700_000)],
)
def test_the_plan_and_the_team_name_one_number_of_sessions(gpus: str, agents: int, repository: int) -> None:
    team = answer(gpus, agents, repository)
    plan = plans(parse_gpus(gpus), PlanRequest(context=session_tokens(repository), concurrency=agents))[0]
    shown = [line.plain for line in overview([plan])(None)][1].split()
    assert team.plan.gpus == plan.gpus
    assert shown[-2] == str(team.kept) == str(plan.json()["sequences"])
