"""Memory model of M3: parameters, bytes of weights, bytes of KV cache, and the rest that an engine needs.

All values are bytes of one GPU. Each term names its origin: derived (from the config), read (in vLLM 0.24's
source), fitted (to the three measured runs) or assumed. docs/serving.md has the whole model as a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from m3agent.serving.plan.kinds import Precision

GIB = 2**30
MIB = 2**20


def gib(size: int) -> str:
    """Format bytes as `103.2 GiB`."""
    return f"{size / GIB:,.1f} GiB"


HIDDEN = 6144
VOCABULARY = 200_064
QUERY_HEADS = 64
KV_HEADS = 4
HEAD = 128
EXPERTS = 128
EXPERTS_A_TOKEN = 4
EXPERT_WIDTH = 3072
DENSE_WIDTH = 12_288
INDEX_HEAD = 128
ROTARY = 64
BLOCK = 128
"""Tokens in one block of the KV cache; it must equal the block size of M3's sparse attention."""
NATIVE_CONTEXT = 524_288
"""`max_position_embeddings` of the published config, in tokens."""
LONGEST_CONTEXT = 1_048_576
"""Longest context that M3's publisher advertises, in tokens."""

# The vision tower has 32 layers of width 1280, patches of 2x14x14, a projector, and a merger of 2x2 patches.
_VISION_LAYERS, _VISION_WIDTH, _VISION_INNER = 32, 1280, 5120

TOTAL_PARAMETERS = 427_040_140_160
"""Parameters counted from the config's tensors, equal to the published figure.

"229.9B, 256 experts" is the previous generation.
"""


class KvDtype(StrEnum):
    """Type of the numbers in the KV cache: of keys and values, or of the index keys."""

    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return 1 if self is KvDtype.FP8 else 2


# Bytes of one weight with its scale: (routed experts, other linear layers). The first two rows are derived: MXFP8 has
# one byte of scale for 32 weights. In nvidia/MiniMax-M3-NVFP4 all other layers are MXFP8: 249.9 GB, published 250.1
# (vllm-project/recipes#678). The other 4-bit rows assume that a checkpoint quantises only the experts.
_WEIGHT_BYTES = {
    Precision.BF16: (2.0, 2.0),
    Precision.MXFP8: (1 + 1 / 32, 1 + 1 / 32),
    Precision.NVFP4: (0.5 + 1 / 16, 1 + 1 / 32),
    Precision.MXFP4: (0.5 + 1 / 32, 2.0),
    Precision.INT4: (0.5 + 2 / 128, 2.0),
}


@dataclass(frozen=True)
class LayerCounts:
    """Number of layers of each kind; all widths are M3's."""

    dense: int = 3
    sparse: int = 57

    @property
    def layers(self) -> int:
        """Number of all layers."""
        return self.dense + self.sparse


M3 = LayerCounts()


