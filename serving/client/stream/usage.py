"""Read token counts, which servers report under different names."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from m3agent.serving.client.messages import Usage

_MOST = 2**53
"""Larger numbers are not counts, and may not even fit into a float."""

# Where each count may be: OpenAI's place first (vLLM, SGLang, TensorRT-LLM, Dynamo, OpenRouter, MiniMax),
# then other dialects that proxies pass on.
_PLACES: dict[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt_tokens",), ("input_tokens",)),
    "cached": (
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("cached_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cache_read_input_tokens",),
    ),
    "completion": (("completion_tokens",), ("output_tokens",)),
    "reasoning": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("reasoning_tokens",),  # SGLang
    ),
}


def read_usage(reported: Mapping[str, Any], before: Usage = Usage()) -> Usage:  # noqa: B008 it is frozen
    """Read the counts in a `usage` object; counts that it lacks keep their value in `before`.

    Some servers report with every chunk and count from the start each time, so the last report counts.
    """
    known = {count.name: next(_counts(reported, count.name), None) for count in fields(Usage)}
    return Usage(**{name: getattr(before, name) if value is None else value for name, value in known.items()})


def _counts(reported: Mapping[str, Any], name: str) -> Iterator[int]:
    for path in _PLACES[name]:
        value: object = reported
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
            yield value
