"""EAGLE3 drafts for M3: a small model proposes tokens, and M3 verifies several of them in one step.

A published draft is one layer; it uses M3's own embedding and output layer. Sources: the drafts' model cards,
InferenceX's agent recipes, and vLLM's models/llama_eagle3.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from m3agent.serving.plan.gpus import Vendor
from m3agent.serving.plan.memory_model import HEAD, HIDDEN, QUERY_HEADS, KvDtype

DRAFT_METHOD = "eagle3"
"""vLLM's name of the method."""
DRAFT_TOKENS = 3
"""Tokens that the draft proposes before M3 verifies them, as in InferenceX's agent recipes."""
FEW_STREAMS = 16
"""Most sequences at a time for which a draft is chosen without being asked for.

Published gains on MI355X: 63% at 4 sequences, 42% at 16, 14% at 64 (ROCm/ATOM#1333).
"""
GROUPED_KV_HEADS = 4
"""KV heads of a draft with grouped-query attention (GQA); one with multi-head attention (MHA) has 64."""
_MIXING = 3 * HIDDEN * HIDDEN * 2
"""Bytes of the layer that mixes three of M3's hidden states; every GPU has it whole (read)."""
_ATTENTION_BYTES = 2 * (3 * HIDDEN + 2 * (QUERY_HEADS + GROUPED_KV_HEADS) * HEAD)
"""Bytes a token of the attention's activations: two inputs, queries, keys, values, output, and the sum (fits what was
measured).
"""
ROPE_POSITIONS = 1 << 20
"""Positions for which a draft keeps its rotary factors, unless its config says otherwise."""


@dataclass(frozen=True)
class Draft:
    """A draft model."""

    model: str
    kv_heads: int = GROUPED_KV_HEADS
    weights: int = 1_700_000_000
    """Bytes of its weights, without embedding and output layer."""
    inner: int = 31_104
    """Width of its feed-forward layer. The published one is not known here; it follows from the weights."""
    positions: int = ROPE_POSITIONS
    """Positions for which it keeps rotary factors."""

    def weight_bytes(self, tp: int) -> int:
        """Return the bytes of weights and of rotary factors on each of `tp` GPUs."""
        rotary = self.positions * HEAD * 2
        return _MIXING + max(0, self.weights - _MIXING) // tp + rotary

    def activation_bytes(self, tokens: int, tp: int) -> int:
        """Return the bytes on each of `tp` GPUs for the draft's own work on the tokens of one step.

        Either its attention or its feed-forward layer needs the most. The latter holds its two inner results and
        their product, beside the state. On one H200 with vLLM 0.24.0, drafts with inner widths of 27,648 and 8,192
        took 1.35 and 0.54 GiB for 8,192 tokens, and this formula gives 1.36 and 0.55.
        """
        forward = 3 * 2 * self.inner // tp + 2 * HIDDEN
        return tokens * max(forward, _ATTENTION_BYTES)

    def token_bytes(self, tp: int, kv: KvDtype) -> int:
        """Return the bytes of KV cache for one token on each of `tp` GPUs."""
        return 2 * max(1, self.kv_heads // tp) * HEAD * kv.bytes


GQA_DRAFT = Draft("Inferact/MiniMax-M3-EAGLE3-GQA")
MHA_DRAFT = Draft("Inferact/MiniMax-M3-EAGLE3", kv_heads=QUERY_HEADS)
_KNOWN = {draft.model: draft for draft in (GQA_DRAFT, MHA_DRAFT)}


def known_draft(model: str) -> Draft | None:
    """Return the published draft of this name, or None."""
    return _KNOWN.get(model)


def draft_backend(vendor: Vendor) -> str:
    """Return the attention backend of the draft in vLLM.

    FlashInfer, which vLLM may choose on NVIDIA, has no kernel for MHA with blocks of 128 tokens
    (InferenceX#1739).
    """
    return "TRITON_ATTN" if vendor is Vendor.AMD else "FLASH_ATTN"
