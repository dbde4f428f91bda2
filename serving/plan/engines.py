"""The engines, and how each of them calls what agents need (`serving/facts/engines.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from m3agent.serving.facts.table import Row, rows


@dataclass(frozen=True, kw_only=True)
class EngineRow(Row):
    """An engine. The texts say what to do if a running server lacks something; they are empty if nothing is known."""

    needed = ("vllm", "sglang", "trtllm", "dynamo")
    name: Literal["vllm", "sglang", "trtllm", "dynamo"]
    title: str
    package: str
    too_old: str
    """What to install if it is too old: the first versions known to support M3."""
    prefix_cache: str = ""
    cached_tokens: str = ""
    tokenizer: str = ""
    reasoning_parser: str = ""
    tool_parser: str = ""
    fp8_cache: str = ""
    chunked_prefill: str = ""
    metrics: str = ""
    metrics_series: tuple[str, ...] = ()
    """Names of metrics: share of the KV cache in use, evicted sequences, tokens that the cache had, all prompt tokens."""
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    """Repositories of its container images by the GPUs' vendor; a tag is `v` and the version."""
    tagged: tuple[str, ...] = ()
    """Further repositories whose tags begin with the version."""
    planned_parser: str = ""
    planned_fp8: str = "fp8"
    """Name of the fp8 type of its KV cache."""
    planned_offload: str | None = None
    """What keeps its KV cache in the machine's memory."""


ENGINES: dict[str, EngineRow] = {row.name: row for row in rows(EngineRow, "engines")}

Lacking = Literal["prefix_cache", "cached_tokens", "tokenizer", "fp8_cache", "chunked_prefill", "metrics"]


def remedy(engine: str, lacking: Lacking) -> str:
    """Return what to do if a running server lacks something; empty if nothing is known."""
    return str(getattr(ENGINES.get(engine), lacking, ""))
