"""Plan how to serve M3: from GPUs and a wanted context to plans, best first, and to refusals with numbers.

The module only computes; it starts nothing. It considers every way to spread M3 over all of the GPUs or some
of them. So adding GPUs never makes a plan impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from packaging.version import Version

from m3agent.serving.client.prices import HOSTED
from m3agent.serving.plan.draft import (
    DRAFT_METHOD,
    DRAFT_TOKENS,
    FEW_STREAMS,
    GQA_DRAFT,
    Draft,
    DraftUse,
    draft_backend,
)
from m3agent.serving.plan.gpus import (
    DOCUMENTED,
    GIVEN,
    PRICES_OF,
    UNDOCUMENTED,
    Architecture,
    Fleet,
    Vendor,
    gib,
)
from m3agent.serving.plan.host_cache import (
    FIRST_WITH_DRAFT,
    GIGABYTE,
    HICACHE,
    NATIVE,
    RECOMPUTE,
    HostCache,
    host_cache,
)
from m3agent.serving.plan.known_issues import (
    FIRST_FP8_INDEX,
    FIRST_NVFP4,
    FIRST_UNDOCUMENTED,
    EngineKind,
    KnownIssue,
    Rope,
    Setup,
    Severity,
    index_fp8_works,
    met,
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
    Precision,
    Split,
    kv_bytes_per_token,
    outside_bytes,
    possible_tp,
    room,
)
from m3agent.serving.plan.speed import seconds_between, source, was_measured
from m3agent.serving.plan.window import overrides

ERROR = 0.03
"""Relative error assumed for the predicted KV cache capacity; the three measured runs are within 0.2%."""

_VLLM_OFF_BLACKWELL = ">=0.24,!=0.25.*,!=0.26.*,!=0.27.0"
_VERSIONS = {EngineKind.VLLM: ">=0.24", EngineKind.SGLANG: ">=0.5.23", EngineKind.TRTLLM: ">=1.3.0rc20"}
_MSA_VERSIONS = ">=1.3.0rc23.post1"
_MSA_GPUS = ("B200", "GB200")
"""GPUs of SM100, for which TensorRT-LLM has msa kernels."""

_OFFLOADS = {EngineKind.VLLM: NATIVE, EngineKind.SGLANG: HICACHE, EngineKind.TRTLLM: "host_cache_size"}

_CHECKPOINTS = {
    Precision.NVFP4: "nvidia/MiniMax-M3-NVFP4",
    Precision.BF16: "MiniMaxAI/MiniMax-M3",
    Precision.MXFP8: "MiniMaxAI/MiniMax-M3-MXFP8",
    Precision.MXFP4: "amd/MiniMax-M3-MXFP4",
}
"""Published checkpoints by precision. For other precisions we know none: the user brings one."""

OFFERED = {
    Architecture.AMPERE: (Precision.MXFP8,),
    Architecture.BLACKWELL_RTX: (Precision.NVFP4,),
    Architecture.HOPPER: (Precision.MXFP8, Precision.BF16),
    Architecture.BLACKWELL: (Precision.MXFP8, Precision.BF16),
    Architecture.CDNA4: (Precision.MXFP8, Precision.BF16, Precision.MXFP4),
    Architecture.CDNA3: (Precision.BF16,),
}
"""Precisions to try if the user names none, in order of preference.

