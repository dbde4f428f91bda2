"""Show plans for a server: a table, a bar of each GPU's memory, and the first plan in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from m3agent.agent.report import text
from m3agent.agent.ui.layout import Block, beside, in_order
from m3agent.serving.plan.memory_model import GIB, gib
from m3agent.serving.plan.recipe import LICENCE
from m3agent.util.counted import counted
from m3agent.util.sanitize import printable_line
from m3agent.util.table import fitting

if TYPE_CHECKING:
    from m3agent.serving.plan.plan import Plan

IN_PIPES = 80
"""Width in cells of what is drawn for a pipe or a file."""
COLUMNS = ("#", "ENGINE", "WEIGHTS", "GPUS", "LAYOUT", "KV CACHE", "KV TOKENS", "SEQUENCES", "$/HOUR")
_DROPPED = ("KV CACHE", "KV TOKENS", "WEIGHTS", "ENGINE", "GPUS")
"""Columns that a narrow terminal lacks, the first to go first."""
_LABEL = 12  # cells of a label in the description of a plan
_PARTS = (
    ("█", "weights", "blue"),
    ("▒", "KV cache", "green"),
    ("░", "activations", "yellow"),
    ("·", "free", "dim"),
)


def overview(plans: Sequence[Plan]) -> Block:
    """Return the table of plans and the bars of their memory."""
    return in_order(_table(plans), paragraph(Text()), memory_bars(plans))


def paragraph(said: Text) -> Block:
    """Return a text that wraps at the width of the terminal."""
    return beside(Text(), said)


def described(plan: Plan) -> Block:
    """Return what a plan is, why it is the first, and its pitfalls, one label on each line."""
    return in_order(*(labelled(name, said) for name, said in facts(plan)))


def labelled(name: str, said: str) -> Block:
    """Return a label with its text beside it."""
    head = Text.assemble((f"{name:<{_LABEL}} ", "yellow" if name == "warning" else "bold"))
    return beside(head, Text(said), whole_words=said == LICENCE)


def facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the description of a plan: pairs of a label and a sentence."""
    memory = plan.memory
    settings = (
        f"--max-model-len {plan.context} --max-num-batched-tokens {plan.batch.tokens} "
        f"--max-num-seqs {plan.max_num_seqs}{' --language-model-only' if plan.text_only else ''}"
    )
    draft = ""
    if plan.draft is not None:
        model = printable_line(plan.draft.model)
        draft = f"{model}, {plan.batch.drafted} tokens at a time, attention {plan.draft_backend}"
    ranks = f" on each of {plan.dp} data-parallel ranks" if plan.dp > 1 else ""
    known = {
        "checkpoint": plan.checkpoint or f"yours, in {plan.precision.upper()}",
        "licence": LICENCE,
        "engine": f"{plan.engine} {plan.versions}",
        "layout": f"{layout(plan)} on {plan.gpus} (recipe {plan.recipe})",
        "settings": settings if plan.engine == "vllm" else "",
        "draft": draft,
        "overrides": json.dumps(plan.hf_overrides) if plan.hf_overrides else "",
        "environment": " ".join(f"{name}={value}" for name, value in plan.env.items()),
        "memory": f"of {gib(memory.total)} a GPU: {gib(memory.weights)} weights, {gib(memory.kv)} KV cache, "
        f"{gib(memory.other)} activations and buffers, {gib(memory.free)} free",
        "KV cache": f"{plan.kv_tokens:,} tokens{ranks}: {counted(plan.sequences, 'whole sequence')} at a time",
        "speed": speed(plan),
        **_costs(plan),
    }
    found = [(name, text) for name, text in known.items() if text]
    found += [("why", reason) for reason in plan.reasons]
    found += [("warning", warning) for warning in plan.warnings]
    found += [("advice", printable_line(advice, 400)) for advice in plan.advice]
    return found


def _costs(plan: Plan) -> dict[str, str]:
    """Return the cost, and the speed from which a server of one's own is cheaper; empty texts if unknown."""
    cost = plan.cost
    if cost.dollars_per_hour is None:
        price = f"no price of the {plan.fleet.gpu.name} is known: give that of a GPU-hour with --gpu-price"
    else:
        spot = (
            "" if cost.spot_dollars_per_hour is None else f", {text.price(cost.spot_dollars_per_hour)} spot"
        )
        price = f"{text.price(cost.dollars_per_hour)} an hour ({cost.price_source}{spot})"
        if cost.dollars_per_million is not None:
            price += f"; {text.price(cost.dollars_per_million)} for a million output tokens"
    least = cost.breakeven_tokens_per_second
    against = f"against the hosted API's {text.price(cost.hosted_dollars_per_million)} a million"
    even = (
        ""
        if least is None
        else f"{text.speed(least)} output tokens/s {against}, not counting its price for prompts"
    )
    return {"cost": price, "break-even": even}


