"""Show a plan for a team: the answer in one sentence, numbers, the timeline of cached turns, and what to add."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from m3agent.agent.report import text
from m3agent.agent.ui.layout import Block, beside, in_order
from m3agent.agent.ui.plan_view import (
    FP8_INDEX,
    IN_PIPES,
    kv_types,
    labelled,
    layout,
    legend,
    memory_bars,
    paragraph,
    speed,
)
from m3agent.serving.plan.agents import CONVERSATION, OUTPUT_TOKENS, TOOL_SECONDS, TURNS, Activity
from m3agent.serving.plan.recipe import LICENCE
from m3agent.serving.plan.speed import at_speed_of
from m3agent.util.counted import counted

if TYPE_CHECKING:
    from m3agent.serving.plan.agents import Segment, Simulation, TeamPlan

MOST_ROWS = 12
"""Agents whose timelines are drawn."""
LEAST_CELLS = 10
_SIGNS = {
    Activity.WHOLE: ("█", "reads the whole prompt", "red"),
    Activity.CACHED: ("▒", "answers, runs tools", "green"),
    Activity.WAITS: ("·", "waits", "dim"),
}
"""How a timeline shows what a session does: the symbol, its meaning and its style."""


def team_block(gpus: str, answer: TeamPlan) -> Block:
    """Return the whole view."""
    head = f"{_agents(answer.agents)} at once on {gpus}, a repository of {answer.repository_tokens:,} tokens"
    parts = [
        paragraph(Text(head, "bold")),
        paragraph(Text()),
        *(paragraph(line) for line in verdict(gpus, answer)),
        paragraph(Text()),
        *(labelled(name, said) for name, said in numbers(answer)),
        paragraph(Text()),
        timeline(answer.as_planned, "as planned"),
    ]
    if answer.additions and answer.with_addition is not None:
        parts += [
            paragraph(Text()),
            timeline(answer.with_addition, f"with {answer.additions[0].name}"),
            paragraph(Text()),
            paragraph(Text("What to add, one of these", "bold")),
            *(addition for number in range(len(answer.additions)) for addition in _addition(answer, number)),
        ]
    return in_order(*parts, paragraph(Text()), memory_bars([answer.plan]), paragraph(Text()))


def verdict(gpus: str, answer: TeamPlan) -> list[Text]:
    """Return the answer: how many sessions stay cached, and what to do about the others."""
    server = gpus if answer.plan.gpus == gpus else f"one server on {answer.plan.gpus}"
    kept = f"{server} keeps the prefixes of {counted(answer.kept, 'session')} cached."
    turn = f"{text.duration(answer.as_planned.turn_seconds)} on average{at_speed_of(answer.plan.gpus)}"
    if answer.kept >= answer.agents:
        at_once = f" With {_agents(answer.agents)} at once, a turn takes at least {turn}."
        found = [Text(f"Enough for {_agents(answer.agents)}: {kept}{at_once}", "bold green")]
        if answer.fewer:
            found.append(Text(f"{answer.fewer} is enough as well."))
        return found
    first = (
        f"Not enough for {_agents(answer.agents)}: {kept} With {_agents(answer.agents)} at once, a turn takes at "
        f"least {turn}, because prompts are computed again."
    )
    addition = answer.additions[0]
    faster = (
        ""
        if answer.with_addition is None
        else f" With {_agents(answer.agents)} at once, a turn then takes at least "
        f"{text.duration(answer.with_addition.turn_seconds)} on "
        "average, with the wait for the first prompts of the others."
    )
    last = f"{addition.advice}{faster} Or work with {_agents(answer.kept)} at once."
    return [Text(first, "bold yellow"), Text(last, "bold")]


def numbers(answer: TeamPlan) -> list[tuple[str, str]]:
    """Return how many, how fast and at what cost: pairs of a label and a sentence."""
    plan = answer.plan
    at_once = f"{_agents(answer.kept)}, if each works on its own commit; {answer.kept_shared}, if all work on the same commit"
    turns = (
        f"for one agent alone: {text.duration(answer.first_seconds)} to the first token of a session; then up to "
        f"{text.duration(answer.turn_seconds)} a turn, {text.duration(answer.cached_seconds)} of it to the first token"
        f"{at_speed_of(plan.gpus)}"
    )
    session = (
        f"{answer.session_tokens:,} tokens: the repository and {CONVERSATION:,} for {TURNS} turns of {OUTPUT_TOKENS} "
        f"tokens written, with {TOOL_SECONDS:.0f} s of tools between them (assumed)"
    )
    index = " and index keys" if kv_types(plan) == FP8_INDEX else ""
    server = (
        f"{plan.engine} {plan.versions}, {plan.precision}, {layout(plan)} on {plan.gpus}; {plan.kv_tokens * plan.dp:,} tokens "
        f"of {kv_types(plan).removesuffix('+index')} KV cache{index}"
    )
    found = [
        ("at once", at_once),
        ("turns", turns),
        ("speed", speed(plan)),
        ("cost", _cost(answer)),
        ("session", session),
        ("plan", server),
        ("licence", LICENCE),
    ]
    found += [("warning", warning) for warning in plan.warnings]
    return found + [("advice", advice) for advice in plan.advice]


def _cost(answer: TeamPlan) -> str:
    """Return the cost for the agents whose sessions stay cached, but not for more than were asked for."""
    cost, count = answer.plan.cost, min(answer.agents, answer.kept)
    if cost.dollars_per_hour is None:
        return "unknown: give the price of a GPU-hour with --gpu-price"
    each = "" if count == 1 else f"{text.price(cost.dollars_per_hour / count)} an hour for each, and "
    return (
        f"{text.price(cost.dollars_per_hour)} an hour for {answer.plan.gpus} ({cost.price_source}); with {_agents(count)} at once "
        f"{each}about {text.price(answer.dollars_per_fix)} for a session of {TURNS} turns"
    )


def timeline(simulation: Simulation, title: str) -> Block:
    """Return the timeline of the agents: a row for each, from the common start."""

    def lines(width: int | None) -> list[Text]:
        rows = simulation.agents[:MOST_ROWS]
        label = len(str(len(rows))) + 2
        cells = max(LEAST_CELLS, min(width or IN_PIPES, IN_PIPES) - label)
        said = f"The first {simulation.seconds / 60:.0f} minutes {title}: {text.share(simulation.cached_share)} of later prompts cached"
        found = [
            *paragraph(Text(said, "bold"))(width),
            *paragraph(legend(list(_SIGNS.values())))(width),
            *(
                Text(f"{number:<{label}}") + _row(row, simulation.seconds, cells)
                for number, row in enumerate(rows, start=1)
            ),
        ]
        if (more := len(simulation.agents) - len(rows)) > 0:
            found.append(Text(f"and {more} more", "dim"))
        return found

    return lines


def _row(segments: Sequence[Segment], seconds: float, cells: int) -> Text:
    """Return a row of cells; each shows what the session does for most of its time, or that it begins to read a prompt."""
    shown: list[Activity] = []
    for number in range(cells):
        start, end = number * seconds / cells, (number + 1) * seconds / cells
        times = dict.fromkeys(Activity, 0.0)
        for segment in segments:
            times[segment.activity] += max(0.0, min(segment.end, end) - max(segment.start, start))
        begins = any(
            segment.activity is Activity.WHOLE and start <= segment.start < end for segment in segments
        )
        shown.append(Activity.WHOLE if begins else max(times, key=lambda activity: times[activity]))
    runs = [(_SIGNS[activity], len(list(run))) for activity, run in groupby(shown)]
    return Text.assemble(*((sign * length, style) for (sign, _, style), length in runs))


def _addition(answer: TeamPlan, number: int) -> list[Block]:
    addition = answer.additions[number]
    price = "" if addition.dollars_per_hour is None else f", {text.price(addition.dollars_per_hour)} an hour"
    head = Text.assemble(f"{number + 1}  ", (addition.name, "bold"), f": {_agents(addition.agents)}{price}")
    return [beside(Text(), head), beside(Text("   "), Text(addition.why))]


def _agents(number: int) -> str:
    return counted(number, "agent")