@dataclass(frozen=True)
class Split:
    """How a model is spread over GPUs.

    Raises:
        ValueError: vLLM's model does not support `tp`, or `dp` is less than 1.
    """

    tp: int = 1
    """GPUs that share one copy of the attention."""
    dp: int = 1
    """Copies of the attention. The experts are spread over all `tp * dp` GPUs."""
    ep: bool = False
    """True if each GPU has whole experts, False if it has a slice of each; the bytes are the same."""

    def __post_init__(self) -> None:
        if not (possible_tp(self.tp) and self.dp >= 1):
            raise ValueError(f"M3's {QUERY_HEADS} heads cannot be divided among {self.tp} GPUs")

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tp * self.dp

    @property
    def kv_heads(self) -> int:
        """KV heads on each GPU; index heads likewise. Above TP4 every GPU has one, so heads are copies."""
        return max(1, KV_HEADS // self.tp)


def possible_tp(tp: int) -> bool:
    """Return whether vLLM's model accepts this tensor-parallel size; heads must divide evenly."""
    return tp >= 1 and QUERY_HEADS % tp == 0 and (KV_HEADS % tp == 0 or tp % KV_HEADS == 0)


def vision_parameters() -> int:
    """Return the number of parameters of the vision tower, its projector and the patch merger."""
    width, inner = _VISION_WIDTH, _VISION_INNER
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    patches = width * 3 * 2 * 14 * 14 + 2 * width
    square = HIDDEN * HIDDEN + HIDDEN
    projector = width * HIDDEN + HIDDEN + square
    merger = 4 * HIDDEN * HIDDEN + HIDDEN + square
    return _VISION_LAYERS * layer + patches + projector + merger


def parameters(shape: LayerCounts = M3) -> int:
    """Return the number of parameters, with vision; for `M3` it is `TOTAL_PARAMETERS`."""
    linear = _attention(shape, 1) + _feed_forward(shape, 1) + _experts(shape)
    router = shape.sparse * (HIDDEN * EXPERTS + EXPERTS)
    return linear + router + 2 * VOCABULARY * HIDDEN + _norms(shape) + vision_parameters()


def weight_bytes(
    shape: LayerCounts, precision: Precision, split: Split, *, vision: bool, positions: int
) -> int:
    """Return the bytes on each GPU after loading: weights, scales, and the table of rotary positions.

    The value is derived. It is within 0.2% of vLLM's log for both models that we loaded. Embeddings and the
    logits layer are split by vocabulary and never quantised. Every GPU has the norms and the router (fp32).

    Args:
        positions: `max_position_embeddings` of the config.
    """
    experts, linear = _WEIGHT_BYTES[precision]
    router = shape.sparse * (HIDDEN * EXPERTS + EXPERTS) * 4
    plain = (2 * VOCABULARY * HIDDEN / split.tp + _norms(shape)) * 2
    quantised = (_attention(shape, split.tp) + _feed_forward(shape, split.tp)) * linear
    encoder = 2 * vision_parameters() if vision else 0  # whole on each GPU: it runs data-parallel
    rotary = positions * ROTARY * 2
    return math.ceil(quantised + _experts(shape) / split.gpus * experts + router + plain + encoder + rotary)


def kv_bytes_per_token(shape: LayerCounts, tp: int, kv: KvDtype, index: KvDtype = KvDtype.BF16) -> int:
    """Return the bytes of KV cache for one token on each GPU. Derived, and equal to vLLM's own computation.

    All layers have keys and values. Each sparse layer also has one index key, which every GPU stores whole.
    """
    return shape.layers * 2 * Split(tp).kv_heads * HEAD * kv.bytes + shape.sparse * INDEX_HEAD * index.bytes


# Memory that an engine needs beside weights and KV cache, within its allowed memory.
_WORKSPACES = 2 * EXPERTS_A_TOKEN * HIDDEN * 2
"""Bytes a token for the two workspaces of the MoE kernels, Triton's and Marlin's: bf16, not split (read)."""
_STREAMS = 5 * HIDDEN * 2
"""Bytes a token for residual, input, output, the shared expert's output and the buffer of the sum.

The list is read; the number is fitted.
"""
_RUNTIME = int(0.44 * GIB)
"""Bytes for cuBLAS workspaces and loaded kernels (fitted: the remainder of the run on one GPU)."""
_NCCL = int(0.56 * GIB)
"""Bytes for communication buffers with more than one GPU (fitted to TP4; assumed for other sizes)."""
_GRAPH = MIB
"""Bytes for CUDA graphs, for each layer and captured batch size (fitted: four sizes against two)."""
_ENCODER = 2 * GIB
"""Bytes for the vision tower's activations without videos.

vLLM 0.24 took 0.15 GiB on an H200 for images of 578 tokens each; the rest is room for larger ones (assumed).
"""

# Memory that has to stay free beyond the engine's allowed memory.
_CONTEXT = GIB
"""Bytes for the driver's context and for gaps between allocations (assumed)."""


@dataclass(frozen=True)
class Batch:
    """Batch sizes that an engine is prepared for."""

    tokens: int = 8192
    """Tokens of one step."""
    sequences: int = 8
    graphs: tuple[int, ...] = (1, 2, 4, 8)
    """Batch sizes of the captured CUDA graphs."""
    drafted: int = 0
    """Tokens of each sequence that a draft proposes and M3 verifies in one step; 0 without a draft."""


def other_bytes(shape: LayerCounts, split: Split, batch: Batch, *, vision: bool) -> int:
    """Return the bytes for activations, logits, graphs and buffers: all but weights and KV cache.

    With data parallelism the experts see the tokens of all ranks (assumed).
    """
    activations = batch.tokens * (_WORKSPACES * split.dp + _STREAMS)
    logits = 2 * batch.sequences * (1 + batch.drafted) * VOCABULARY * 4
    graphs = len(batch.graphs) * shape.layers * _GRAPH
    buffers = _RUNTIME + (_NCCL if split.gpus > 1 else 0)
    return activations + logits + graphs + buffers + (_ENCODER if vision else 0)


def outside_bytes(split: Split, batch: Batch, context: int) -> int:
    """Return the bytes that have to stay free beyond the engine's allowed memory.

    They include the scores that select attention blocks (read: fp32 for each index head, token of the step
    and block of the context). The scores do not exist yet when vLLM measures its activations.
    """
    return _CONTEXT + split.kv_heads * batch.tokens * math.ceil(context / BLOCK) * 4


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU, in bytes."""

    total: int
    """Memory as a process sees it."""
    allowed: int
    """Memory that the engine may use: utilisation times `total`, the sum of `weights`, `other` and `kv`."""
    weights: int
    other: int
    """Activations, CUDA graphs and buffers."""
    kv: int
    """KV cache; negative if the rest exceeds `allowed`."""
    token: int
    """KV cache of one token."""

    @property
    def tokens(self) -> int:
        """KV cache capacity in tokens, whole blocks only; 0 if not even the weights fit."""
        return max(0, self.kv // (self.token * BLOCK) * BLOCK)


def room(
    total: int,
    utilisation: float,
    *,
    split: Split,
    precision: Precision,
    kv: KvDtype,
    batch: Batch,
    positions: int,
    index: KvDtype = KvDtype.BF16,
    vision: bool = False,
    shape: LayerCounts = M3,
    more: tuple[int, int, int] = (0, 0, 0),
) -> GpuMemory:
    """Return how an engine's memory divides. `kv` is negative by the number of missing bytes.

    `more` has the bytes of a draft: weights, activations, and KV cache of one token.
    """
    allowed = int(total * utilisation)
    weights = weight_bytes(shape, precision, split, vision=vision, positions=positions) + more[0]
    other = other_bytes(shape, split, batch, vision=vision) + more[1]
    token = kv_bytes_per_token(shape, split.tp, kv, index) + more[2]
    return GpuMemory(total, allowed, weights, other, allowed - weights - other, token)


def _attention(shape: LayerCounts, tp: int) -> int:
    """Return the parameters of all attention layers on each of `tp` GPUs.

    Queries are split evenly; keys and values by head; every GPU has one whole index key.
    """
    kv_heads = Split(tp).kv_heads
    queries = QUERY_HEADS // tp * HEAD
    main = HIDDEN * (queries + 2 * kv_heads * HEAD) + queries * HIDDEN
    # M3 has as many index heads as KV heads, and they are split in the same way.
    index = HIDDEN * (kv_heads * INDEX_HEAD + INDEX_HEAD)
    return shape.layers * main + shape.sparse * index


def _feed_forward(shape: LayerCounts, tp: int) -> int:
    """Return the parameters of dense layers and shared experts on each of `tp` GPUs."""
    return 3 * HIDDEN * (shape.dense * DENSE_WIDTH + shape.sparse * EXPERT_WIDTH) // tp


def _experts(shape: LayerCounts) -> int:
    """Return the parameters of all routed experts together."""
    return shape.sparse * EXPERTS * 3 * HIDDEN * EXPERT_WIDTH


def _norms(shape: LayerCounts) -> int:
    return shape.layers * (2 * HIDDEN + 2 * HEAD) + shape.sparse * 2 * INDEX_HEAD + HIDDEN
