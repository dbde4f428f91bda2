"""`m3agent plan`: list the ways to serve M3 on given GPUs, best first, or say why it cannot be served there."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from m3agent.cli.common import AsJson, Typical, argument, option, print_bytes, print_json, say
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.token_count import some_tokens

if TYPE_CHECKING:
    from m3agent.agent.ui.layout import Block
    from m3agent.serving.plan.gpus import Fleet, UnknownGpu
    from m3agent.serving.plan.plan import HardwarePrices, Plan, PlanRequest
    from m3agent.serving.plan.planner import Refusal

SHOWN = 8
"""Number of plans in the table; `--json` prints all."""
ORDER = (
    "Plans that hold all sequences asked for come first. Then count, in this order: a memory reserve, vLLM, one machine, the "
    "weights that suit the GPUs best, a 16-bit cache, fewer separate caches (DP), more GPUs."
)
"""Why the first plan is the best; docs/serving.md has the reasons."""
OTHER_PLANS = (
    "Give --engine, --precision, --gpus or a higher --concurrency: the plans that suit come first. `m3agent serve` takes the "
    "same options."
)
"""How to get another plan than the first."""
NEAREST = 4
"""Number of kinds of GPUs that a refusal names."""


Concurrency = Annotated[
    int, option("Sequences that the KV cache has to hold at a time.", "N", min=1, max=4096)
]
WeightPrecision = Annotated[Precision | None, option("Number format of the weights.")]
Drafting = Annotated[
    DraftUse,
    option(
        "--draft",
        "A small model proposes tokens and M3 verifies them; auto uses one that is on this machine, on downloads it.",
    ),
]
HostCacheGb = Annotated[
    int,
    option(
        "--host-cache",
        "Keep KV cache that leaves the GPUs in this many GB of each machine's memory; 0 for none.",
        "GB",
        min=0,
        max=100_000,
    ),
]
Vision = Annotated[bool, option("--vision", "Load the image encoder as well.")]


def plan(
    table: Annotated[
        str | None, argument("With --facts: only the rows of this table, or with this word.", "TABLE|WORD")
    ] = None,
    gpus: Annotated[
        str | None,
        option(
            "GPUs to plan for: 8xH200, or 2x4xGB200 for two nodes of four; by default this machine's.", "SPEC"
        ),
    ] = None,
    gpu_memory: Annotated[
        int | None,
        option("Memory of each GPU, for GPUs that m3agent does not know.", "GB", min=1, max=10_000),
    ] = None,
    agents: Annotated[
        int | None,
        option(
            "Plan for a team: this many agents at once, on the repository that --repository-tokens measures.",
            "N",
            min=1,
            max=1024,
        ),
    ] = None,
    repository_tokens: Annotated[
        int | None,
        option(
            "Tokens of the repository in a prompt, as `m3agent context --stats` counts them.",
            "T",
            parser=some_tokens,
        ),
    ] = None,
    context: Annotated[
        int | None,
        option(
            "Longest prompt and answer together, in tokens, like 512k or 1M; by default M3's own 524,288.",
            "N",
            parser=some_tokens,
        ),
    ] = None,
    concurrency: Concurrency = 1,
    typical: Typical = None,
    precision: WeightPrecision = None,
    engine: Annotated[EngineKind | None, option("Only plans for this engine.")] = None,
    vision: Vision = False,
    draft: Drafting = DraftUse.AUTO,
    host_cache: HostCacheGb = 0,
    gpu_price: Annotated[float | None, option("Dollars for a GPU-hour.", "D", min=0)] = None,
    throughput: Annotated[
        float | None, option("Output tokens a second of the whole server, if known.", "T", min=0)
    ] = None,
    recipe: Annotated[
        str | None,
        option(
            "Print a documented command and m3agent's changes to it; `list` prints all names.", "NAME|list"
        ),
    ] = None,
    facts: Annotated[
        bool, option("--facts", "Check m3agent's tables, and print their rows with values, sources and age.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan how to serve M3 on given GPUs: checkpoint, parallelism, memory, cost, and known problems.

    Exit codes: 0 there is a plan; 2 no plan for the GPUs named, or wrong use; 3 no plan for this machine's GPUs.
    """
    if (facts, table) != (False, None):
        _print_facts(table, given=facts, as_json=as_json)
        return
    if recipe is not None:
        _print_recipe(recipe, context, vision=vision, as_json=as_json)
        return
    from m3agent.serving.plan.gpus import UnknownGpu, parse_gpus
    from m3agent.serving.plan.host_cache import GIGABYTE
    from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
    from m3agent.serving.plan.plan import HardwarePrices, PlanRequest

    if (agents is None) != (repository_tokens is None):
        raise UsageError(
            "--agents and --repository-tokens belong together: give both (`m3agent context --stats` counts the tokens)"
        )
    if agents is not None:
        if (context, typical, concurrency) != (None, None, 1):
            raise UsageError("--agents decides --context, --concurrency and --typical: leave these out")
        if engine is EngineKind.TRTLLM and precision is not Precision.NVFP4:
            raise UsageError(
                "--agents is for servers that keep prefixes, and trtllm keeps them only with --precision nvfp4 on B200 or "
                "GB200: leave out --engine"
            )
    if gpus is None and gpu_memory is not None:
        raise UsageError("--gpu-memory is the memory of GPUs that --gpus names: give both")
    wish = PlanRequest(
        context=NATIVE_CONTEXT if context is None else context,
        concurrency=concurrency,
        typical=typical,
        precision=precision,
        engine=engine,
        vision=vision,
        draft_use=draft,
        host_cache=host_cache * GIGABYTE,
    )
    prices = HardwarePrices(gpu_price, throughput)
    try:
        fleet = _here() if gpus is None else parse_gpus(gpus, gpu_memory)
    except UnknownGpu as error:
        raise UsageError(unknown_gpu(error, wish)) from None
    if agents is not None and repository_tokens is not None:
        _team(fleet, wish, prices, agents, repository_tokens, local=gpus is None, as_json=as_json)
    else:
        _plan(fleet, wish, prices, local=gpus is None, as_json=as_json)


