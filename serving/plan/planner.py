"""Plan how to serve M3: from GPUs and a wanted context to plans, best first, and to refusals with numbers.

The module only computes; it starts nothing. It considers every way to spread M3 over all of the GPUs or some
of them. So adding GPUs never makes a plan impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from packaging.version import Version

from m3agent.serving.client.models import known_model
from m3agent.serving.plan.draft import DRAFT_METHOD, DRAFT_TOKENS, FEW_STREAMS, Draft, draft_backend
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.plan.gpus import ARCHITECTURES, DOCUMENTED, Architecture, ArchitectureRow, Fleet, Vendor
from m3agent.serving.plan.host_cache import FIRST_WITH_DRAFT, RECOMPUTE
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.serving.plan.known_issues import KnownIssue, Rope, Setup, Severity, met, warned_versions
from m3agent.serving.plan.memory_model import (
    BLOCK,
    LONGEST_CONTEXT,
    M3,
    NATIVE_CONTEXT,
    TOTAL_PARAMETERS,
    Batch,
    GpuMemory,
    KvDtype,
    Split,
    gib,
    outside_bytes,
    possible_tp,
    room,
)
from m3agent.serving.plan.plan import PREFERRED, Cost, HardwarePrices, Plan, PlanRequest, Profile
from m3agent.serving.plan.remarks import remarks as remarks_on
from m3agent.serving.plan.speed import seconds_between, source

_SGLANG_SHARE = 0.8  # --mem-fraction-static of its recipe: weights and KV cache, without activations
_TRTLLM_SHARE = 0.9  # its default: share of the memory that weights and activations leave free
_MSA_SHARE = 0.94  # the same in the recipe for one node


@dataclass(frozen=True)
class Refusal:
    """Why a precision cannot be served."""

    precision: Precision
    reason: str
    tp: int
    """Tensor-parallel size of the layout that came nearest."""
    weights: int
    other: int
    allowed: int
    lacking: int
    """Bytes of KV cache that are missing on each GPU."""
    kv_tokens: int
    """Longest context that the cache would hold, in tokens; 0 if not even the weights fit."""
    trap: str | None = None
    """Name of the trap that forbids the layout; None if memory is the reason."""


def plans(fleet: Fleet, wish: PlanRequest, prices: HardwarePrices | None = None) -> list[Plan]:
    """Return all plans that hold one sequence as long as the context, best first; empty if there is none.

    Plans that hold the wanted number of sequences come first; without one, those that hold the most. Then come plans
    with a memory reserve. Then the order is engine, number of nodes, precision, and simplicity: no fp8 cache, fewer copies of the attention,
    more GPUs. Of plans that differ only in cache, draft and memory settings the result contains the best.
    """
    prices = prices or HardwarePrices()
    best: dict[tuple[object, ...], Plan] = {}
    drafting: dict[tuple[object, ...], Plan] = {}
    only_advised = wish.draft_use is DraftUse.AUTO and not wish.draft_here
    for candidate in _candidates(fleet, wish):
        if not candidate.fits:
            continue
        kind = candidate.kind
        if candidate.draft is not None:
            if candidate.enough and not candidate.tight:
                drafting[kind] = min(candidate, drafting.get(kind, candidate), key=lambda plan: plan.rank)
            if only_advised:
                continue
        if kind not in best or candidate.rank < best[kind].rank:
            best[kind] = candidate
    found = sorted(best.values(), key=lambda plan: plan.rank)
    result = []
    for plan in found:
        with_draft = drafting.get(plan.kind)
        better = [_better_than(plan, found[1])] if plan is found[0] and len(found) > 1 else []
        remarks = remarks_on(plan, with_draft, _PROFILES[0])
        result.append(
            replace(
                plan,
                cost=_cost(plan, prices),
                reasons=(*better, *remarks["reason"]),
                warnings=(*remarks["warning"], *_known_issues(plan)),
                advice=(*remarks["advice"], *_several(plan, found)),
            )
        )
    return result


def _known_issues(plan: Plan) -> list[str]:
    """Return the known issues to warn of: those that always apply, then those of some versions that may serve the plan."""
    installed = plan.wish.version if plan.engine is EngineKind.VLLM else None
    versions = f"=={installed}" if installed else plan.versions
    return [trap.sentence for trap in met(plan, Severity.WARN)] + [
        f"with {ENGINES[plan.engine].title} {affected}: {trap.sentence}"
        for affected, trap in warned_versions(plan, versions)
    ]


def refusals(fleet: Fleet, wish: PlanRequest) -> list[Refusal]:
    """Return one refusal for each precision without a plan, in the order of preference."""
    closest: dict[Precision, Plan] = {}
    served: set[Precision] = set()
    for candidate in _candidates(fleet, wish):
        if candidate.fits:
            served.add(candidate.precision)
        nearest = closest.get(candidate.precision)
        if nearest is None or candidate.closeness > nearest.closeness:
            closest[candidate.precision] = candidate
    return [_refusal(nearest) for precision, nearest in closest.items() if precision not in served]


def smallest(fleet: Fleet, wish: PlanRequest) -> Fleet | None:
    """Return the fewest GPUs of this kind that serve the wish: 1, 2, 4, 8 or 16; None if 16 are not enough.

    All of them are used: an engine that needs two machines and four GPUs of each gets no machines of eight.
    """
    for fewest in map(fleet.of, (1, 2, 4, 8, 16)):
        enough = [plan for plan in plans(fewest, wish) if plan.sequences >= wish.concurrency]
        if enough:
            least = min(enough, key=lambda plan: (plan.count, plan.nodes))
            return replace(fewest, per_node=least.count // least.nodes, nodes=least.nodes)
    return None


def nearest(wish: PlanRequest) -> list[Fleet]:
    """Return the fewest GPUs of each documented kind that serve the wish, those with the least memory in all first.

    Of kinds with equal memory the result contains one.
    """
    fleets = [enough for gpu in DOCUMENTED if (enough := smallest(Fleet(gpu, 1), wish)) is not None]
    by_memory = {fleet.memory: fleet for fleet in reversed(fleets)}
    return [by_memory[memory] for memory in sorted(by_memory)]


def longest_context(fleet: Fleet, wish: PlanRequest, sequences: int = 1) -> int:
    """Return the longest context in tokens of which any plan for these GPUs holds `sequences`; 0 if there is no plan.

    The wish's own context and typical length do not matter.
    """
    # Binary search, because the memory left for the KV cache depends slightly on the context itself.
    low, high = 0, LONGEST_CONTEXT // BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        ways = plans(fleet, replace(wish, context=middle * BLOCK, typical=None))
        if any(plan.sequences >= sequences for plan in ways):
            low = middle
        else:
            high = middle - 1
    return low * BLOCK


_PROFILES = (Profile(False, 0.92, 8192, 8), Profile(True, 0.965, 4096, 2))


def _better_than(plan: Plan, other: Plan) -> str:
    """Say why a plan comes before another: the first part of `rank` in which they differ."""
    reasons = (
        "it holds more of the sequences that were asked for",
        "it leaves more memory in reserve",
        f"{plan.engine} is preferred to {other.engine}",
        "it needs one machine only",
        f"{plan.precision} weights are preferred to {other.precision} on these GPUs",
        "its KV cache is in bf16, not in fp8",
        "its index keys are in bf16, not in fp8",
        f"it has fewer copies of the attention ({plan.dp}, not {other.dp})",
        (
            f"it uses {plan.count} GPUs, not {other.count}, so its cache holds {plan.kv_tokens * plan.dp:,} tokens, not "
            f"{other.kv_tokens * other.dp:,}"
        ),
        "it has a draft",
    )
    at = next(
        (at for at, (one, two) in enumerate(zip(plan.rank, other.rank, strict=True)) if one != two), None
    )
    return "as good as the next plan" if at is None else f"better than the next plan: {reasons[at]}"


def _refusal(plan: Plan) -> Refusal:
    room = plan.room
    lacking = max(0, room.token * plan.context - room.kv)
    if plan.barred:
        trap = plan.barred[0]
        reason = trap.sentence
    elif room.kv <= 0:
        reason = (
            f"weights of {gib(room.weights)} a GPU and {gib(room.other)} for the engine's work exceed "
            f"the usable {gib(room.allowed)} by {gib(-room.kv)}, before any cache"
        )
    elif lacking:
        reason = (
            f"with {gib(room.weights)} of weights a GPU, the cache holds {room.tokens:,} of the "
            f"{plan.context:,} tokens wanted: {gib(lacking)} a GPU are missing"
        )
    else:
        reason = f"only {gib(plan.unasked)} a GPU would stay free, {gib(plan.outside)} are needed"
    return Refusal(
        plan.precision,
        reason,
        plan.tp,
        room.weights,
        room.other,
        room.allowed,
        lacking,
        room.tokens,
        plan.barred[0].name if plan.barred else None,
    )


def _several(plan: Plan, ordered: Sequence[Plan]) -> Iterator[str]:
    """Yield how several servers use all GPUs, if a part of them is enough for one: prefixes then stay in their server."""
    fleet = plan.fleet
    alone = [other for other in ordered if other.nodes == other.dp == 1 and other.count * 2 <= fleet.count]
    if not alone or (plan.nodes == 1 and plan.count * 2 > fleet.count):
        return
    each = max(alone, key=lambda other: (other.count, other.sequences))
    servers = fleet.count // each.count
    tight = ", with little reserve of memory" if each.tight else ""
    yield (
        f"{servers} servers of {each.gpus} behind a router use {servers * each.count} GPUs and hold {servers * each.sequences} "
        f"sequences{tight}: m3agent serve --servers HOST1,HOST2 --gpus {each.gpus} (docs/serving-ways.md)"
    )


@dataclass(frozen=True)
class _Way:
    """A combination of what the planner tries, without memory settings."""

    fleet: Fleet
    wish: PlanRequest
    engine: EngineKind
    precision: Precision
    split: Split
    nodes: int
    kv: KvDtype = KvDtype.BF16
    index: KvDtype = KvDtype.BF16
    draft: Draft | None = None

    @property
    def row(self) -> ArchitectureRow:
        """What the engines have for the GPUs."""
        return ARCHITECTURES[self.fleet.gpu.architecture]

    @property
    def msa(self) -> bool:
        """Whether TensorRT-LLM's msa kernels are planned: in its recipe for one node."""
        return self.engine is EngineKind.TRTLLM and self.nodes == 1

    @property
    def loaded_as(self) -> Precision:
        """The precision in which the weights lie in the GPUs' memory.

        CDNA3 has no units for MXFP8, and vLLM converts such weights to BF16 when it loads them (vLLM 0.24 to 0.33,
        VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD).
        """
        emulated = self.engine is EngineKind.VLLM and self.row.name is Architecture.CDNA3
        return Precision.BF16 if emulated and self.precision is Precision.MXFP8 else self.precision

    def caches(self) -> Iterator[tuple[KvDtype, KvDtype]]:
        """Yield the types of the cache that an engine has here, of keys and values and of index keys; for MXFP4 the published ones."""
        if self.msa:
            yield KvDtype.FP8, KvDtype.FP8
        elif self.precision is Precision.MXFP4 or not self.row.fp8_cache:
            yield KvDtype.BF16, KvDtype.BF16
        else:
            yield from ((kv, KvDtype.BF16) for kv in KvDtype)
            if self.engine is EngineKind.VLLM and self.row.has_fp8_index(self.wish.version):
                yield KvDtype.FP8, KvDtype.FP8

    def drafts(self) -> Iterator[Draft | None]:
        """Yield the draft, or None, or both; without being asked for, a draft is for few sequences on one rank."""
        wish, pays = self.wish, self.engine is EngineKind.VLLM and self.split.dp == self.nodes == 1
        if wish.host_cache and wish.version is not None and Version(wish.version) < Version(FIRST_WITH_DRAFT):
            pays = False
        if wish.draft_use is not DraftUse.ON:
            yield None
        auto = wish.draft_use is DraftUse.AUTO and pays and wish.concurrency <= FEW_STREAMS
        if wish.draft_use is DraftUse.ON or auto:
            yield wish.draft


