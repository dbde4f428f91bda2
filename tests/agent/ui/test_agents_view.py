"""What `m3agent plan --agents` shows."""

from __future__ import annotations

import pytest

from m3agent.agent.ui.agents_view import numbers, team_block, timeline
from m3agent.serving.plan.agents import TOOL_SECONDS, TURNS, TeamPlan, team_plan
from m3agent.serving.plan.gpus import parse_gpus
from m3agent.serving.plan.kinds import EngineKind
from m3agent.serving.plan.plan import HardwarePrices, PlanRequest
from m3agent.serving.plan.recipe import LICENCE


def answer(gpus: str, agents: int, repository: int) -> TeamPlan:
    found = team_plan(parse_gpus(gpus), PlanRequest(), agents, repository, HardwarePrices(4.84))
    assert found is not None
    return found


TEN = answer("8xH200", 10, 700_000)


def lines(found: TeamPlan, width: int | None, gpus: str = "8xH200") -> list[str]:
    return [line.plain.rstrip() for line in team_block(gpus, found)(width)]


def test_the_first_lines_say_what_to_add() -> None:
    head, blank, verdict, addition, *_ = lines(TEN, None)
    assert (head, blank) == ("10 agents at once on 8xH200, a repository of 700,000 tokens", "")
    assert verdict == (
        "Not enough for 10 agents: 8xH200 keeps the prefixes of 8 sessions cached. With 10 agents at once, a turn takes "
        "at least 8 min 33 s on average, because prompts are computed again."
    )
    assert addition == (
        "Add --host-cache 754: it keeps 10 sessions cached. With 10 agents at once, a turn then takes at least 16 s on average, "
        "with the wait for the first prompts of the others. Or work with 8 agents at once."
    )
    assert sum("LICENSE" in line for line in lines(TEN, None)) == 1
    enough = lines(answer("8xH200", 1, 200_000), None)
    assert enough[2].startswith(
        "Enough for 1 agent: 8xH200 keeps the prefixes of 5 sessions cached. With 1 agent at once, a turn"
    )
    assert enough[3] == "4xH200 is enough as well."


def test_what_the_agents_do_is_no_option_to_add() -> None:
    found = team_plan(parse_gpus("8xB200"), PlanRequest(engine=EngineKind.SGLANG), 10, 300_000)
    assert found is not None
    assert lines(found, None)[3].startswith(
        "If all agents work on the same commit, 22 sessions stay cached. With 10 agents"
    )
    assert found.additions[0].options == ()
    assert found.additions[1].advice == "Use 2 servers of 8xB200: they keep 14 sessions cached."


def test_every_number_says_for_how_many_agents_it_holds() -> None:
    said = dict(numbers(TEN))
    assert said["at once"] == "8 agents, if each works on its own commit; 40, if all work on the same commit"
    assert said["turns"].startswith(
        "for one agent alone: 1 min 44 s to the first token of a session; then up to 9.4 s a turn"
    )
    assert "; with 8 agents at once $4.84 an hour for each, and about $1.80 for a session" in said["cost"]
    one = dict(numbers(answer("8xH200", 1, 200_000)))
    assert one["cost"].endswith("; with 1 agent at once about $9.13 for a session of 50 turns")
    assert said["plan"].endswith("; 6,807,808 tokens of fp8 KV cache and index keys")
    shown = " ".join(lines(TEN, None))
    assert not any(word in shown.split() for word in ("pack", "packs", "fp8+index"))


def test_the_warnings_of_the_plan_are_shown_where_the_decision_is_made() -> None:
    """A team that decides here reads what `plan` without --agents says too."""
    warnings = [said for name, said in numbers(TEN) if name == "warning"]
    assert warnings == list(TEN.plan.warnings)
    assert any("beyond 524,288 tokens positions are extrapolated" in said for said in warnings)


def test_gpus_that_stay_unused_are_named_and_offered_as_further_servers() -> None:
    found = answer("16xH200", 20, 300_000)
    shown = "\n".join(lines(found, None, "2x8xH200"))
    assert "one server on 8xH200 keeps the prefixes of 16 sessions" in shown
    assert "8 of the 16 GPUs stay unused" in shown and "an hour for 8xH200" in shown
    assert "2 servers of 8xH200: 32 agents" in shown
    assert "2x8xH200 are enough for them; a router" in shown
    assert "are enough for them" not in "\n".join(lines(answer("8xH200", 20, 300_000), None))


def test_times_of_other_gpus_say_that_they_are_those_of_the_measured_kind() -> None:
    doubt = "if these GPUs are as fast as H200s (they were not measured)"
    shown = "\n".join(lines(answer("8xH100", 4, 200_000), None, "8xH100"))
    assert shown.count(doubt) == 2
    assert doubt not in "\n".join(lines(TEN, None))


def test_the_price_of_a_session_is_that_of_a_turn_among_the_others() -> None:
    """It is the time that the first line says: the sessions wait for each other."""
    found = answer("8xH200", 10, 200_000)
    seconds = found.first_seconds + TURNS * (found.as_planned.turn_seconds + TOOL_SECONDS)
    hour = found.plan.cost.dollars_per_hour
    assert hour is not None
    assert found.dollars_per_fix == pytest.approx(hour * seconds / 3600 / 10)


def test_the_timelines_before_and_after() -> None:
    head = timeline(TEN.as_planned, "as planned")(79)[0].plain
    assert head == "The first 30 minutes as planned: 0.0% of later prompts cached"
    before = [line.plain for line in timeline(TEN.as_planned, "as planned")(79)][2:]
    assert [row[:4] for row in before] == [f"{number:<4}" for number in range(1, 11)]
    assert before[0][4:].startswith("████▒····")
    assert before[9][4:].startswith("·········")
    assert TEN.with_addition is not None
    after = [line.plain for line in timeline(TEN.with_addition, "with it")(79)][2:]
    assert all("▒" * 25 in row for row in after)
    assert after[0].count("█▒") == 2, "after 50 turns, a new session reads its whole prompt"


def test_many_agents_are_drawn_in_part() -> None:
    many = answer("4xH200", 40, 100_000)
    assert [line.plain for line in timeline(many.as_planned, "x")(79)][-1] == "and 28 more"


@pytest.mark.parametrize("width", [40, 59, 79, 119])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in lines(TEN, width) if LICENCE not in line) <= width
    assert f"licence      {LICENCE}" in lines(TEN, width)
