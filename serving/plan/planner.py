"""Plan how to serve M3: from GPUs and a wanted context to plans, best first, and to refusals with numbers.

The module only computes; it starts nothing. It considers every way to spread M3 over all of the GPUs or some
of them. So adding GPUs never makes a plan impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import product
from typing import Any

from packaging.version import Version

from m3agent.serving.client.models import known_model
from m3agent.serving.plan.draft import (
    DRAFT_METHOD,
    DRAFT_TOKENS,
    FEW_STREAMS,
    GQA_DRAFT,
    Draft,
    draft_backend,
)
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.plan.gpus import ARCHITECTURES, DOCUMENTED, Architecture, ArchitectureRow, Fleet, Vendor
from m3agent.serving.plan.host_cache import FIRST_WITH_DRAFT, RECOMPUTE, HostCache
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.serving.plan.known_issues import (
    KnownIssue,
    Rope,
    Setup,
    Severity,
    met,
    needed_versions,
    overrides,
)
from m3agent.serving.plan.memory_model import (
    BLOCK,
    LONGEST_CONTEXT,
    M3,
    NATIVE_CONTEXT,
    TOTAL_PARAMETERS,
    Batch,
    GpuMemory,
    KvDtype,
    LayerCounts,
    Split,
    gib,
    outside_bytes,
    possible_tp,
    room,
)
from m3agent.serving.plan.recipe import CHECKPOINTS, nearest_recipe
from m3agent.serving.plan.remarks import remarks as remarks_on
from m3agent.serving.plan.speed import MEASURED_GPUS, MEASURED_TP, seconds_between, source
from m3agent.util.errors import UsageError

_ENGINES = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM)
"""Engines in order of preference: vLLM is measured, SGLang is not, TensorRT-LLM reuses prefixes only with msa, undocumented."""

_SGLANG_SHARE = 0.8  # --mem-fraction-static of its recipe: weights and KV cache, without activations
_TRTLLM_SHARE = 0.9  # its default: share of the memory that weights and activations leave free
_MSA_SHARE = 0.94  # the same in the recipe for one node


@dataclass(frozen=True)
class PlanRequest:
    """What the user wants from a server.

    Raises:
        UsageError: The context, the typical length or the concurrency is out of range.
    """

    context: int = NATIVE_CONTEXT
    concurrency: int = 1
    """Number of sequences of typical length that the cache must hold at the same time."""
    typical: int | None = None
    """Length in tokens of a typical sequence (90th percentile of the work); None means the whole context."""
    precision: Precision | None = None
    engine: EngineKind | None = None
    vision: bool = False
    shape: LayerCounts = M3
    """Layers of the checkpoint, if they differ from M3's."""
    draft_use: DraftUse = DraftUse.OFF
    """Whether the server uses a draft; "auto" means if it pays, nothing else gets worse, and it needs no
    download. A draft is a third party's, so only the user decides about its download.
    """
    draft: Draft = GQA_DRAFT
    draft_here: bool = False
    host_cache: int = 0
    """Size in bytes of a KV cache in each machine's memory; 0 for none."""
    version: str | None = None
    """Installed version of vLLM, whose features the plan may use; None allows those of any version."""

    def __post_init__(self) -> None:
        if not BLOCK <= self.context <= LONGEST_CONTEXT:
            raise UsageError(
                f"a context of {self.context:,} tokens is out of range: {BLOCK} to {LONGEST_CONTEXT:,}"
            )
        if not 1 <= self.sequence <= self.context:
            raise UsageError(f"a typical sequence of {self.typical:,} tokens is not within the context")
        if self.host_cache < 0:
            raise UsageError("a host cache has 1 GB or more")
        if self.concurrency < 1:
            raise UsageError(f"{self.concurrency} sequences at a time are out of range: give 1 or more")

    @property
    def sequence(self) -> int:
        """Length in tokens that the planner assumes for each sequence."""
        return self.context if self.typical is None else self.typical


@dataclass(frozen=True)
class HardwarePrices:
    """Prices in dollars, and the throughput to compute costs with.

    Raises:
        UsageError: A value is negative or not finite.
    """

    gpu_hour: float | None = None
    """Price of one GPU for an hour; None takes the on-demand price of the GPU table."""
    tokens_per_second: float | None = None
    """Output tokens a second of the whole server; None takes the measured value, if this very plan was
    measured.
    """

    def __post_init__(self) -> None:
        for value in (self.gpu_hour, self.tokens_per_second):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{value} is neither a price nor a number of tokens a second")