def _ways(fleet: Fleet, wish: PlanRequest) -> Iterator[_Way]:
    """Yield every combination of engine, precision, layout, cache and draft."""
    row = ARCHITECTURES[fleet.gpu.architecture]
    for engine in PREFERRED if wish.engine is None else (wish.engine,):
        for precision in row.offered(engine) if wish.precision is None else (wish.precision,):
            for split, nodes in _splits(engine, fleet, precision):
                way = _Way(fleet, wish, engine, precision, split, nodes)
                for (kv, index), draft in product(way.caches(), way.drafts()):
                    yield replace(way, kv=kv, index=index, draft=draft)


def _candidates(fleet: Fleet, wish: PlanRequest) -> Iterator[Plan]:
    """Yield every way with all memory settings, whether or not it fits."""
    for way in _ways(fleet, wish):
        setup = _setup(way)
        barred = met(setup, Severity.REFUSE)
        for profile in _PROFILES if way.engine is EngineKind.VLLM else _PROFILES[:1]:
            yield _sized(way, setup, profile, barred)


def _splits(engine: EngineKind, fleet: Fleet, precision: Precision) -> Iterator[tuple[Split, int]]:
    """Yield every way to spread the model over these GPUs or some of them, with the number of nodes."""
    row = ARCHITECTURES[fleet.gpu.architecture]
    documented: Sequence[int] = ()  # tensor-parallel sizes of an engine's documents, on one node
    if engine is EngineKind.VLLM:
        yield from _vllm_splits(fleet)
    elif engine is EngineKind.SGLANG:
        documented = row.sglang_tp if precision in (row.sglang_precisions or (precision,)) else ()
    elif precision is Precision.NVFP4:
        documented = fleet.gpu.trtllm_tp
    elif row.name is Architecture.BLACKWELL and fleet.nodes >= 2 and fleet.per_node >= 4:
        yield Split(8, ep=True), 2
    ep = engine is EngineKind.SGLANG
    yield from ((Split(tp, ep=ep), 1) for tp in documented if tp <= fleet.per_node)


