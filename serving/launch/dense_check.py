"""Check that an engine chooses blocks with M3's sparse attention, and has not silently built every layer dense.

vLLM builds a layer dense if the checkpoint's config does not list it as sparse (models/minimax_m3/nvidia/model.py), and writes
nothing about it. M3 was trained with sparse attention: its answers become worse, and time alone does not show the fault. The
config tells; so does the engine's log, because a dense layer has no index keys in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from m3agent.serving.check.check import Check
from m3agent.serving.launch.checkpoint import CheckpointError, read_checkpoint
from m3agent.serving.launch.engine_log import LogReader
from m3agent.serving.launch.load_signs import EngineFacts
from m3agent.serving.launch.record import LOG, ServerRecord
from m3agent.serving.plan.command_setup import setup_of
from m3agent.serving.plan.gpus import Architecture, Vendor
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.known_issues import Setup
from m3agent.serving.plan.memory_model import (
    GIB,
    HEAD,
    KV_HEADS,
    NATIVE_CONTEXT,
    KvDtype,
    LayerCounts,
    kv_bytes_per_token,
    possible_tp,
)
from m3agent.util.json_value import items, mapping

NAME = "sparse attention"
_MOST_LOG = 8 << 20  # bytes of a log to read; the engine reports its memory while it starts
_UNKNOWN = "not known: the checkpoint's config is not on this machine"
_FIX = "download the checkpoint's config.json again, and start it without --hf-overrides that replace sparse_attention_config"


def facts_of(folder: Path, engine: str) -> EngineFacts:
    """Return what the log in a server's folder reports; nothing if there is no log."""
    reader = LogReader(engine)
    try:
        with (folder / LOG).open("rb") as log:
            reader.feed(log.read(_MOST_LOG))
    except OSError:
        pass
    return reader.facts


def dense_check(record: ServerRecord, facts: EngineFacts, environ: Mapping[str, str]) -> list[Check]:
    """Check a server of this machine, by its checkpoint's config and by its log.

    Returns:
        One check; none for engines other than vLLM.
    """
    if record.engine != "vllm" or record.checkpoint is None:
        return []
    try:
        checkpoint = read_checkpoint(record.checkpoint, environ, weights=False)
    except CheckpointError:
        return [Check(NAME, None, _UNKNOWN)]
    text = checkpoint.text_config
    if text is None:
        return [Check(NAME, None, _UNKNOWN)]
    sparse = _sparse_layers(text)
    if not sparse:
        detail = "the config has no sparse_attention_freq: the engine builds every layer with dense attention"
        return [Check(NAME, False, f"{detail}, and answers become worse", _FIX)]
    shape = LayerCounts(checkpoint.shape.layers - sparse, sparse)
    layout = _layout(record.argv) if record.argv else None
    if layout is None or not facts.cache_gib or not facts.kv_tokens or not _has_m3_heads(text):
        return [Check(NAME, True, f"{sparse} of {shape.layers} layers, by the config")]
    taken = facts.cache_gib * GIB / facts.kv_tokens
    tp, kv, index = layout
    wanted = kv_bytes_per_token(shape, tp, kv, index)
    dense = kv_bytes_per_token(LayerCounts(shape.layers, 0), tp, kv, index)
    if taken < (wanted + dense) / 2:
        detail = (
            f"a token takes {taken:,.0f} bytes of the cache; with the index keys of {sparse} layers it takes {wanted:,}, "
            f"without them {dense:,}: the engine computes dense attention, and answers become worse"
        )
        return [Check(NAME, False, detail, _FIX)]
    detail = f"{sparse} of {shape.layers} layers; the cache has index keys ({taken:,.0f} bytes a token)"
    return [Check(NAME, True, detail)]


def _sparse_layers(text: Mapping[str, Any]) -> int:
    """Return how many layers the config lists as sparse."""
    config = mapping(text.get("sparse_attention_config"))
    return sum(map(bool, items(config.get("sparse_attention_freq"))))


def _has_m3_heads(text: Mapping[str, Any]) -> bool:
    """Return whether the arithmetic of M3's cache applies."""
    return text.get("num_key_value_heads") == KV_HEADS and text.get("head_dim", HEAD) == HEAD


def _layout(argv: Sequence[str]) -> tuple[int, KvDtype, KvDtype] | None:
    """Return tensor-parallel size, type of keys and values, and type of the index keys.

    None if the layers are spread over GPUs: then the cache of a GPU does not have all of them.
    """
    any_gpu = Setup(EngineKind.VLLM, Vendor.NVIDIA, Architecture.HOPPER, Precision.MXFP8, NATIVE_CONTEXT)
    setup = setup_of(argv, {}, any_gpu)
    if setup.pp != 1 or not possible_tp(setup.tp):
        return None
    kv, index = (
        KvDtype.FP8 if dtype.startswith("fp8") else KvDtype.BF16
        for dtype in (setup.kv_dtype, setup.index_dtype)
    )
    return setup.tp, kv, index