@dataclass(frozen=True)
class Cost:
    """Cost of a plan; None means unknown. Spot prices change often."""

    dollars_per_hour: float | None
    spot_dollars_per_hour: float | None
    """The same at spot prices."""
    price_source: str
    tokens_per_second: float | None
    """Output tokens a second: given, or of one stream if this very plan was measured."""
    throughput_source: str
    """Where `tokens_per_second` comes from, or else `stream_tokens_per_second`."""
    stream_tokens_per_second: float | None
    """Output tokens a second of one stream as long as the typical sequence; an estimate if this very plan was
    not measured.
    """
    dollars_per_million: float | None
    hosted_dollars_per_million: float
    """Price of a million output tokens at the hosted API."""
    breakeven_tokens_per_second: float | None
    """Output tokens a second above which the plan is cheaper than the hosted API."""


NO_COST = Cost(None, None, "unknown", None, "not measured", None, None, 0.0, None)
"""The cost of a plan that is not offered."""


@dataclass(frozen=True, kw_only=True)
class Memory(GpuMemory):
    """Memory of each GPU, in bytes."""

    kv_spare: int
    """Part of `kv` that one sequence as long as the context does not use."""
    free: int
    """Memory that the engine does not use."""
    outside_spare: int
    """Part of `free` that nothing in the estimate needs."""
    measured_total: bool
    """True if we measured `total` on this kind of GPU."""