def _vllm_splits(fleet: Fleet) -> Iterator[tuple[Split, int]]:
    powers = [2**power for power in range(7)]
    for tp in filter(possible_tp, powers):
        if tp <= fleet.per_node:
            yield Split(tp), 1
        # Above TP4 KV heads are copies, so data-parallel ranks hold more tokens.
        ranks = powers[1:] if tp <= 4 else ()
        yield from ((Split(tp, dp, ep=True), 1) for dp in ranks if tp * dp <= fleet.per_node)
        for nodes in powers[1:]:
            if nodes <= fleet.nodes and tp % nodes == 0 and tp // nodes <= fleet.per_node:
                yield Split(tp), nodes


def _sized(way: _Way, setup: Setup, profile: Profile, barred: list[KnownIssue]) -> Plan:
    """Return a setup with memory settings and its memory."""
    fleet, wish, split, draft = way.fleet, way.wish, way.split, way.draft
    sequences = max(profile.sequences, wish.concurrency)
    drafted = DRAFT_TOKENS if draft is not None else 0
    # The sizes count tokens, and each sequence has the drafted tokens and one more in a step.
    graphs = tuple((1 + drafted) * 2**power for power in range(min(sequences, 64).bit_length()))
    batch = Batch(profile.batched, sequences, graphs, drafted)
    total, outside = fleet.gpu.usable_bytes, outside_bytes(split, batch, wish.context)
    utilisation = profile.utilisation
    if fleet.free_bytes is not None:  # other programs hold memory: the engine may only use the free part
        within = math.floor((fleet.free_bytes - outside) / total * 1000) / 1000
        utilisation = max(0.0, min(utilisation, within))
    more = (0, 0, 0)
    if draft is not None:
        activations = draft.activation_bytes(batch.tokens, split.tp)
        more = (draft.weight_bytes(split.tp), activations, draft.token_bytes(split.tp, way.kv))
    memory = room(
        total,
        utilisation,
        split=split,
        precision=way.loaded_as,
        kv=way.kv,
        index=way.index,
        batch=batch,
        positions=max(wish.context, NATIVE_CONTEXT),
        vision=wish.vision,
        shape=wish.shape,
        more=more,
    )
    if way.engine is not EngineKind.VLLM:
        utilisation, memory = _other_engine(way, memory, outside)
    known: dict[str, Any] = {**vars(setup), "max_num_seqs": sequences}
    return Plan(
        **known,
        fleet=fleet,
        wish=wish,
        ep=split.ep,
        utilisation=utilisation,
        tight=profile.tight,
        batch=batch,
        draft=draft,
        room=memory,
        barred=barred,
    )


