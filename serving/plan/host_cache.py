"""A KV cache in the machine's memory: a session whose blocks left the GPUs gets them back, and nothing is computed again.

Index keys travel with keys and values. Each rank stores what its GPU had, so above TP4 copies take memory too. Blocks are stored
when they are computed, and each use keeps them young in both caches. So the host cache also holds what the GPUs hold: it helps
only with more room than they have (read in vLLM, kv_connector/v1/offloading/scheduler.py; assumed for other engines).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

FIRST_WITH_DRAFT = "0.30"
"""First version of vLLM whose native offload works together with a draft."""
GIGABYTE = 10**9
NATIVE = "OffloadingConnector"
SIMPLE = "SimpleCPUOffloadConnector"
HICACHE = "HiCache"
RECOMPUTE = "recompute"


@dataclass(frozen=True)
class HostCache:
    """What a host cache holds."""

    bytes: int
    """Its size on each node, all ranks together."""
    token: int
    """Bytes of one token, all ranks that share one copy of the attention together."""
    tokens: int
    """Its capacity in tokens, on all nodes together."""
    pays_from: int
    """Number of typical sequences at a time from which it pays: one more than the GPUs' cache holds."""
    sequences: int
    """Typical sequences that keep their prefix in the GPUs' cache or in the host cache."""


def transfer_config(size: int) -> str:
    """Return the value of vLLM's `--kv-transfer-config` for a native host cache of `size` bytes.

    A block that cannot be loaded is computed again. vLLM's default is that the request fails.
    """
    return json.dumps(
        {
            "kv_connector": NATIVE,
            "kv_role": "kv_both",
            "kv_load_failure_policy": RECOMPUTE,
            "kv_connector_extra_config": {"cpu_bytes_to_use": size, "block_size": 128},
        },
        separators=(",", ":"),
    )