def speed(plan: Plan) -> str:
    """Return the output tokens a second, of what they are, and where the number comes from."""
    cost = plan.cost
    if cost.throughput_source == "given":
        return f"{text.speed(cost.tokens_per_second)} output tokens/s (given)"
    if cost.stream_tokens_per_second is None:
        return cost.throughput_source
    said = f"{text.speed(cost.stream_tokens_per_second)} output tokens/s for one sequence of {plan.sequence:,} tokens"
    return f"{said} ({cost.throughput_source})"


def layout(plan: Plan) -> str:
    """Return how a plan spreads the model, in the field's abbreviations: TP, DP and EP."""
    parts = [f"TP{plan.tp}", *([f"DP{plan.dp}"] if plan.dp > 1 else []), *(["EP"] if plan.ep else [])]
    return " ".join(parts)


FP8_INDEX = "fp8+index"
"""The type of a KV cache whose index keys are in fp8 too."""
_FP8_INDEX_NOTE = f"{FP8_INDEX}: the cache keeps keys, values and index keys (for sparse attention) in fp8."


def kv_types(plan: Plan) -> str:
    """Return the types of the KV cache and, if they differ from it, of the index keys."""
    kv = "bf16" if plan.kv_dtype == "auto" else "fp8"
    return kv if plan.index_dtype != "fp8" else FP8_INDEX


def bar(parts: Sequence[tuple[str, int, str]], width: int) -> Text:
    """Return a bar of exactly `width` cells whose parts have the shares of their sizes.

    Args:
        parts: Symbol, size and style of each part. A part that is not empty has at least one cell.
    """
    whole = sum(size for _, size, _ in parts) or 1
    cells = [max(bool(size), size * width // whole) for _, size, _ in parts]
    while (lacking := width - sum(cells)) != 0:
        errors = [size * width / whole - cell for (_, size, _), cell in zip(parts, cells, strict=True)]
        if lacking > 0:
            cells[errors.index(max(errors))] += 1
        else:
            cells[cells.index(max(cells))] -= 1
    return Text.assemble(
        *((symbol * cell, style) for (symbol, _, style), cell in zip(parts, cells, strict=True))
    )


def _table(plans: Sequence[Plan]) -> Block:
    rows = [_row(number, plan) for number, plan in enumerate(plans, start=1)]

    def lines(width: int | None) -> list[Text]:
        table, left_out = fitting((COLUMNS, *rows), width or 0, _DROPPED)
        head, *body = table.splitlines()
        explained = "KV CACHE" not in left_out and any(kv_types(plan) == FP8_INDEX for plan in plans)
        notes = [*paragraph(Text(_FP8_INDEX_NOTE))(width)] if explained else []
        if left_out:
            notes += paragraph(Text(f"too narrow for {', '.join(left_out)}: --json has them", "dim"))(width)
        return [Text(head, "bold"), *map(Text, body), *notes]

    return lines


def _row(number: int, plan: Plan) -> tuple[str, ...]:
    return (
        str(number),
        plan.engine,
        plan.precision,
        plan.gpus,
        layout(plan),
        kv_types(plan),
        f"{plan.kv_tokens * plan.dp:,}",
        str(plan.sequences),
        text.UNKNOWN if plan.cost.dollars_per_hour is None else f"{plan.cost.dollars_per_hour:,.2f}",
    )


def memory_bars(plans: Sequence[Plan]) -> Block:
    """Return a bar for each plan that shows how the memory of each GPU divides."""

    def lines(width: int | None) -> list[Text]:
        memories = [(m.weights, m.kv, m.other, m.free) for m in (plan.memory for plan in plans)]
        sums = [f"{' + '.join(f'{size / GIB:.1f}' for size in sizes)} GiB" for sizes in memories]
        room = max(len(_PARTS), min(width or IN_PIPES, IN_PIPES) - 5 - max(map(len, sums)))
        found = [Text("Memory of each GPU", "bold"), *paragraph(legend(_PARTS))(width)]
        for number, (sizes, summed) in enumerate(zip(memories, sums, strict=True), start=1):
            parts = [(symbol, size, style) for (symbol, _, style), size in zip(_PARTS, sizes, strict=True)]
            found.append(Text(f"{number}  ") + bar(parts, room) + Text(f"  {summed}"))
        return found

    return lines


def legend(parts: Sequence[tuple[str, str, str]]) -> Text:
    """Return the legend of a drawing, from symbol, name and style of each part."""
    return Text("   ").join(Text.assemble((symbol, style), f" {name}") for symbol, name, style in parts)