def _other_engine(way: _Way, memory: GpuMemory, outside: int) -> tuple[float, GpuMemory]:
    """Return the share of memory for the engine's own option, and how its memory divides, both as documented, not measured."""
    if way.engine is EngineKind.SGLANG:
        kv = int(_SGLANG_SHARE * memory.total) - memory.weights
        share = _SGLANG_SHARE
    else:
        share = _MSA_SHARE if way.msa else _TRTLLM_SHARE
        kv = int(share * (memory.total - outside - memory.weights - memory.other))
    return share, replace(memory, allowed=memory.weights + memory.other + kv, kv=kv)


def _setup(way: _Way) -> Setup:
    gpu, wish, engine, draft = way.fleet.gpu, way.wish, way.engine, way.draft
    amd, vllm = gpu.vendor is Vendor.AMD, engine is EngineKind.VLLM
    rope = Rope.YARN if amd else Rope.EXTENDED
    called = ENGINES[engine]
    drafting: dict[str, Any] = {}
    if draft is not None:
        drafting = {
            "draft_method": DRAFT_METHOD,
            "draft_kv_heads": draft.kv_heads,
            "draft_backend": draft_backend(gpu.vendor),
        }
    return Setup(
        engine=engine,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        gpu=gpu.name,
        precision=way.precision,
        context=wish.context,
        kv_dtype=called.planned_fp8 if way.kv is KvDtype.FP8 else "auto",
        index_dtype=way.index,
        rope=rope if wish.context > NATIVE_CONTEXT else Rope.NATIVE,
        text_only=not wish.vision,
        encoder_parallel=wish.vision,
        attention_backend="TRITON_ATTN" if amd and vllm else None,
        moe_backend="emulation" if way.precision is Precision.MXFP4 else None,
        parser=called.planned_parser,
        nodes=way.nodes,
        tp=way.split.tp,
        dp=way.split.dp,
        trust_remote_code=engine is EngineKind.TRTLLM,
        assumed_parameters=TOTAL_PARAMETERS,
        **drafting,
        offload=called.planned_offload if wish.host_cache else None,
        load_failure=RECOMPUTE if wish.host_cache and vllm else None,
        msa=way.msa,
        env=_vllm_env(way) if vllm else {},
    )


