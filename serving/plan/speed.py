"""How fast a plan is, from the times that were measured on four H200 GPUs; for other plans they are an estimate."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from m3agent.serving.plan.plan import Plan

RESULT_TOKENS = 2000
"""Tokens of tool results in a turn (assumed)."""
LINK = 25e9
"""Bytes a second from the machine's memory to one GPU (assumed: half of what PCIe 5 has)."""
MEASURED_GPU = "H200"
MEASURED_GPUS = f"4x{MEASURED_GPU}"
MEASURED_TP = 4

_LENGTHS = (8192, 32_768, 131_072, 1_000_000)
_COLD = (0.61, 2.47, 10.7, 183.0)
_CACHED = (0.109, 0.147, 0.254, 1.51)
_BETWEEN = (0.0085, 0.0087, 0.0092, 0.0135)
"""Seconds on four H200 (vLLM 0.24, MXFP8, TP4) for prompts of `_LENGTHS` tokens: to the first token if nothing is cached,
to the first token if all is, and between two tokens of one stream. Measured; docs/benchmarks.md describes how."""
_SETUP = "4xH200 with mxfp8, TP4, vLLM 0.24"


class Speed:
    """Times of a plan, from those that were measured. A prompt is computed by the GPUs of one rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scale = MEASURED_TP / plan.tp

    def cold(self, tokens: int) -> float:
        """Return the seconds to the first token if nothing is cached."""
        # interpolated are the seconds a token, because they grow evenly with the length
        each = [seconds / length for length, seconds in zip(_LENGTHS, _COLD, strict=True)]
        return self.scale * tokens * _between(tokens, each)

    def cached(self, tokens: int) -> float:
        """Return the seconds to the first token if all but the results of tools is cached."""
        new = self.cold(tokens) - self.cold(max(1, tokens - RESULT_TOKENS))
        return _between(tokens, _CACHED) + new

    def reload(self, tokens: int) -> float:
        """Return the seconds to bring a session back from the machine's memory."""
        return tokens * (self.plan.memory.kv / self.plan.kv_tokens) / LINK

    @property
    def source(self) -> str:
        """Where the times come from, and whether they hold for this plan."""
        return source(self.plan.gpus, measured=self.plan.measured)


def seconds_between(tokens: int) -> float:
    """Return the seconds between two tokens of one stream with a prompt of `tokens` tokens."""
    return _between(tokens, _BETWEEN)


def source(gpus: str, *, measured: bool) -> str:
    """Return where the times come from."""
    if measured:
        return f"from measurements on {_SETUP}"
    if _is_measured_kind(gpus):
        return f"estimated from measurements on {_SETUP}; this plan was not measured"
    return f"the speed of {_SETUP}; other GPUs were not measured"


def at_speed_of(gpus: str) -> str:
    """Return, for GPUs of another kind than the measured one, that the times are not theirs; else an empty text."""
    return (
        ""
        if _is_measured_kind(gpus)
        else f" if these GPUs are as fast as {MEASURED_GPU}s (they were not measured)"
    )


def _is_measured_kind(gpus: str) -> bool:
    return gpus.endswith(f"x{MEASURED_GPU}")


def _between(tokens: int, values: Sequence[float]) -> float:
    """Interpolate between the measured lengths; beyond them the nearest two continue."""
    at = min(max(1, bisect_left(_LENGTHS, tokens)), len(_LENGTHS) - 1)
    low, high = _LENGTHS[at - 1], _LENGTHS[at]
    share = max(0.0, (tokens - low) / (high - low))
    return values[at - 1] + share * (values[at] - values[at - 1])