def _plan(fleet: Fleet, wish: PlanRequest, prices: HardwarePrices, *, local: bool, as_json: bool) -> None:
    from m3agent.serving.plan.planner import plans, refusals
    from m3agent.serving.plan.recipe import LICENCE

    ways = plans(fleet, wish, prices)
    refused = [] if ways and not as_json else refusals(fleet, wish)
    if as_json:
        print_json(
            {
                "gpus": str(fleet),
                "licence": LICENCE,
                "wish": dataclasses.asdict(wish),
                "plans": [plan.json() for plan in ways],
                "refusals": [dataclasses.asdict(refusal) for refusal in refused],
            }
        )
    elif ways:
        known = _serve_knows(fleet, local=local)
        _show(fleet, wish, ways, serve_options(str(fleet), wish, local=local) if known else None)
    if not ways:
        fault = EnvironmentFault if local else UsageError
        raise fault(refusal(fleet, wish, refused))


def _team(
    fleet: Fleet,
    wish: PlanRequest,
    prices: HardwarePrices,
    agents: int,
    repository: int,
    *,
    local: bool,
    as_json: bool,
) -> None:
    """Answer for a team: how many agents at once, how fast, at what cost, and what to add."""
    from m3agent.serving.plan.agents import session_tokens, team_plan

    wish = dataclasses.replace(wish, context=session_tokens(repository), concurrency=agents)
    answer = team_plan(fleet, wish, agents, repository, prices)
    if answer is None:
        fault = EnvironmentFault if local else UsageError
        raise fault(team_refusal(fleet, wish, repository))
    if as_json:
        from m3agent.serving.plan.recipe import LICENCE

        print_json({"gpus": str(fleet), "licence": LICENCE, **answer.json()})
        return
    from m3agent.agent.ui.agents_view import team_block
    from m3agent.agent.ui.layout import in_order
    from m3agent.agent.ui.plan_view import labelled

    added = answer.additions[0].options if answer.additions else ()
    served = dataclasses.replace(wish, host_cache=0 if added else wish.host_cache)
    next_steps: list[Block] = []
    if _serve_knows(fleet, local=local):
        options = serve_options(str(fleet), served, local=local)
        next_steps.append(labelled("next", shlex.join(["m3agent", "serve", *options, *added])))
        if answer.fewer:
            options = serve_options(answer.fewer, served, local=False)
            next_steps.append(labelled("fewer GPUs", shlex.join(["m3agent", "serve", *options])))
    else:
        next_steps.append(labelled("next", _by_recipe(answer.plan)))
    print_block(in_order(team_block(str(fleet), answer), *next_steps))


