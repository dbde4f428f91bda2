"""A plan to serve M3, what it is made for, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass

from m3agent.serving.plan.draft import GQA_DRAFT, Draft
from m3agent.serving.plan.gpus import ARCHITECTURES, Fleet
from m3agent.serving.plan.host_cache import HostCache
from m3agent.serving.plan.kinds import DraftUse, EngineKind, Precision
from m3agent.serving.plan.known_issues import KnownIssue, Setup, needed_versions, overrides
from m3agent.serving.plan.memory_model import (
    BLOCK,
    LONGEST_CONTEXT,
    M3,
    NATIVE_CONTEXT,
    Batch,
    GpuMemory,
    KvDtype,
    LayerCounts,
    Split,
    outside_bytes,
)
from m3agent.serving.plan.recipe import CHECKPOINTS, nearest_recipe
from m3agent.serving.plan.speed import MEASURED_GPUS, MEASURED_TP
from m3agent.util.errors import UsageError

PREFERRED = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.TRTLLM)
"""Engines in order of preference: vLLM is measured, SGLang is not, TensorRT-LLM reuses prefixes only with msa, undocumented."""


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
    own: bool = False
    """True if the user names a checkpoint that is not the documented one of its precision."""
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
            PREFERRED.index(self.engine),
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
class Profile:
    """Memory settings of an engine. Both profiles were measured on four H200."""

    tight: bool
    utilisation: float
    batched: int
    """Tokens of one step."""
    sequences: int
