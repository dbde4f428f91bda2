"""`m3agent plan`: list the ways to serve M3 on given GPUs, best first, or say why it cannot be served there."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.cli.common import AsJson, Typical, faults, print_bytes, say
from m3agent.agent.errors import EnvironmentFault, UsageError
from m3agent.agent.util.sanitize import print_text
from m3agent.agent.util.table import columns

if TYPE_CHECKING:
    from m3agent.serving.plan.gpus import Fleet
    from m3agent.serving.plan.planner import HardwarePrices, Plan, PlanRequest, Refusal

COLUMNS = (
    "",
    "ENGINE",
    "RECIPE",
    "WEIGHTS",
    "GPUS",
    "TP",
    "DP",
    "KV",
    "UTIL",
    "A GPU: WEIGHTS",
    "CACHE",
    "SPARE",
    "AT ONCE",
    "$/H",
)
SHOWN = 8
"""Number of plans in the table; `--json` prints all."""


class PlanPrecision(StrEnum):
    """Precision of the weights. A test keeps it equal to `serving.plan.memory_model.Precision`."""

    bf16 = "bf16"
    mxfp8 = "mxfp8"
    nvfp4 = "nvfp4"
    mxfp4 = "mxfp4"
    int4 = "int4"


class PlanEngine(StrEnum):
    """Engines that can be planned for. A test keeps it equal to `serving.plan.known_issues.EngineKind`."""

    vllm = "vllm"
    sglang = "sglang"
    trtllm = "trtllm"


class DraftChoice(StrEnum):
    """Whether a server uses a draft. A test keeps it equal to `serving.plan.draft.DraftUse`."""

    auto = "auto"
    on = "on"
    off = "off"


Concurrency = Annotated[int, typer.Option(help="Sequences served at a time.", min=1, max=4096, metavar="N")]
WeightPrecision = Annotated[PlanPrecision | None, typer.Option(help="Number format of the weights.")]
Drafting = Annotated[
    DraftChoice,
    typer.Option(
        "--draft",
        help="A small model proposes tokens and M3 verifies them; auto uses it for few sequences at a time.",
    ),
]
HostCacheGb = Annotated[
    int,
    typer.Option(
        "--host-cache",
        help="Keep KV cache that leaves the GPUs in this many GB of each machine's memory; 0 for none.",
        min=0,
        max=100_000,
        metavar="GB",
    ),
]
Vision = Annotated[bool, typer.Option("--vision", help="Load the image encoder as well.")]


def plan(
    gpus: Annotated[
        str | None,
        typer.Option(
            help="GPUs to plan for: 8xH200, or 2x4xGB200 for two nodes of four; by default this machine's.",
            metavar="SPEC",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Longest prompt and answer together, in tokens; by default M3's own 524,288.", metavar="N"
        ),
    ] = None,
    concurrency: Concurrency = 1,
    typical: Typical = None,
    precision: WeightPrecision = None,
    engine: Annotated[PlanEngine | None, typer.Option(help="Only plans for this engine.")] = None,
    vision: Vision = False,
    draft: Drafting = DraftChoice.auto,
    host_cache: HostCacheGb = 0,
    gpu_price: Annotated[
        float | None, typer.Option(help="Dollars for a GPU-hour.", min=0, metavar="D")
    ] = None,
    throughput: Annotated[
        float | None,
        typer.Option(help="Output tokens a second of the whole server, if known.", min=0, metavar="T"),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Print a documented command and m3agent's changes to it; `list` prints all names.",
            metavar="NAME|list",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan how to serve M3 on given GPUs: checkpoint, parallelism, memory, cost, and known problems.

    Exit codes: 0 there is a plan; 2 no plan for the GPUs named, or wrong use; 3 no plan for this machine's GPUs.
    """
    with faults():
        if recipe is not None:
            _print_recipe(recipe, context, vision=vision, as_json=as_json)
            return
        from m3agent.serving.plan.draft import DraftUse
        from m3agent.serving.plan.gpus import parse_gpus
        from m3agent.serving.plan.host_cache import GIGABYTE
        from m3agent.serving.plan.known_issues import EngineKind
        from m3agent.serving.plan.memory_model import NATIVE_CONTEXT, Precision
        from m3agent.serving.plan.planner import HardwarePrices, PlanRequest

        try:
            fleet = parse_gpus(gpus) if gpus is not None else _here()
            wish = PlanRequest(
                context=NATIVE_CONTEXT if context is None else context,
                concurrency=concurrency,
                typical=typical,
                precision=None if precision is None else Precision(precision.value),
                engine=None if engine is None else EngineKind(engine.value),
                vision=vision,
                draft_use=DraftUse(draft.value),
                host_cache=host_cache * GIGABYTE,
            )
            prices = HardwarePrices(gpu_price, throughput)
        except ValueError as error:
            raise UsageError(str(error)) from None
        raise typer.Exit(_plan(fleet, wish, prices, local=gpus is None, as_json=as_json))


def _plan(fleet: Fleet, wish: PlanRequest, prices: HardwarePrices, *, local: bool, as_json: bool) -> int:
    from m3agent.serving.plan.planner import plans, refusals

    found, refused = plans(fleet, wish, prices), refusals(fleet, wish)
    if as_json:
        _print_json(fleet, wish, found, refused)
    elif found:
        rows = [_row(number, plan) for number, plan in enumerate(found[:SHOWN], start=1)]
        print_text(columns([COLUMNS, *rows]), end="")
        print_text(plan_details(found[0]), end="")
    if found:
        return 0
    fault = EnvironmentFault if local else UsageError
    raise fault(refusal(fleet, wish, refused))