MXFP8 halves the weights compared with BF16, except on CDNA3 (`_loaded_as`).
"""

_ENGINES = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM)
"""Engines in order of preference: vLLM is measured, SGLang is not, TensorRT-LLM reuses prefixes only with msa, undocumented."""

_SGLANG_SHARE = 0.8  # --mem-fraction-static of its recipe: weights and KV cache, without activations
_TRTLLM_SHARE = 0.9  # its default: share of the memory that weights and activations leave free
_MSA_SHARE = 0.94  # the same in the recipe for one node


@dataclass(frozen=True)
class PlanRequest:
    """What the user wants from a server.

    Attributes:
        context: Context window in tokens.
        concurrency: Number of sequences of typical length that the cache must hold at the same time.
        typical: Length in tokens of a typical sequence (90th percentile of the work); None means the whole
            context.
        precision: Precision of the weights; None allows any.
        engine: Engine; None allows any.
        vision: Whether the server must accept images.
        shape: Layers of the checkpoint, if they differ from M3's.
        draft_use: Whether the server uses a draft; "auto" means if it pays, nothing else gets worse, and it needs no
            download. A draft is a third party's, so only the user decides about its download.
        draft: The draft.
        draft_here: Whether the draft is on the machine.
        host_cache: Size in bytes of a KV cache in each machine's memory; 0 for none.
        version: Installed version of vLLM, whose features the plan may use; None allows those of any version.

    Raises:
        ValueError: The context, the typical length or the concurrency is out of range.
    """

    context: int = NATIVE_CONTEXT
    concurrency: int = 1
    typical: int | None = None
    precision: Precision | None = None
    engine: EngineKind | None = None
    vision: bool = False
    shape: LayerCounts = M3
    draft_use: DraftUse = DraftUse.OFF
    draft: Draft = GQA_DRAFT
    draft_here: bool = False
    host_cache: int = 0
    version: str | None = None

    def __post_init__(self) -> None:
        if not BLOCK <= self.context <= LONGEST_CONTEXT:
            raise ValueError(
                f"a context of {self.context:,} tokens is out of range: {BLOCK} to {LONGEST_CONTEXT:,}"
            )
        if not 1 <= self.sequence <= self.context:
            raise ValueError(f"a typical sequence of {self.typical:,} tokens is not within the context")
        if self.host_cache < 0:
            raise ValueError("a host cache has 1 GB or more")
        if self.concurrency < 1:
            raise ValueError(f"{self.concurrency} sequences at a time are out of range: give 1 or more")

    @property
    def sequence(self) -> int:
        """Length in tokens that the planner assumes for each sequence."""
        return self.context if self.typical is None else self.typical


@dataclass(frozen=True)
class HardwarePrices:
    """Prices in dollars, and the throughput to compute costs with.

    Attributes:
        gpu_hour: Price of one GPU for an hour; None takes the on-demand price of the GPU table.
        tokens_per_second: Output tokens a second of the whole server; None takes the measured value, if this
            very plan was measured.
        hosted: Price of a million output tokens at the hosted API.

    Raises:
        ValueError: A value is negative or not finite.
    """

    gpu_hour: float | None = None
    tokens_per_second: float | None = None
    hosted: float = HOSTED["api.minimax.io"].completion

    def __post_init__(self) -> None:
        for value in (self.gpu_hour, self.tokens_per_second, self.hosted):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{value} is neither a price nor a number of tokens a second")


@dataclass(frozen=True)
class Cost:
    """Cost of a plan; None means unknown. Spot prices change often.

    Attributes:
        dollars_per_hour: Price of all GPUs for an hour.
        spot_dollars_per_hour: The same at spot prices.
        price_source: Where the price comes from.
        tokens_per_second: Output tokens a second: given, or of one stream if this very plan was measured.
        throughput_source: Where `tokens_per_second` comes from, or else `stream_tokens_per_second`.
        stream_tokens_per_second: Output tokens a second of one stream as long as the typical sequence; an estimate if
            this very plan was not measured.
        dollars_per_million: Dollars for a million output tokens.
        hosted_dollars_per_million: Price of a million output tokens at the hosted API.
        breakeven_tokens_per_second: Output tokens a second above which the plan is cheaper than the hosted
            API.
    """

    dollars_per_hour: float | None
    spot_dollars_per_hour: float | None
    price_source: str
    tokens_per_second: float | None
    throughput_source: str
    stream_tokens_per_second: float | None
    dollars_per_million: float | None
    hosted_dollars_per_million: float
    breakeven_tokens_per_second: float | None


@dataclass(frozen=True)
class Memory:
    """Memory of each GPU, in bytes.

    Attributes:
        total: Memory as a process sees it.
        allowed: Memory that the engine may use: the sum of `weights`, `other` and `kv`.
        weights: Weights.
        other: Activations, CUDA graphs and buffers.
        kv: KV cache.
        kv_spare: Part of `kv` that one sequence as long as the context does not use.
        free: Memory that the engine does not use.
        outside_spare: Part of `free` that nothing in the estimate needs.
        measured_total: True if we measured `total` on this kind of GPU.
    """

    total: int
    allowed: int
    weights: int
    other: int
    kv: int
    kv_spare: int
    free: int
    outside_spare: int
    measured_total: bool


@dataclass(frozen=True)
class Plan:
    """One way to serve M3, with everything that a launcher needs.

    Attributes:
        engine: The engine.
        recipe: Name of the documented recipe that is nearest.
        versions: Allowed versions of the engine (PEP 440).
        checkpoint: Checkpoint on Hugging Face; None if none is known.
        precision: Precision of the weights.
        gpus: The GPUs, as `parse_gpus` reads them.
        tp: Tensor-parallel size.
        ep: True if each GPU has whole experts, False if it has a slice of each.
        dp: Data-parallel size.
        nodes: Number of machines.
        max_model_len: Context window in tokens.
        sequence: Length in tokens of a typical sequence.
        kv_cache_dtype: Type of the KV cache as the engine's option spells it.
        index_dtype: Type of the index keys of sparse attention: bf16 or fp8.
        utilisation: Share of the memory for the engine. For vLLM a share of all memory; for SGLang the share
            of weights and cache, without activations; for TensorRT-LLM a share of what is left.
        max_num_batched_tokens: Tokens of one step.
        max_num_seqs: Sequences in one step.
        cudagraph_capture_sizes: Batch sizes of the captured CUDA graphs.
        block_size: Tokens of one block of the KV cache.
        text_only: True if the server accepts no images.
        encoder_parallel: True if the vision encoder runs data-parallel.
        trust_remote_code: True if the checkpoint's own code runs.
        rope: How positions beyond the native ones are configured.
        hf_overrides: Value of vLLM's `--hf-overrides`.
        env: Environment variables to set.
        attention_backend: Attention backend; None is the engine's choice.
        moe_backend: Backend of the experts; None is the engine's choice.
        parser: Name of the tool call parser.
        draft: Draft model; None without one.
        draft_tokens: Tokens that the draft proposes at a time; 0 without one.
        draft_backend: Attention backend of the draft; None without one.
        host_cache: KV cache in the machine's memory; None without one.
        memory: Memory of each GPU.
        kv_tokens: Predicted KV cache capacity of each rank, in tokens.
        concurrency: Typical sequences that all ranks together hold, as a fraction.
        sequences: Whole typical sequences that all ranks together hold.
        cost: Cost of the plan.
        tight: True if the memory settings leave little reserve.
        setup: The plan as the table of traps reads it.
        reasons: Why the plan has this place in the order; one sentence each.
        warnings: What to know before the start; one sentence each.
        advice: What would make the server better, and needs the user's decision; one sentence each.
    """

    engine: EngineKind
    recipe: str
    versions: str
    checkpoint: str | None
    precision: Precision
    gpus: str
    tp: int
    ep: bool
    dp: int
    nodes: int
    max_model_len: int
    sequence: int
    kv_cache_dtype: str
    index_dtype: str
    utilisation: float
    max_num_batched_tokens: int
    max_num_seqs: int
    cudagraph_capture_sizes: tuple[int, ...]
    block_size: int
    text_only: bool
    encoder_parallel: bool
    trust_remote_code: bool
    rope: Rope
    hf_overrides: Mapping[str, object]
    env: Mapping[str, str]
    attention_backend: str | None
    moe_backend: str | None
    parser: str
    draft: Draft | None
    draft_tokens: int
    draft_backend: str | None
    host_cache: HostCache | None
    memory: Memory
    kv_tokens: int
    concurrency: float
    sequences: int
    cost: Cost
    tight: bool
    setup: Setup
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of GPUs in the plan."""
        return self.tp * self.dp

    def is_one_rank_of(self, fleet: Fleet) -> bool:
        """Return whether one rank uses all GPUs of a fleet of one machine, as each server behind the router must."""
        return self.dp == 1 and self.nodes == 1 and self.count == fleet.count

    def json(self) -> dict[str, object]:
        """Return the plan as JSON types, without `setup`, which repeats other fields."""
        return {name: value for name, value in asdict(self).items() if name != "setup"}


