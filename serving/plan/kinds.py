"""Kinds of things that users name: engines, precisions, and whether a draft is used. The command line imports them at its start."""

from __future__ import annotations

from enum import StrEnum


class EngineKind(StrEnum):
    """Programs that serve M3."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Precision(StrEnum):
    """Precision of the weights."""

    BF16 = "bf16"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT4 = "int4"


class DraftUse(StrEnum):
    """Whether a server uses a draft."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"