def _vllm_env(way: _Way) -> dict[str, str]:
    env = dict(way.row.vllm_env)
    if env and way.precision is Precision.MXFP8:
        env |= way.row.vllm_mxfp8_env
    if way.fleet.gpu.vendor is Vendor.AMD and way.wish.context > NATIVE_CONTEXT:
        env["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return env


def _cost(plan: Plan, prices: HardwarePrices) -> Cost:
    gpu, given = plan.fleet.gpu, prices.gpu_hour is not None
    each = prices.gpu_hour if given else gpu.on_demand
    documented = "unknown" if each is None else f"on demand, {gpu.prices}"
    documented += f"; spot, {gpu.spot_prices}" if gpu.spot_prices else ""
    hour = None if each is None else each * plan.count
    stream, speed_source = None, "not measured"
    if plan.wish.shape == M3:  # the times hold for M3's widths only
        stream, speed_source = 1 / seconds_between(plan.sequence), source(plan.gpus, measured=plan.measured)
    known = known_model("MiniMax-M3")
    hosted = 0.0 if known is None else known.completion
    speed = stream if plan.measured else None
    if prices.tokens_per_second is not None:
        speed, speed_source = prices.tokens_per_second, "given"
    return Cost(
        dollars_per_hour=hour,
        spot_dollars_per_hour=None if gpu.spot is None or given else gpu.spot * plan.count,
        price_source="given" if given else documented,
        tokens_per_second=speed,
        throughput_source=speed_source,
        stream_tokens_per_second=stream,
        dollars_per_million=_millions_an_hour(hour, speed),
        hosted_dollars_per_million=hosted,
        breakeven_tokens_per_second=_millions_an_hour(hour, hosted),
    )


def _millions_an_hour(hour: float | None, divisor: float | None) -> float | None:
    """Divide the price of an hour by a speed, which gives the price of a million tokens, or by that price, which gives the speed."""
    return None if hour is None or not divisor else hour / (divisor * 3600) * 1e6