@dataclass(frozen=True)
class Refusal:
    """Why a precision cannot be served.

    Attributes:
        precision: The precision.
        reason: The reason, with numbers.
        tp: Tensor-parallel size of the layout that came nearest.
        weights: Bytes of weights on each GPU.
        other: Bytes on each GPU for activations, CUDA graphs and buffers.
        allowed: Bytes on each GPU that the engine may use.
        lacking: Bytes of KV cache that are missing on each GPU.
        kv_tokens: Longest context that the cache would hold, in tokens; 0 if not even the weights fit.
        trap: Name of the trap that forbids the layout; None if memory is the reason.
    """

    precision: Precision
    reason: str
    tp: int
    weights: int
    other: int
    allowed: int
    lacking: int
    kv_tokens: int
    trap: str | None = None


def plans(fleet: Fleet, wish: PlanRequest, prices: HardwarePrices | None = None) -> list[Plan]:
    """Return all plans that hold one sequence as long as the context, best first; empty if there is none.

    Plans that hold the wanted number of sequences come first; without one, those that hold the most. Then come plans
    with a memory reserve. Then the order is engine, number of nodes, precision, and simplicity: no fp8 cache, fewer copies of the attention,
    more GPUs. Of plans that differ only in cache, draft and memory settings the result contains the best.
    """
    prices = prices or HardwarePrices()
    best: dict[tuple[object, ...], _Candidate] = {}
    drafting: dict[tuple[object, ...], _Candidate] = {}
    only_advised = wish.draft_use is DraftUse.AUTO and not wish.draft_here
    for candidate in _candidates(fleet, wish):
        if candidate.fits and not candidate.barred:
            kind = candidate.kind
            if candidate.draft is not None:
                if candidate.enough and not candidate.profile.tight:
                    drafting[kind] = min(candidate, drafting.get(kind, candidate), key=lambda one: one.rank)
                if only_advised:
                    continue
            if kind not in best or candidate.rank < best[kind].rank:
                best[kind] = candidate
    found = sorted(best.values(), key=lambda one: one.rank)
    result = [candidate.plan(prices, drafting.get(candidate.kind)) for candidate in found]
    if len(result) > 1:
        first = replace(result[0], reasons=(found[0].better_than(found[1]), *result[0].reasons))
        return [first, *result[1:]]
    return result


def refusals(fleet: Fleet, wish: PlanRequest) -> list[Refusal]:
    """Return one refusal for each precision without a plan, in the order of preference."""
    found: dict[Precision, _Candidate] = {}
    served: set[Precision] = set()
    for candidate in _candidates(fleet, wish):
        if candidate.fits and not candidate.barred:
            served.add(candidate.precision)
        nearest = found.get(candidate.precision)
        if nearest is None or candidate.closeness > nearest.closeness:
            found[candidate.precision] = candidate
    return [nearest.refusal() for precision, nearest in found.items() if precision not in served]


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
    found = [enough for gpu in DOCUMENTED if (enough := smallest(Fleet(gpu, 1), wish)) is not None]
    by_memory = {fleet.memory: fleet for fleet in reversed(found)}
    return [by_memory[memory] for memory in sorted(by_memory)]


def longest_context(fleet: Fleet, wish: PlanRequest, sequences: int = 1) -> int:
    """Return the longest context in tokens of which any plan for these GPUs holds `sequences`; 0 if there is no plan.

    The wish's own context and typical length do not matter.
    """
    # Binary search, because the memory left for the KV cache depends slightly on the context itself.
    low, high = 0, LONGEST_CONTEXT // BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        found = plans(fleet, replace(wish, context=middle * BLOCK, typical=None))
        if any(plan.sequences >= sequences for plan in found):
            low = middle
        else:
            high = middle - 1
    return low * BLOCK


