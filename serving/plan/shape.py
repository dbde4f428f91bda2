"""M3's shape, and what follows from it: parameters, bytes of weights, bytes of cache, and the rest an engine needs.

Everything is per GPU and in bytes. Each term says whether it is derived (from the config), read (in vLLM 0.24's source),
fitted (to the three runs in `MEASURED`), or assumed. docs/serving.md has the whole as a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from m3agent.serving.plan.gpus import GIB, MIB

HIDDEN = 6144
VOCABULARY = 200_064
QUERY_HEADS = 64
KV_HEADS = 4
HEAD = 128
EXPERTS = 128
EXPERTS_A_TOKEN = 4
EXPERT_WIDTH = 3072
DENSE_WIDTH = 12_288
INDEX_HEADS = 4
INDEX_HEAD = 128
ROTARY = 64
BLOCK = 128
"""Tokens of a block of the cache, which has to be that of M3's sparse attention."""
NATIVE_CONTEXT = 524_288
"""`max_position_embeddings` of the published config, tokens."""
LONGEST_CONTEXT = 1_048_576
"""What the model is sold for, tokens."""

# the vision tower: 32 layers of width 1280, patches of 2x14x14, a projector, and a merge of 2x2 patches
_VISION_LAYERS, _VISION_WIDTH, _VISION_INNER = 32, 1280, 5120

TOTAL_PARAMETERS = 427_040_140_160
"""Counted from the config's tensors, and the published figure. "229.9B, 256 experts" is the previous generation."""
WRONG_PARAMETERS = 230e9
"""The count that circulates for M3 and is that of the generation before it."""


class Precision(StrEnum):
    """Of the weights."""

    BF16 = "bf16"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT4 = "int4"


class KvDtype(StrEnum):
    """Of keys and values in the cache; the index keys stay bf16."""

    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def bytes(self) -> int:
        """Of one number."""
        return 1 if self is KvDtype.FP8 else 2


INDEX_BYTES = 2  # bf16; fp8 works on Blackwell only (vllm#50856)

# Bytes of one weight with its scales: (of the routed experts, of the other linear layers). Derived for the first two:
# MXFP8 has one byte of scale for 32 weights. Which layers a 4-bit checkpoint leaves alone is assumed: all but experts.
_WEIGHT_BYTES = {
    Precision.BF16: (2.0, 2.0),
    Precision.MXFP8: (1 + 1 / 32, 1 + 1 / 32),
    Precision.NVFP4: (0.5 + 1 / 16, 2.0),
    Precision.MXFP4: (0.5 + 1 / 32, 2.0),
    Precision.INT4: (0.5 + 2 / 128, 2.0),
}


@dataclass(frozen=True)
class Shape:
    """How many layers of each kind; all widths are M3's. A layer with sparse attention is one with experts."""

    dense: int = 3
    sparse: int = 57

    @property
    def layers(self) -> int:
        """All of them."""
        return self.dense + self.sparse


M3 = Shape()