@dataclass(frozen=True, kw_only=True)
class Plan(Setup):
    """One way to serve M3, with everything that a launcher needs: a setup, its memory, and why it has its place in the order."""

    fleet: Fleet
    """The GPUs that were asked for; the plan may use a part of them."""
    wish: PlanRequest
    ep: bool
    """True if each GPU has whole experts, False if it has a slice of each."""
    utilisation: float
    """Share of the memory for the engine.

    For vLLM a share of all memory; for SGLang the share of weights and cache, without activations; for TensorRT-LLM a share of
    what is left.
    """
    tight: bool
    """True if the memory settings leave little reserve."""
    batch: Batch
    draft: Draft | None
    room: GpuMemory
    predicted: bool = True
    """False if the memory of the checkpoint's widths is not known."""
    barred: Sequence[KnownIssue] = ()
    """Traps that forbid the plan; empty for one that is offered."""
    cost: Cost = NO_COST
    reasons: tuple[str, ...] = ()
    """Why the plan has this place in the order; one sentence each."""
    warnings: tuple[str, ...] = ()
    """What to know before the start; one sentence each."""
    advice: tuple[str, ...] = ()
    """What would make the server better, and needs the user's decision; one sentence each."""

    @property
    def setup(self) -> Setup:
        """The plan as the table of traps reads it."""
        return Setup(**{setting.name: getattr(self, setting.name) for setting in fields(Setup)})

    @property
    def recipe(self) -> str:
        """Name of the documented recipe that is nearest."""
        return nearest_recipe(self)

    @property
    def versions(self) -> str:
        """Allowed versions of the engine (PEP 440)."""
        return needed_versions(self)

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint on Hugging Face; None if none is known."""
        return CHECKPOINTS.get(self.precision)

    @property
    def draft_model(self) -> str | None:
        """Folder or name of the draft; None without one."""
        return None if self.draft is None else self.draft.model

    @property
    def measured(self) -> bool:
        """Whether the times of `speed` were measured with this very plan."""
        plan = (self.gpus, self.engine, self.precision, self.tp, self.draft, self.wish.shape)
        return plan == (MEASURED_GPUS, EngineKind.VLLM, Precision.MXFP8, MEASURED_TP, None, M3)

    @property
    def split(self) -> Split:
        """How the model is spread over the GPUs."""
        return Split(self.tp, self.dp, self.ep)

    @property
    def count(self) -> int:
        """Number of GPUs in the plan."""
        return self.tp * self.dp

    @property
    def gpus(self) -> str:
        """The GPUs that the model is spread over, as `parse_gpus` reads them."""
        return str(Fleet(self.fleet.gpu, self.count // self.nodes, self.nodes))

    @property
    def sequence(self) -> int:
        """Length in tokens of a typical sequence."""
        return self.wish.sequence

    @property
    def fp8(self) -> bool:
        """True if keys and values are in fp8."""
        return self.kv_dtype.startswith("fp8")

    @property
    def hf_overrides(self) -> Mapping[str, object]:
        """Value of vLLM's `--hf-overrides`."""
        return {} if self.engine is EngineKind.TRTLLM else overrides(self.vendor, self.context)

    @property
    def kv_tokens(self) -> int:
        """Predicted KV cache capacity of each rank, in tokens; 0 if it cannot be predicted."""
        return self.room.tokens if self.predicted else 0

    @property
    def concurrency(self) -> float:
        """Typical sequences that all ranks together hold, as a fraction."""
        return self.dp * self.room.tokens / self.sequence

    @property
    def sequences(self) -> int:
        """Whole typical sequences that all ranks together hold; a sequence cannot be spread over two ranks."""
        return self.dp * (self.room.tokens // self.sequence)

    @property
    def enough(self) -> bool:
        """True if the plan holds the wanted number of sequences."""
        return self.sequences >= self.wish.concurrency

    @property
    def host_cache(self) -> HostCache | None:
        """KV cache in the machine's memory; None without one."""
        if not self.wish.host_cache:
            return None
        token = self.room.token * self.tp
        tokens = self.wish.host_cache * self.nodes // token
        return HostCache(
            bytes=self.wish.host_cache,
            token=token,
            tokens=tokens,
            pays_from=self.sequences + 1,
            sequences=max(self.sequences, tokens // self.sequence),
        )

    @property
    def outside(self) -> int:
        """Bytes that have to stay free on each GPU beyond the engine's memory."""
        return outside_bytes(self.split, self.batch, self.context)

    @property
    def unasked(self) -> int:
        """Free bytes on each GPU that the engine does not request."""
        total, free = self.room.total, self.fleet.free_bytes
        return (total if free is None else min(free, total)) - self.room.allowed

    @property
    def fits(self) -> bool:
        """True if no trap forbids the plan and the cache holds one sequence as long as the context."""
        return not self.barred and self.room.tokens >= self.context and self.unasked >= self.outside

    @property
    def memory(self) -> Memory:
        """Memory of each GPU."""
        room = self.room
        return Memory(
            **vars(room),
            kv_spare=room.kv - room.token * self.context,
            free=room.total - room.allowed,
            outside_spare=self.unasked - self.outside,
            measured_total=self.fleet.gpu.measured,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """What plans have in common that differ only in cache, draft and memory settings."""
        return self.engine, self.precision, self.split, self.nodes

    @property
    def rank(self) -> tuple[int | bool | float, ...]:
        """Sort key of plans; the smallest is the best."""
        offered = ARCHITECTURES[self.architecture].precisions
        precision = offered.index(self.precision) if self.precision in offered else len(offered)
        return (
            0 if self.enough else self.wish.concurrency - self.sequences,
            self.tight,
            _ENGINES.index(self.engine),
            self.nodes > 1,
            precision,
            self.fp8,
            self.index_dtype == KvDtype.FP8,
            self.dp,
            -self.count,
            self.draft is None,
        )

    @property
    def closeness(self) -> tuple[bool, int, int]:
        """How near it is to a plan that fits: first whether a trap forbids it, then the cache that it lacks."""
        return (not self.barred, self.room.kv - self.room.token * self.context, -self.count)

    def is_one_rank_of(self, fleet: Fleet) -> bool:
        """Return whether one rank uses all GPUs of a fleet of one machine, as each server behind the router must."""
        return self.dp == 1 and self.nodes == 1 and self.count == fleet.count

    def json(self) -> dict[str, object]:
        """Return the plan as JSON types."""
        values = {name: getattr(self, _FIELDS.get(name, name)) for name in _JSON}
        values |= {"max_num_batched_tokens": self.batch.tokens, "draft_tokens": self.batch.drafted}
        values |= {"cudagraph_capture_sizes": self.batch.graphs, "concurrency": round(self.concurrency, 2)}
        return {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in values.items()
        }


_JSON = (
    *("engine", "recipe", "versions", "checkpoint", "precision", "gpus", "tp", "ep", "dp", "nodes"),
    *("max_model_len", "sequence", "kv_cache_dtype", "index_dtype", "utilisation", "max_num_seqs"),
    *("block_size", "text_only", "encoder_parallel", "trust_remote_code", "rope", "hf_overrides", "env"),
    *("attention_backend", "moe_backend", "parser", "draft", "draft_backend", "host_cache", "memory"),
    *("kv_tokens", "sequences", "cost", "tight", "reasons", "warnings", "advice"),
)
_FIELDS = {"max_model_len": "context", "kv_cache_dtype": "kv_dtype"}
"""Fields of a plan that have another name in JSON."""


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
        traps = (trap.sentence for trap in met(plan, Severity.WARN))
        result.append(
            replace(
                plan,
                cost=_cost(plan, prices),
                reasons=(*better, *remarks["reason"]),
                warnings=(*remarks["warning"], *traps),
                advice=(*remarks["advice"], *_several(plan, found)),
            )
        )
    return result


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


@dataclass(frozen=True)
class Profile:
    """Memory settings of an engine. Both profiles were measured on four H200."""

    tight: bool
    utilisation: float
    batched: int
    """Tokens of one step."""
    sequences: int


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
    offered = ARCHITECTURES[fleet.gpu.architecture].precisions
    for engine in _ENGINES if wish.engine is None else (wish.engine,):
        for precision in offered if wish.precision is None else (wish.precision,):
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
        draft_method=None if draft is None else DRAFT_METHOD,
        draft_kv_heads=None if draft is None else draft.kv_heads,
        draft_backend=None if draft is None else draft_backend(gpu.vendor),
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