def _show(fleet: Fleet, wish: PlanRequest, ways: list[Plan], options: Sequence[str] | None) -> None:
    from rich.text import Text

    from m3agent.agent.ui.layout import in_order
    from m3agent.agent.ui.plan_view import described, labelled, overview, paragraph

    if options is None:
        step = _by_recipe(ways[0])
    else:
        step = f"{shlex.join(['m3agent', 'serve', *options])}\nWith --dry-run it only shows what it starts."
    several = f"{len(ways)} plans, the best first" if len(ways) > 1 else "one plan"
    if len(ways) > SHOWN:
        several = f"the best {SHOWN} of {len(ways)} plans (--json prints all)"
    at_once = "a sequence" if wish.concurrency == 1 else f"{wish.concurrency} sequences"
    head = f"M3 on {fleet}, {at_once} of {wish.sequence:,} tokens: {several}"
    print_block(
        in_order(
            paragraph(Text(head, "bold")),
            paragraph(Text()),
            overview(ways[:SHOWN]),
            paragraph(Text()),
            paragraph(Text("Plan 1", "bold")),
            described(ways[0]),
            *([labelled("order", ORDER)] if len(ways) > 1 else []),
            *([labelled("other plans", OTHER_PLANS)] if len(ways) > 1 and options is not None else []),
            labelled("next", step),
        )
    )


def _by_recipe(plan: Plan) -> str:
    """Return the next step for GPUs that `serve` does not know."""
    return f"m3agent plan --recipe {plan.recipe}\nAdapt the command that it prints: `m3agent serve` has no --gpu-memory."


def _serve_knows(fleet: Fleet, *, local: bool) -> bool:
    """Return whether `serve` would plan with the same memory: it has no --gpu-memory."""
    from m3agent.serving.plan.gpus import GPUS

    return local or GPUS.get(fleet.gpu.name) == fleet.gpu


def serve_options(gpus: str, wish: PlanRequest, *, local: bool) -> list[str]:
    """Return the options of `m3agent serve` that ask for the same plan."""
    from m3agent.serving.plan.host_cache import GIGABYTE
    from m3agent.serving.plan.memory_model import NATIVE_CONTEXT

    given = {
        "--gpus": None if local else gpus,
        "--context": None if wish.context == NATIVE_CONTEXT else wish.context,
        "--concurrency": None if wish.concurrency == 1 else wish.concurrency,
        "--typical": wish.typical,
        "--precision": wish.precision,
        "--engine": wish.engine,
        "--draft": None if wish.draft_use is DraftUse.AUTO else wish.draft_use,
        "--host-cache": wish.host_cache // GIGABYTE or None,
    }
    options = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    return [*options, *(["--vision"] if wish.vision else [])]


def print_block(block: Block) -> None:
    """Print lines to standard output: in colours and as wide as a terminal, or plain to a file or a pipe."""
    from rich.text import Text

    from m3agent.agent.ui.result import print_result
    from m3agent.util.sanitize import columns_of

    terminal = columns_of(sys.stdout)
    lines = block(max(1, terminal - 1) if terminal else None)
    for line in lines:
        line.rstrip()
    print_result(Text("\n").join(lines).append("\n"))


def _here() -> Fleet:
    from m3agent.serving.plan.detect import detect

    detected = detect(os.environ)
    say(f"this machine has {detected.fleet}")
    for note in detected.notes:
        say(note)
    return detected.fleet


def refusal(fleet: Fleet, wish: PlanRequest, refused: list[Refusal]) -> str:
    """Say why no plan fits, and what would fit."""
    from m3agent.serving.plan.planner import longest_context, nearest, smallest

    longest, enough = longest_context(fleet, wish, wish.concurrency), smallest(fleet, wish)
    advice = [f"lower --context to {longest:,}"] if longest else []
    advice += _other_ways(fleet, wish)
    if enough is not None and (enough.count > fleet.count or enough.nodes > fleet.nodes):
        advice.append(f"take {enough}")
    if enough is None and not refused and (kinds := nearest(wish)[:NEAREST]):
        advice.append(f"take {' or '.join(map(str, kinds))}")
    sentences = [f"M3 cannot be served on {fleet} with {wish.context:,} tokens of context"]
    if advice:
        sentences[0] += f": {_either(advice)}"
    if not refused:
        sentences.append(f"no way to serve it with {wish.engine} and these options on {fleet} is known")
    sentences += map(_reason, refused)
    if not advice and not all(refusal.trap for refusal in refused):
        sentences.append(needed(wish))
    return ". ".join(sentences)


def _either(ways: list[str]) -> str:
    return ", ".join([*ways[:-1], f"or {ways[-1]}"]) if len(ways) > 2 else " or ".join(ways)