def _here() -> Fleet:
    from m3agent.serving.plan.detect import DetectionError, detect

    try:
        detected = detect(os.environ)
    except DetectionError as error:
        raise EnvironmentFault(str(error)) from None
    say(f"this machine has {detected.fleet}")
    for note in detected.notes:
        say(note)
    return detected.fleet


def _row(number: int, plan: Plan) -> tuple[str, ...]:
    from m3agent.agent.report import text
    from m3agent.serving.plan.gpus import gib

    return (
        str(number),
        plan.engine,
        plan.recipe,
        plan.precision,
        plan.gpus,
        f"{plan.tp}{' ep' if plan.ep else ''}",
        str(plan.dp),
        plan.kv_cache_dtype + (" index" if plan.index_dtype == "fp8" else ""),
        f"{plan.utilisation:g}",
        gib(plan.memory.weights),
        gib(plan.memory.kv),
        gib(plan.memory.kv_spare),
        f"{plan.concurrency:.1f}",
        text.price(plan.cost.dollars_per_hour),
    )


def plan_details(plan: Plan) -> str:
    """Describe the first plan, why it is the first, and its pitfalls."""
    import json

    from m3agent.agent.report import text
    from m3agent.serving.plan.gpus import gib

    memory, cost = plan.memory, plan.cost
    settings = (
        f"--max-model-len {plan.max_model_len} --max-num-batched-tokens {plan.max_num_batched_tokens} "
        f"--max-num-seqs {plan.max_num_seqs}{' --language-model-only' if plan.text_only else ''}"
    )
    spot = "" if cost.spot_dollars_per_hour is None else f", {text.price(cost.spot_dollars_per_hour)} spot"
    speed = f"{text.speed(cost.tokens_per_second)} tokens/s" if cost.tokens_per_second else "tokens/s unknown"
    known = {
        "checkpoint": plan.checkpoint or f"yours, in {plan.precision.upper()}",
        "engine": f"{plan.engine} {plan.versions}",
        "settings": settings if plan.engine == "vllm" else "",
        "draft": ""
        if plan.draft is None
        else f"{plan.draft.model}, {plan.draft_tokens} tokens at a time, attention {plan.draft_backend}",
        "overrides": json.dumps(plan.hf_overrides) if plan.hf_overrides else "",
        "environment": " ".join(f"{name}={value}" for name, value in plan.env.items()),
        "memory": f"of {gib(memory.total)} a GPU: {gib(memory.weights)} weights, {gib(memory.kv)} cache, "
        f"{gib(memory.other)} other, {gib(memory.outside_spare)} never requested",
        "cache": f"{plan.kv_tokens:,} tokens{' on each rank' if plan.dp > 1 else ''}, {plan.sequences} whole "
        f"sequence{'' if plan.sequences == 1 else 's'} at a time",
        "cost": f"{text.price(cost.dollars_per_hour)} an hour ({cost.price_source}{spot}); {speed} ({cost.throughput_source}); "
        f"{text.price(cost.dollars_per_million)} for a million output tokens",
        "break-even": ""
        if cost.breakeven_tokens_per_second is None
        else f"{text.speed(cost.breakeven_tokens_per_second)} output tokens/s against the hosted API's "
        f"{text.price(cost.hosted_dollars_per_million)} a million, not counting its price for prompts",
    }
    lines = [f"{name:<12} {value}" for name, value in known.items() if value]
    lines += [f"{'why':<12} {reason}" for reason in plan.reasons]
    lines += [f"{'warning':<12} {warning}" for warning in plan.warnings]
    return "\n" + "".join(line + "\n" for line in lines)


def refusal(fleet: Fleet, wish: PlanRequest, refused: list[Refusal]) -> str:
    """Say why no plan fits, and what would fit."""
    from m3agent.serving.plan.planner import longest_context, smallest

    longest, enough = longest_context(fleet, wish), smallest(fleet, wish)
    advice = [
        *([f"lower --context to {longest:,}"] if longest else []),
        *([f"take {enough}"] if enough is not None and enough.count > fleet.count else []),
    ]
    reasons = [f"{refusal.precision.upper()}: {refusal.reason}" for refusal in refused]
    if not reasons:
        reasons = [f"no way to serve it with {wish.engine} is known"]
    elif not advice and not all(refusal.trap for refusal in refused):
        advice = ["take GPUs with more memory"]
    said = f"M3 cannot be served on {fleet} with {wish.context:,} tokens of context"
    return "\n  ".join([f"{said}: {' or '.join(advice)}" if advice else said, *reasons])


def _print_recipe(name: str, context: int | None, *, vision: bool, as_json: bool) -> None:
    """Print a documented recipe with the changes for agent work, or the names of all recipes."""
    import json

    from m3agent.serving.plan.recipe_json import recipe_json, recipe_list, recipe_text

    try:
        if name == "list":
            names = recipe_list()
            text = json.dumps(names, indent=2) if as_json else "\n".join(names)
        elif as_json:
            text = json.dumps(recipe_json(name, context=context, vision=vision), indent=2)
        else:
            text = recipe_text(name, context=context, vision=vision).rstrip("\n")
    except ValueError as error:
        raise UsageError(str(error)) from None
    print_bytes(f"{text}\n".encode())


def _print_json(fleet: Fleet, wish: PlanRequest, found: list[Plan], refused: list[Refusal]) -> None:
    import dataclasses
    import json

    value = {
        "gpus": str(fleet),
        "wish": dataclasses.asdict(wish),
        "plans": [plan.json() for plan in found],
        "refusals": [dataclasses.asdict(refusal) for refusal in refused],
    }
    print_bytes(json.dumps(value, indent=2).encode() + b"\n")