@dataclass(frozen=True)
class Split:
    """How a model is spread: attention over `tp` GPUs, `dp` times; the experts over all `tp * dp` of them.

    `ep`: each GPU has whole experts, else a slice of each; the bytes are the same.
    """

    tp: int = 1
    dp: int = 1
    ep: bool = False

    def __post_init__(self) -> None:
        if not (possible_tp(self.tp) and self.dp >= 1):
            raise ValueError(f"M3's {QUERY_HEADS} heads cannot be spread over {self.tp} GPUs")

    @property
    def gpus(self) -> int:
        """All that it takes."""
        return self.tp * self.dp

    @property
    def kv_heads(self) -> int:
        """KV heads on each GPU; from TP4 on every GPU has one, so above that they are copies. Index heads likewise."""
        return max(1, KV_HEADS // self.tp)


def possible_tp(tp: int) -> bool:
    """Whether vLLM's model takes this tensor-parallel size (heads have to come out even)."""
    return tp >= 1 and QUERY_HEADS % tp == 0 and (KV_HEADS % tp == 0 or tp % KV_HEADS == 0)


def vision_parameters() -> int:
    """Of the vision tower, its projector and the patch merge."""
    width, inner = _VISION_WIDTH, _VISION_INNER
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    patches = width * 3 * 2 * 14 * 14 + 2 * width
    square = HIDDEN * HIDDEN + HIDDEN
    return (
        _VISION_LAYERS * layer
        + patches
        + width * HIDDEN
        + HIDDEN
        + square
        + 4 * HIDDEN * HIDDEN
        + HIDDEN
        + square
    )


def parameters(shape: Shape = M3, *, vision: bool = True) -> int:
    """Number of parameters; for `M3` with vision it is `TOTAL_PARAMETERS`."""
    linear = _attention(shape, 1) + _feed_forward(shape, 1) + _experts(shape)
    router = shape.sparse * (HIDDEN * EXPERTS + EXPERTS)
    text = linear + router + 2 * VOCABULARY * HIDDEN + _norms(shape)
    return text + (vision_parameters() if vision else 0)


def weight_bytes(shape: Shape, precision: Precision, split: Split, *, vision: bool, positions: int) -> int:
    """What lies on each GPU once the model is loaded: weights, scales, and the table of rotary positions.

    Derived, and within 0.2% of what vLLM logged for both models that were loaded. Embeddings and logits' layer are
    split by vocabulary and never quantised; norms and the router (fp32) are on every GPU. positions: the config's
    `max_position_embeddings`.
    """
    experts, linear = _WEIGHT_BYTES[precision]
    router = shape.sparse * (HIDDEN * EXPERTS + EXPERTS) * 4
    plain = (2 * VOCABULARY * HIDDEN / split.tp + _norms(shape)) * 2
    quantised = (_attention(shape, split.tp) + _feed_forward(shape, split.tp)) * linear
    encoder = 2 * vision_parameters() if vision else 0  # whole on each GPU: it runs data-parallel
    rotary = positions * ROTARY * 2
    return math.ceil(quantised + _experts(shape) / split.gpus * experts + router + plain + encoder + rotary)


def kv_bytes_per_token(shape: Shape, tp: int, kv: KvDtype, index_bytes: int = INDEX_BYTES) -> int:
    """Bytes of cache that one token takes on each GPU. Derived, and what vLLM computes.

    Keys and values of all layers, and one index key for each sparse one, which every GPU has whole.
    """
    return shape.layers * 2 * Split(tp).kv_heads * HEAD * kv.bytes + shape.sparse * INDEX_HEAD * index_bytes


# What an engine needs beside weights and cache, within the memory it is allowed.
_WORKSPACES = 2 * EXPERTS_A_TOKEN * HIDDEN * 2
"""Bytes a token: the two workspaces of the MoE kernels, Triton's and Marlin's, bf16, not split (read)."""
_STREAMS = 5 * HIDDEN * 2
"""Bytes a token: residual, input, output, shared expert's output and the sum's buffer (read, the number fitted)."""
_RUNTIME = int(0.44 * GIB)
"""Workspaces of cuBLAS, loaded kernels (fitted: what is left of the run on one GPU)."""
_NCCL = int(0.56 * GIB)
"""Communication buffers, more than one GPU (fitted to TP4; assumed for others)."""
_GRAPH = MIB
"""Bytes a layer and captured batch size of CUDA graphs (fitted: four sizes against two)."""
_ENCODER = 2 * GIB
"""The vision tower's activations (assumed: nothing was measured with images)."""

# What has to be free beyond the memory it is allowed.
_CONTEXT = GIB
"""The driver's context, and what lies unused between allocations (assumed)."""


@dataclass(frozen=True)
class Batch:
    """What an engine is prepared for: tokens of one step, sequences at a time, sizes of captured graphs."""

    tokens: int = 8192
    sequences: int = 8
    graphs: tuple[int, ...] = (1, 2, 4, 8)


def other_bytes(shape: Shape, split: Split, batch: Batch, *, vision: bool) -> int:
    """What an engine takes of its memory beside weights and cache: activations, logits, graphs, buffers.

    With data parallelism the experts see the tokens of all ranks (assumed).
    """
    activations = batch.tokens * (_WORKSPACES * split.dp + _STREAMS)
    logits = 2 * batch.sequences * VOCABULARY * 4
    graphs = len(batch.graphs) * shape.layers * _GRAPH
    buffers = _RUNTIME + (_NCCL if split.gpus > 1 else 0)
    return activations + logits + graphs + buffers + (_ENCODER if vision else 0)


def outside_bytes(split: Split, batch: Batch, context: int) -> int:
    """What has to stay free beyond the memory an engine is allowed.

    The scores by which blocks are chosen (read: fp32 for each index head, token of the step and block of the context)
    are not there yet when vLLM measures its activations.
    """
    return _CONTEXT + split.kv_heads * batch.tokens * math.ceil(context / BLOCK) * 4


@dataclass(frozen=True)
class Room:
    """Bytes of one GPU. `allowed` (utilisation times total) is `weights`, `other` and `kv`; `tokens` fit into `kv`."""

    total: int
    allowed: int
    weights: int
    other: int
    kv: int
    token: int

    @property
    def tokens(self) -> int:
        """Tokens of cache, whole blocks only; 0 where not even the weights fit."""
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
    vision: bool = False,
    shape: Shape = M3,
) -> Room:
    """How an engine's memory divides. `kv` is negative by as much as is lacking."""
    allowed = int(total * utilisation)
    weights = weight_bytes(shape, precision, split, vision=vision, positions=positions)
    other = other_bytes(shape, split, batch, vision=vision)
    token = kv_bytes_per_token(shape, split.tp, kv)
    return Room(total, allowed, weights, other, allowed - weights - other, token)


def _attention(shape: Shape, tp: int) -> int:
    """Parameters of all attention, on each of `tp` GPUs: queries split, keys and values by head, one index key."""
    kv_heads = Split(tp).kv_heads
    queries = QUERY_HEADS // tp * HEAD
    main = HIDDEN * (queries + 2 * kv_heads * HEAD) + queries * HIDDEN
    index = HIDDEN * (
        kv_heads * INDEX_HEAD + INDEX_HEAD
    )  # as many index heads as KV heads, split as they are
    return shape.layers * main + shape.sparse * index


def _feed_forward(shape: Shape, tp: int) -> int:
    """Parameters of dense layers and shared experts, on each of `tp` GPUs."""
    return 3 * HIDDEN * (shape.dense * DENSE_WIDTH + shape.sparse * EXPERT_WIDTH) // tp


def _experts(shape: Shape) -> int:
    """Parameters of all routed experts together."""
    return shape.sparse * EXPERTS * 3 * HIDDEN * EXPERT_WIDTH


def _norms(shape: Shape) -> int:
    return shape.layers * (2 * HIDDEN + 2 * HEAD) + shape.sparse * 2 * INDEX_HEAD + HIDDEN