def _other_ways(fleet: Fleet, wish: PlanRequest) -> list[str]:
    """Return the options to add or to leave out, so that these GPUs serve M3 although they do not with those given."""
    from m3agent.serving.plan.planner import plans
    from m3agent.serving.plan.recipe import CHECKPOINTS

    ways: list[str] = []
    for precision in CHECKPOINTS if wish.precision is None else ():
        if served := plans(fleet, dataclasses.replace(wish, precision=precision)):
            ways.append(f"add --precision {precision} ({served[0].checkpoint})")
    if wish.engine is None:
        return ways
    open_wish = dataclasses.replace(wish, engine=None)
    if served := plans(fleet, open_wish):
        ways.append(f"leave out --engine ({served[0].engine} serves it on {fleet})")
    elif wish.precision and (served := plans(fleet, dataclasses.replace(open_wish, precision=None))):
        ways.append(
            f"leave out --engine and --precision ({served[0].engine} serves it on {fleet} with {served[0].precision})"
        )
    return ways


def team_refusal(fleet: Fleet, wish: PlanRequest, repository: int) -> str:
    """Say why these GPUs serve not even one agent of a team, and what serves all of them."""
    from m3agent.serving.plan.planner import nearest, refusals, smallest

    agents = f"{wish.concurrency} agents" if wish.concurrency > 1 else "an agent"
    enough = smallest(fleet, wish)
    fleets = [enough] if enough is not None else nearest(wish)[:NEAREST]
    if fleets:
        advice = f"take {' or '.join(map(str, fleets))}, enough for {agents}"
    elif some := smallest(fleet, dataclasses.replace(wish, concurrency=1)):
        advice = (
            f"no 16 GPUs of a kind keep the sessions of {agents}; `m3agent plan --gpus {some} --agents {wish.concurrency} "
            f"--repository-tokens {repository}` says what to add"
        )
    else:
        advice = needed(wish)
    head = f"M3 cannot be served on {fleet} with the {wish.context:,} tokens of context that an agent needs: {advice}"
    return ". ".join([head, *(_reason(refusal) for refusal in refusals(fleet, wish))])


def _reason(refusal: Refusal) -> str:
    return f"{refusal.precision.upper()}: {refusal.reason}"


def unknown_gpu(error: UnknownGpu, wish: PlanRequest) -> str:
    """Say what to give instead of a GPU that is not a known one; and what M3 needs, unless it is a slip of the pen."""
    given = "For another GPU, give its memory in GB with --gpu-memory"
    return f"{error} {given}" if error.near else f"{error}. {given}. {needed(wish)}"


def needed(wish: PlanRequest) -> str:
    """Say what M3 needs at least, the GPUs with the least memory that have it, and the way without GPUs."""
    from m3agent.serving.plan.memory_model import GIB
    from m3agent.serving.plan.planner import nearest

    hosted = "a hosted API (`m3agent fix --endpoint URL`)"
    fleets = nearest(wish)
    if not fleets:
        return f"No known GPUs serve this, not even 16 of a kind: lower --context, or use {hosted}"
    named = [f"{fleet} ({fleet.memory / GIB:,.0f} GiB)" for fleet in fleets[:NEAREST]]
    held = (
        f"{wish.context:,} tokens of context"
        if wish.concurrency == 1
        else f"{wish.concurrency} sequences of {wish.sequence:,} tokens"
    )
    return (
        f"M3 needs at least {fleets[0].memory / GIB:,.0f} GiB of GPU memory for {held}; nearest "
        f"that fits: {', '.join(named)}; or {hosted}"
    )


def _print_facts(table: str | None, *, given: bool, as_json: bool) -> None:
    from m3agent.cli.facts import print_facts

    if not given:
        raise UsageError(f"not expected here: {table}; name GPUs with --gpus, a table with --facts")
    print_facts(table, as_json=as_json)


def _print_recipe(name: str, context: int | None, *, vision: bool, as_json: bool) -> None:
    """Print a documented recipe with the changes for agent work, or the names of all recipes."""
    from m3agent.serving.plan.overlay import recipe_json, recipe_text
    from m3agent.serving.plan.recipe import RECIPES

    names = [known.name for known in RECIPES]
    if as_json:
        print_json(names if name == "list" else recipe_json(name, context=context, vision=vision))
    elif name == "list":
        print_bytes("".join(f"{known}\n" for known in names).encode())
    else:
        print_bytes(recipe_text(name, context=context, vision=vision).encode())
