"""How a window longer than M3's own positions is asked for."""

from __future__ import annotations

import math

from m3agent.serving.plan.gpus import Vendor
from m3agent.serving.plan.shape import NATIVE_CONTEXT


def overrides(vendor: Vendor, context: int) -> dict[str, object]:
    """What `--hf-overrides` has to say for a window of so many tokens; empty where M3's own positions are enough.

    Under `text_config`, since one at the top never reaches the decoder. AMD: YaRN, as vLLM's recipe page has it.
    NVIDIA: vLLM does not hand YaRN to M3's rotary embedding (0.33, models/minimax_m3/nvidia/model.py), so the positions
    are just continued; 1,000,200 tokens were served so on four H200.
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