@dataclass(frozen=True)
class _Profile:
    """Memory settings of an engine. Both profiles were measured on four H200.

    Attributes:
        tight: True if the settings leave little reserve.
        utilisation: Share of the memory for the engine.
        batched: Tokens of one step.
        sequences: Sequences in one step.
    """

    tight: bool
    utilisation: float
    batched: int
    sequences: int


_PROFILES = (_Profile(False, 0.92, 8192, 8), _Profile(True, 0.965, 4096, 2))


@dataclass(frozen=True)
class _CacheTypes:
    """Types of the numbers in the KV cache: of keys and values, and of the index keys."""

    kv: KvDtype
    index: KvDtype = KvDtype.BF16


@dataclass(frozen=True)
class _Candidate:
    """One combination of engine, precision, layout and memory settings, with its memory estimate."""

    fleet: Fleet
    wish: PlanRequest
    engine: EngineKind
    precision: Precision
    split: Split
    nodes: int
    cache: _CacheTypes
    draft: Draft | None
    profile: _Profile
    utilisation: float
    batch: Batch
    room: GpuMemory
    setup: Setup
    barred: list[KnownIssue] = field(default_factory=list)

    @property
    def kind(self) -> tuple[object, ...]:
        """What plans have in common that differ only in cache, draft and memory settings."""
        return self.engine, self.precision, self.split, self.nodes

    @property
    def used(self) -> Fleet:
        """The GPUs that the model is spread over."""
        return Fleet(self.fleet.gpu, self.split.gpus // self.nodes, self.nodes)

    @property
    def outside(self) -> int:
        """Bytes that have to stay free on each GPU beyond the engine's memory."""
        return outside_bytes(self.split, self.batch, self.wish.context)

    @property
    def unasked(self) -> int:
        """Free bytes on each GPU that the engine does not request."""
        free = self.room.total if self.fleet.free_bytes is None else self.fleet.free_bytes
        return min(free, self.room.total) - self.room.allowed

    @property
    def fits(self) -> bool:
        return self.room.tokens >= self.wish.context and self.unasked >= self.outside

    @property
    def concurrency(self) -> float:
        return self.split.dp * self.room.tokens / self.wish.sequence

    @property
    def sequences(self) -> int:
        """Whole typical sequences that fit; a sequence cannot be spread over two ranks."""
        return self.split.dp * (self.room.tokens // self.wish.sequence)

    @property
    def host(self) -> HostCache | None:
        """The host cache, or None."""
        if not self.wish.host_cache:
            return None
        return host_cache(
            self.wish.host_cache,
            token=self.room.token,
            ranks=self.split.tp,
            nodes=self.nodes,
            sequence=self.wish.sequence,
            kept=self.sequences,
        )

    @property
    def enough(self) -> bool:
        return self.sequences >= self.wish.concurrency

    @property
    def rank(self) -> tuple[int | bool | float, ...]:
        """Sort key of plans; the smallest is the best."""
        offered = OFFERED[self.fleet.gpu.architecture]
        precision = offered.index(self.precision) if self.precision in offered else len(offered)
        return (
            0 if self.enough else self.wish.concurrency - self.sequences,
            self.profile.tight,
            _ENGINES.index(self.engine),
            self.nodes > 1,
            precision,
            self.cache.kv is KvDtype.FP8,
            self.cache.index is KvDtype.FP8,
            self.split.dp,
            -self.split.gpus,
            self.draft is None,
        )

    def better_than(self, other: _Candidate) -> str:
        """Say why this candidate comes before another: the first part of `rank` in which they differ."""
        said = (
            "it holds more of the sequences that were asked for",
            "it leaves more memory in reserve",
            f"{self.engine} is preferred to {other.engine}",
            "it needs one machine only",
            f"{self.precision} weights are preferred to {other.precision} on these GPUs",
            "its KV cache is in bf16, not in fp8",
            "its index keys are in bf16, not in fp8",
            f"it has fewer copies of the attention ({self.split.dp}, not {other.split.dp})",
            (
                f"it uses {self.split.gpus} GPUs, not {other.split.gpus}, so its cache holds {self.concurrency:.1f} sequences, not "
                f"{other.concurrency:.1f}"
            ),
            "it has a draft",
        )
        at = next(
            (at for at, (one, two) in enumerate(zip(self.rank, other.rank, strict=True)) if one != two), None
        )
        return "as good as the next plan" if at is None else f"better than the next plan: {said[at]}"

    @property
    def closeness(self) -> tuple[bool, int, int]:
        """How near the candidate is to a plan: first whether a trap forbids it, then the cache that it lacks."""
        return (not self.barred, self.room.kv - self.room.token * self.wish.context, -self.split.gpus)

    def refusal(self) -> Refusal:
        lacking = max(0, self.room.token * self.wish.context - self.room.kv)
        if self.barred:
            trap = self.barred[0]
            reason = f"{trap.effect}; {trap.remedy} ({trap.source})"
        elif self.room.kv <= 0:
            reason = (
                f"weights of {gib(self.room.weights)} a GPU and {gib(self.room.other)} for the engine's work exceed "
                f"the usable {gib(self.room.allowed)} by {gib(-self.room.kv)}, before any cache"
            )
        elif lacking:
            reason = (
                f"with {gib(self.room.weights)} of weights a GPU, the cache holds {self.room.tokens:,} of the "
                f"{self.wish.context:,} tokens wanted: {gib(lacking)} a GPU are missing"
            )
        else:
            reason = f"only {gib(self.unasked)} a GPU would stay free, {gib(self.outside)} are needed"
        return Refusal(
            self.precision,
            reason,
            self.split.tp,
            self.room.weights,
            self.room.other,
            self.room.allowed,
            lacking,
            self.room.tokens,
            self.barred[0].name if self.barred else None,
        )

    def plan(self, prices: HardwarePrices, drafting: _Candidate | None) -> Plan:
        """Return the plan. `drafting` is the best candidate of this kind with a draft, if one fits."""
        room, wish = self.room, self.wish
        spare = room.kv - room.token * wish.context
        memory = Memory(
            room.total,
            room.allowed,
            room.weights,
            room.other,
            room.kv,
            spare,
            room.total - room.allowed,
            self.unasked - self.outside,
            self.fleet.gpu.measured,
        )
        return Plan(
            engine=self.engine,
            recipe=_recipe(self),
            versions=_versions(self),
            checkpoint=_CHECKPOINTS.get(self.precision),
            precision=self.precision,
            gpus=str(self.used),
            tp=self.split.tp,
            ep=self.split.ep,
            dp=self.split.dp,
            nodes=self.nodes,
            max_model_len=wish.context,
            sequence=wish.sequence,
            kv_cache_dtype=self.setup.kv_dtype,
            index_dtype=self.setup.index_dtype,
            utilisation=self.utilisation,
            max_num_batched_tokens=self.batch.tokens,
            max_num_seqs=self.batch.sequences,
            cudagraph_capture_sizes=self.batch.graphs,
            block_size=BLOCK,
            text_only=self.setup.text_only,
            encoder_parallel=self.setup.encoder_parallel,
            trust_remote_code=self.setup.trust_remote_code,
            rope=self.setup.rope,
            hf_overrides={}
            if self.engine is EngineKind.TRTLLM
            else overrides(self.fleet.gpu.vendor, wish.context),
            env=dict(self.setup.env),
            attention_backend=self.setup.attention_backend,
            moe_backend=self.setup.moe_backend,
            parser=str(self.setup.parser),
            draft=self.draft,
            draft_tokens=self.batch.drafted,
            draft_backend=self.setup.draft_backend,
            host_cache=self.host,
            memory=memory,
            kv_tokens=room.tokens,
            concurrency=round(self.concurrency, 2),
            sequences=self.sequences,
            cost=_cost(self, prices),
            tight=self.profile.tight,
            setup=self.setup,
            reasons=tuple(self.reasons(could_draft=wish.draft_here and drafting is not None)),
            warnings=tuple(self.warnings()),
            advice=tuple(self.advice(drafting)),
        )

    def reasons(self, *, could_draft: bool) -> Iterator[str]:
        """Yield why the plan has its place in the order."""
        room, wish = self.room, self.wish
        split = self.split
        over = "GPU" if split.tp == 1 else f"{split.tp} GPUs"
        over = f"{split.gpus} GPUs for the experts, over {over} for the rest" if split.dp > 1 else over
        yield (
            f"{self.precision.upper()} weights are {gib(room.weights)} a GPU over {over}; with {gib(room.other)} for the "
            f"engine's work {gib(room.kv)} are left for the cache: {room.tokens:,} tokens at {room.token:,} bytes"
        )
        yield (
            f"beside one sequence of {wish.context:,} tokens, the cache has room for {room.tokens - wish.context:,} more "
            f"({gib(room.kv - room.token * wish.context)} a GPU)"
        )
        if not self.enough:
            yield (
                f"it holds {self.sequences} of the {wish.concurrency} sequences of {wish.sequence:,} tokens wanted at "
                "a time; the others wait"
            )
        unfit = "the workload does not fit" if self.enough else "fewer sequences fit"
        if self.setup.msa:
            yield "fp8 cache and fp8 index keys, as in the recipe"
        elif self.cache.kv is KvDtype.FP8:
            yield f"fp8 cache: in bf16 {unfit} into the same memory"
        if self.cache.index is KvDtype.FP8 and not self.setup.msa:
            wider = kv_bytes_per_token(wish.shape, self.split.tp, self.cache.kv)
            yield (
                f"fp8 index keys: a token takes {room.token:,} bytes a GPU instead of {wider:,}; with bf16 index keys "
                f"{unfit} into the same memory"
            )
        if self.draft is not None:
            yield (
                f"a draft proposes {self.batch.drafted} tokens at a time and M3 verifies them: published gains for few "
                f"sequences are 1.4 to 2.4 times the speed; it takes {gib(self.draft.weight_bytes(self.split.tp))} a GPU "
                f"and {self.draft.token_bytes(self.split.tp, self.cache.kv):,} bytes a token"
            )
        if (host := self.host) is not None:
            yield (
                f"the host cache of {host.bytes / GIGABYTE:,.0f} GB holds {host.tokens:,} tokens at {host.token:,} bytes; it "
                f"pays from {host.pays_from} sequences of {wish.sequence:,} tokens at a time, and {host.sequences} keep "
                "their prefix"
            )
        if self.profile.tight:
            yield (
                f"memory use is set high (utilisation {self.utilisation:g}, {self.batch.tokens:,} tokens a step): with "
                f"{_PROFILES[0].utilisation:g} and {_PROFILES[0].batched:,} the workload does not fit"
            )
        if self.draft is None and could_draft and self.cache.kv is not KvDtype.FP8:
            yield (
                "no draft, because beside it the workload does not fit with a bf16 cache; a draft fits with an fp8 cache "
                "(--draft on)"
            )

    def advice(self, drafting: _Candidate | None) -> Iterator[str]:
        """Yield what would make the server better, and needs the user's decision."""
        wish = self.wish
        if drafting is None or drafting.draft is None or self.draft is not None or wish.draft_here:
            return
        fp8 = "an fp8 cache and " if drafting.cache.kv is not self.cache.kv else ""
        yield (
            f"a draft pays here: --draft on uses {fp8}{drafting.draft.model}, a third party's model, and downloads it; "
            f"published gains for few sequences are 1.4 to 2.4 times the speed, and {drafting.room.tokens:,} tokens of cache "
            "are left"
        )

    def warnings(self) -> Iterator[str]:
        """Yield what the user should know before the start."""
        wish = self.wish
        if self.split.gpus < self.fleet.count:
            yield f"{self.fleet.count - self.split.gpus} of the {self.fleet.count} GPUs stay unused"
        if self.room.tokens < self.wish.context * (1 + ERROR):
            safe = int(self.room.tokens / (1 + ERROR)) // BLOCK * BLOCK
            yield (
                f"narrow margin: the prediction is accurate to {ERROR:.0%} and less than that is spare; if the engine does "
                f"not start, a context of {safe:,} is safe"
            )
        gpu = self.fleet.gpu
        if not gpu.known:
            yield f"whether M3's kernels run on the {gpu.name} is unknown: the plan assumes a GPU like H200"
        if not gpu.measured and gpu.source != GIVEN:
            yield f"the memory of the {gpu.name} was not measured: {gpu.source}"
        if (host := self.host) is not None:
            if wish.concurrency < host.pays_from:
                yield (
                    f"the GPUs' cache holds {self.sequences} sequences and {wish.concurrency} were asked for, so the host "
                    "cache gains nothing: leave out --host-cache, or say the number with --concurrency"
                )
            elif host.sequences <= self.sequences:
                least = math.ceil((self.sequences + 1) * wish.sequence * host.token / self.nodes / GIGABYTE)
                yield (
                    f"the host cache holds {host.tokens // wish.sequence} sequences, the GPUs' cache {self.sequences}, and what the "
                    f"GPUs hold is in it too, so it gains nothing: give --host-cache {least} or more"
                )
            yield (
                f"each machine needs {host.bytes / GIGABYTE:,.0f} GB of memory that cannot be swapped out, as much room in "
                "its shared memory, and more for reading the checkpoint"
            )
        if self.precision in (Precision.NVFP4, Precision.INT4):
            unknown = (
                ""
                if self.precision in _CHECKPOINTS
                else f"no {self.precision.upper()} checkpoint is known, and "
            )
            yield f"{unknown}which layers of another {self.precision.upper()} checkpoint are in how many bits is assumed"
        if self.wish.vision:
            yield "the memory of the image encoder was measured for images of 578 tokens only; more is kept for larger ones"
        for trap in met(self.setup, Severity.WARN):
            yield f"{trap.effect}; {trap.remedy} ({trap.source})"


def _candidates(fleet: Fleet, wish: PlanRequest) -> Iterator[_Candidate]:
    offered = OFFERED[fleet.gpu.architecture] if wish.precision is None else (wish.precision,)
    for engine in _ENGINES if wish.engine is None else (wish.engine,):
        for precision in offered:
            for split, nodes in _splits(engine, fleet, precision):
                for cache in _cache_types(fleet, wish, engine, precision, msa=_msa(engine, nodes)):
                    for draft in _drafts(wish, engine, split, nodes):
                        for profile in _PROFILES if engine is EngineKind.VLLM else _PROFILES[:1]:
                            yield _candidate(
                                fleet, wish, engine, precision, split, nodes, cache, draft, profile
                            )


def _drafts(wish: PlanRequest, engine: EngineKind, split: Split, nodes: int) -> Iterator[Draft | None]:
    """Yield the draft, or None, or both; without being asked for, a draft is for few sequences on one rank."""
    pays = engine is EngineKind.VLLM and split.dp == nodes == 1 and wish.concurrency <= FEW_STREAMS
    if wish.host_cache and wish.version is not None and Version(wish.version) < Version(FIRST_WITH_DRAFT):
        pays = False
    if wish.draft_use is not DraftUse.ON:
        yield None
    if wish.draft_use is DraftUse.ON or (wish.draft_use is DraftUse.AUTO and pays):
        yield wish.draft


def _msa(engine: EngineKind, nodes: int) -> bool:
    """Return whether TensorRT-LLM's msa kernels are planned: in its recipe for one node."""
    return engine is EngineKind.TRTLLM and nodes == 1


def _cache_types(
    fleet: Fleet, wish: PlanRequest, engine: EngineKind, precision: Precision, *, msa: bool
) -> Iterator[_CacheTypes]:
    """Yield the types of the cache that an engine has on these GPUs; for MXFP4 those whose accuracy is published."""
    if msa:
        yield _CacheTypes(KvDtype.FP8, KvDtype.FP8)
        return
    if precision is Precision.MXFP4 or fleet.gpu.architecture is Architecture.AMPERE:
        yield _CacheTypes(KvDtype.BF16)
        return
    yield from (_CacheTypes(kv) for kv in KvDtype)
    if engine is EngineKind.VLLM and index_fp8_works(fleet.gpu.vendor, fleet.gpu.architecture, wish.version):
        yield _CacheTypes(KvDtype.FP8, KvDtype.FP8)


def _splits(engine: EngineKind, fleet: Fleet, precision: Precision) -> Iterator[tuple[Split, int]]:
    """Yield every way to spread the model over these GPUs or some of them, with the number of nodes."""
    if engine is EngineKind.SGLANG:
        # SGLang's cookbook for M3: TP8 on Hopper, and TP4 too on four B200 or B300.
        ways = {Architecture.BLACKWELL: (4, 8), Architecture.HOPPER: (8,)}.get(fleet.gpu.architecture, ())
        yield from ((Split(tp, ep=True), 1) for tp in ways if tp <= fleet.per_node)
        return
    if engine is EngineKind.TRTLLM and precision is Precision.NVFP4:
        if fleet.gpu.name in _MSA_GPUS:
            yield from ((Split(tp), 1) for tp in (4, 8) if tp <= fleet.per_node)
        return
    if engine is EngineKind.TRTLLM:
        if fleet.gpu.architecture is Architecture.BLACKWELL and fleet.nodes >= 2 and fleet.per_node >= 4:
            yield Split(8, ep=True), 2
        return
    powers = [2**power for power in range(7)]
    for tp in filter(possible_tp, powers):
        if tp <= fleet.per_node:
            yield Split(tp), 1
        for dp in powers[1:]:
            # Above TP4 KV heads are copies, so data-parallel ranks hold more tokens.
            if tp <= 4 and tp * dp <= fleet.per_node:
                yield Split(tp, dp, ep=True), 1
        for nodes in powers[1:]:
            if nodes <= fleet.nodes and tp % nodes == 0 and tp // nodes <= fleet.per_node:
                yield Split(tp), nodes


def _candidate(
    fleet: Fleet,
    wish: PlanRequest,
    engine: EngineKind,
    precision: Precision,
    split: Split,
    nodes: int,
    cache: _CacheTypes,
    draft: Draft | None,
    profile: _Profile,
) -> _Candidate:
    sequences = max(profile.sequences, wish.concurrency)
    drafted = DRAFT_TOKENS if draft is not None else 0
    # The sizes count tokens, and each sequence has the drafted tokens and one more in a step.
    graphs = tuple((1 + drafted) * 2**power for power in range(min(sequences, 64).bit_length()))
    batch = Batch(profile.batched, sequences, graphs, drafted)
    setup = _setup(fleet, wish, engine, precision, split, nodes, cache, draft, sequences)
    total, outside = fleet.gpu.usable_bytes, outside_bytes(split, batch, wish.context)
    utilisation = profile.utilisation
    if fleet.free_bytes is not None:  # other programs hold memory: the engine may only use the free part
        within = math.floor((fleet.free_bytes - outside) / total * 1000) / 1000
        utilisation = max(0.0, min(utilisation, within))
    found = room(
        total,
        utilisation,
        split=split,
        precision=_loaded_as(engine, fleet, precision),
        kv=cache.kv,
        index=cache.index,
        batch=batch,
        positions=max(wish.context, NATIVE_CONTEXT),
        vision=wish.vision,
        shape=wish.shape,
        more=(0, 0, 0)
        if draft is None
        else (
            draft.weight_bytes(split.tp),
            draft.activation_bytes(batch.tokens, split.tp),
            draft.token_bytes(split.tp, cache.kv),
        ),
    )
    if engine is not EngineKind.VLLM:
        utilisation, found = _other_engine(engine, found, outside, msa=_msa(engine, nodes))
    barred = met(setup, Severity.REFUSE)
    return _Candidate(
        fleet,
        wish,
        engine,
        precision,
        split,
        nodes,
        cache,
        draft,
        profile,
        utilisation,
        batch,
        found,
        setup,
        barred,
    )


def _loaded_as(engine: EngineKind, fleet: Fleet, precision: Precision) -> Precision:
    """Return the precision in which the weights lie in the GPUs' memory.

    CDNA3 has no units for MXFP8, and vLLM converts such weights to BF16 when it loads them (vLLM 0.24 to 0.33,
    VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD).
    """
    emulated = engine is EngineKind.VLLM and fleet.gpu.architecture is Architecture.CDNA3
    return Precision.BF16 if emulated and precision is Precision.MXFP8 else precision


def _other_engine(
    engine: EngineKind, found: GpuMemory, outside: int, *, msa: bool
) -> tuple[float, GpuMemory]:
    """Return the share of memory for the engine's own option, and how its memory divides.

    Both follow the engine's documentation; they are assumed, not measured.
    """
    if engine is EngineKind.SGLANG:
        kv = int(_SGLANG_SHARE * found.total) - found.weights
        share = _SGLANG_SHARE
    else:
        share = _MSA_SHARE if msa else _TRTLLM_SHARE
        kv = int(share * (found.total - outside - found.weights - found.other))
    return share, GpuMemory(
        found.total, found.weights + found.other + kv, found.weights, found.other, kv, found.token
    )


def _setup(
    fleet: Fleet,
    wish: PlanRequest,
    engine: EngineKind,
    precision: Precision,
    split: Split,
    nodes: int,
    cache: _CacheTypes,
    draft: Draft | None,
    sequences: int,
) -> Setup:
    amd = fleet.gpu.vendor is Vendor.AMD
    long = wish.context > NATIVE_CONTEXT
    env = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"} if amd else {}
    if amd and long:
        env["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    fp8 = "fp8_e4m3" if engine is EngineKind.SGLANG else "fp8"
    return Setup(
        engine=engine,
        vendor=fleet.gpu.vendor,
        architecture=fleet.gpu.architecture,
        precision=precision,
        context=wish.context,
        kv_dtype=fp8 if cache.kv is KvDtype.FP8 else "auto",
        index_dtype=cache.index,
        rope=(Rope.YARN if amd else Rope.EXTENDED) if long else Rope.NATIVE,
        text_only=not wish.vision,
        encoder_parallel=wish.vision,
        attention_backend="TRITON_ATTN" if amd else None,
        moe_backend="emulation" if precision is Precision.MXFP4 else None,
        parser="minimax-m3" if engine is EngineKind.SGLANG else "minimax_m3",
        nodes=nodes,
        tp=split.tp,
        dp=split.dp,
        trust_remote_code=engine is EngineKind.TRTLLM,
        assumed_parameters=TOTAL_PARAMETERS,
        draft=None if draft is None else DRAFT_METHOD,
        draft_kv_heads=None if draft is None else draft.kv_heads,
        draft_backend=None if draft is None else draft_backend(fleet.gpu.vendor),
        offload=_OFFLOADS[engine] if wish.host_cache else None,
        load_failure=RECOMPUTE if wish.host_cache and engine is EngineKind.VLLM else None,
        sequences=sequences,
        msa=_msa(engine, nodes),
        env=env,
    )


def _recipe(candidate: _Candidate) -> str:
    """Return the documented recipe that is nearest; the plan's values replace the recipe's."""
    if candidate.engine is EngineKind.SGLANG:
        return "sglang-8gpu"
    if candidate.engine is EngineKind.TRTLLM:
        return "trtllm-b200-1x4" if _msa(candidate.engine, candidate.nodes) else "trtllm-gb200-2x4"
    amd = candidate.fleet.gpu.vendor is Vendor.AMD
    if candidate.precision is Precision.MXFP4:
        return "vllm-amd-mxfp4-emulation"
    if candidate.split.dp > 1:
        return "vllm-amd-dp8-ep" if amd else "vllm-nvidia-dp8-ep"
    if amd:
        return "vllm-amd-1m" if candidate.wish.context > NATIVE_CONTEXT else "vllm-amd-tp8"
    return "vllm-nvidia-mxfp8" if candidate.precision is Precision.MXFP8 else "vllm-nvidia-tp8"


def _versions(candidate: _Candidate) -> str:
    """Return the versions of the engine that have what the candidate uses."""
    if candidate.engine is not EngineKind.VLLM:
        return _MSA_VERSIONS if _msa(candidate.engine, candidate.nodes) else _VERSIONS[candidate.engine]
    architecture = candidate.fleet.gpu.architecture
    off_blackwell = architecture is not Architecture.BLACKWELL
    first_with = {
        FIRST_NVFP4: candidate.precision is Precision.NVFP4,
        FIRST_UNDOCUMENTED: architecture in UNDOCUMENTED,
        FIRST_WITH_DRAFT: candidate.draft is not None and bool(candidate.wish.host_cache),
        FIRST_FP8_INDEX: off_blackwell and candidate.cache.index is KvDtype.FP8,
    }
    if needed := [version for version, used in first_with.items() if used]:
        return f">={max(needed, key=Version)}"
    return _VLLM_OFF_BLACKWELL if off_blackwell else _VERSIONS[EngineKind.VLLM]


def _throughput(candidate: _Candidate) -> tuple[float | None, bool, str]:
    """Return the output tokens a second of one stream, whether this very plan was measured, and the source.

    The stream is as long as the typical sequence. The number is None for a checkpoint of other widths than M3's.
    """
    if candidate.wish.shape != M3:
        return None, False, "not measured"
    measured = was_measured(
        gpus=str(candidate.used),
        engine=candidate.engine,
        precision=candidate.precision,
        tp=candidate.split.tp,
        draft=candidate.draft is not None,
    )
    return (
        1 / seconds_between(candidate.wish.sequence),
        measured,
        source(str(candidate.used), measured=measured),
    )


def _cost(candidate: _Candidate, prices: HardwarePrices) -> Cost:
    gpu = candidate.fleet.gpu
    each = gpu.on_demand if prices.gpu_hour is None else prices.gpu_hour
    price_source = (
        "given"
        if prices.gpu_hour is not None
        else f"on demand, {PRICES_OF}"
        if each is not None
        else "unknown"
    )
    hour = None if each is None else each * candidate.split.gpus
    stream, measured, speed_source = _throughput(candidate)
    speed = stream if measured else None
    if prices.tokens_per_second is not None:
        speed, speed_source = prices.tokens_per_second, "given"
    return Cost(
        hour,
        None if gpu.spot is None or prices.gpu_hour is not None else gpu.spot * candidate.split.gpus,
        price_source,
        speed,
        speed_source,
        stream,
        None if hour is None or not speed else hour / (speed * 3600) * 1e6,
        prices.hosted,
        None if hour is None or not prices.hosted else hour / (prices.hosted * 3600) * 1e6,
    )
