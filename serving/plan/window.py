"""Settings for a context window that is longer than M3's own positions."""

from __future__ import annotations

import math

from m3agent.serving.plan.gpus import Vendor
from m3agent.serving.plan.memory_model import NATIVE_CONTEXT


def overrides(vendor: Vendor, context: int) -> dict[str, object]:
    """Return the value of `--hf-overrides` for a context window.

    The setting belongs under `text_config`, because a setting at the top level never reaches the decoder. On
    AMD it is YaRN, as in vLLM's recipe page. On NVIDIA vLLM does not pass YaRN to M3's rotary embedding
    (0.33, models/minimax_m3/nvidia/model.py), so the positions simply continue. Four H200 served 1,000,200
    tokens this way.

    Returns:
        The overrides; empty if M3's own positions are enough.
    """
    if context <= NATIVE_CONTEXT:
        return {}
    if vendor is Vendor.NVIDIA:
        return {"text_config": {"max_position_embeddings": context}}
    scaling = {
        "rope_type": "yarn",
        "factor": float(math.ceil(context / NATIVE_CONTEXT)),
        "original_max_position_embeddings": NATIVE_CONTEXT,
    }
    return {"text_config": {"rope_scaling": scaling}}
