"""Read a running engine's metrics and settings into one form for all engines.

Sources of the names: vLLM 0.24, v1/metrics/loggers.py (the tests contain a real page); SGLang,
srt/observability/metrics_collector.py and http_server.py; TensorRT-LLM, metrics/collector.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from m3agent.serving.client.endpoint import SGLANG_INFO_PATHS, Endpoint, Flavour, get, post
from m3agent.serving.client.http import open_client
from m3agent.serving.errors import ModelServerError
from m3agent.serving.plan.engines import ENGINES

if TYPE_CHECKING:
    import openai

_SECONDS = 20.0
_METRICS_PATHS: dict[Flavour, str] = {"trtllm": "/prometheus/metrics"}  # its /metrics is JSON of iterations
_SETTINGS_PATHS: dict[Flavour, tuple[str, ...]] = {
    "vllm": ("/server_info",),  # only where VLLM_SERVER_DEV_MODE=1
    "sglang": SGLANG_INFO_PATHS,
}
_VLLM_CHUNKED = re.compile(r"enable_chunked_prefill=(True|False)")


@dataclass(frozen=True)
class EngineState:
    """State of an engine; None or an empty tuple means unknown."""

    metrics: bool = False
    kv_tokens: tuple[int, ...] = ()
    """KV cache capacity of each data-parallel rank, in tokens."""
    kv_dtype: str | None = None
    """Type of the KV cache as the engine spells it; "auto" is the weights' type."""
    block_size: int | None = None
    """Tokens of one block of the KV cache."""
    usage: float | None = None
    """Share of the KV cache in use, 0 to 1, on the fullest rank."""
    preemptions: float | None = None
    """Number of sequences evicted so far because the cache was full."""
    hit_rate: float | None = None
    """Share of prompt tokens that came from the cache."""
    asked: float | None = None
    """Prompt tokens so far, to which `hit_rate` refers."""
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    drafts: float | None = None
    """Number of drafts so far; None if the engine has no draft or does not say."""
    accepted: float | None = None
    """Number of drafted tokens that the model accepted so far."""


def metrics_url(endpoint: Endpoint) -> str:
    """Return the address of the engine's metrics."""
    return endpoint.url.removesuffix("/v1") + _METRICS_PATHS.get(endpoint.flavour, "/metrics")


async def engine_state(endpoint: Endpoint, *, api_key: str | None) -> EngineState:
    """Query a server's state; what it does not report stays unknown."""
    async with open_client(endpoint.url, api_key, connect=10.0, read=_SECONDS) as client:
        try:
            samples = parse_metrics(await get(client, metrics_url(endpoint), api_key))
        except (ModelServerError, ValueError):
            samples = []
        return read_state(endpoint.flavour, samples, await _settings(client, endpoint, api_key))


async def counter(
    client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None, name: str
) -> float | None:
    """Return the total of a counter in the server's metrics; None without it."""
    try:
        return total(parse_metrics(await get(client, metrics_url(endpoint), api_key)), name)
    except (ModelServerError, ValueError):
        return None


async def complete(
    client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None, prompt: object, **more: object
) -> Any:
    """Return the JSON that a server answers to a prompt at temperature 0. Raises ModelServerError, ValueError: it does not."""
    body = {"model": endpoint.model, "prompt": prompt, "temperature": 0, **more}
    return json.loads(await post(client, f"{endpoint.url}/completions", body, api_key))


def read_state(flavour: Flavour, samples: Sequence[Sample], settings: Mapping[str, Any]) -> EngineState:
    """Combine a page of metrics and the engine's settings into a state; either may be empty."""
    state = EngineState(metrics=bool(samples))
    if flavour in ENGINES and (series := ENGINES[flavour].metrics_series):
        usage, preemptions, cached, prompts = series
        hits, asked = total(samples, cached), total(samples, prompts)
        state = replace(
            state,
            usage=max(values(samples, usage), default=None),
            preemptions=total(samples, preemptions),
            hit_rate=hits / asked if hits is not None and asked else None,
            asked=asked,
        )
    reader = _READERS.get(flavour)
    return state if reader is None else reader(state, samples, settings)


def _vllm(state: EngineState, samples: Sequence[Sample], settings: Mapping[str, Any]) -> EngineState:
    configs = [sample.labels for sample in samples if sample.name == "vllm:cache_config_info"]
    config = configs[0] if configs else {}
    chunked = _VLLM_CHUNKED.search(str(settings.get("vllm_config", "")))
    return replace(
        state,
        kv_tokens=tuple(tokens for labels in configs if (tokens := _vllm_tokens(labels)) is not None),
        kv_dtype=config.get("cache_dtype"),
        block_size=_integer(config.get("block_size")),
        prefix_caching=_truth(config.get("enable_prefix_caching")),
        chunked_prefill=_truth(chunked[1]) if chunked else None,
        drafts=total(samples, "vllm:spec_decode_num_drafts_total"),
        accepted=total(samples, "vllm:spec_decode_num_accepted_tokens_total"),
    )


def _vllm_tokens(labels: Mapping[str, str]) -> int | None:
    """Return the KV cache capacity of a rank in tokens, or None.

    Newer versions report it. Otherwise it is blocks times their size, which is wrong if groups of layers have
    their own blocks.
    """
    reported = _integer(labels.get("kv_cache_size_tokens"))
    blocks, size = _integer(labels.get("num_gpu_blocks")), _integer(labels.get("block_size"))
    return reported if reported is not None or blocks is None or size is None else blocks * size


def _sglang(state: EngineState, samples: Sequence[Sample], settings: Mapping[str, Any]) -> EngineState:
    tokens = _integer(settings.get("max_total_num_tokens"))
    if tokens is None:
        tokens = _integer(max(values(samples, "sglang:max_total_num_tokens"), default=None))
    ranks = _integer(settings.get("dp_size")) or 1
    rate = state.hit_rate
    chunk = _integer(settings.get("chunked_prefill_size"))
    radix = settings.get("disable_radix_cache")
    return replace(
        state,
        kv_tokens=() if tokens is None else (tokens,) * ranks,
        kv_dtype=settings.get("kv_cache_dtype"),
        block_size=_integer(settings.get("page_size")),
        hit_rate=rate if rate is not None else max(values(samples, "sglang:cache_hit_rate"), default=None),
        prefix_caching=not radix if isinstance(radix, bool) else None,
        chunked_prefill=None if chunk is None else chunk > 0,
    )


def _trtllm(state: EngineState, samples: Sequence[Sample], _: Mapping[str, Any]) -> EngineState:
    blocks, size = (
        max(values(samples, f"trtllm_kv_cache_{name}"), default=None)
        for name in ("max_blocks", "tokens_per_block")
    )
    return replace(
        state,
        kv_tokens=() if blocks is None or size is None else (int(blocks * size),),
        usage=max(values(samples, "trtllm_kv_cache_utilization"), default=None),
        hit_rate=max(values(samples, "trtllm_kv_cache_hit_rate"), default=None),
    )


_READERS: dict[Flavour, Callable[[EngineState, Sequence[Sample], Mapping[str, Any]], EngineState]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
"""What each engine reports beside its `metrics_series`."""


async def _settings(client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None) -> Mapping[str, Any]:
    for path in _SETTINGS_PATHS.get(endpoint.flavour, ()):
        try:
            answer = json.loads(await get(client, endpoint.url.removesuffix("/v1") + path, api_key))
        except (ModelServerError, ValueError):
            continue
        if isinstance(answer, dict):
            return answer
    return {}


def _integer(value: object) -> int | None:
    try:
        return int(str(value)) if not isinstance(value, float) else int(value)
    except (ValueError, OverflowError):
        return None


def _truth(word: str | None) -> bool | None:
    return {"True": True, "False": False}.get(word or "")


_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[ \t]*[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_PARTS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(
    rf"({_NAME})(?:[ \t]*\{{((?:{_LABEL}(?:,{_LABEL})*,?)?[ \t]*)\}}[ \t]*|[ \t]+)([^ \t{{]+)(?:[ \t]+-?[0-9]+)?"
)
# Go's ParseFloat accepts these words; Python's float would also accept "1_000".
_VALUE = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan)", re.IGNORECASE
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True)
class Sample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(page: str) -> list[Sample]:
    """Parse a page; return its samples in order, without timestamps.

    Raises:
        ValueError: A line is neither a sample nor a comment; the message has the line's number.
    """
    samples: list[Sample] = []
    for number, line in enumerate(page.split("\n"), start=1):
        text = line.strip(" \t\r")
        if not text or text.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(text)
        if match is None or not _VALUE.fullmatch(match[3]):
            raise ValueError(f"line {number} is not a metric: {text[:80]!r}")
        samples.append(Sample(match[1], dict(_labels(match[2] or "")), float(match[3])))
    return samples


def values(samples: Iterable[Sample], name: str) -> list[float]:
    """Return the values of all series with this name."""
    return [sample.value for sample in samples if sample.name == name]


def total(samples: Iterable[Sample], name: str) -> float | None:
    """Return the sum over all series with this name; None if there is no such series."""
    known = values(samples, name)
    return sum(known) if known else None


def _labels(text: str) -> Iterable[tuple[str, str]]:
    for match in _PARTS.finditer(text):
        yield match[1], _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), match[2])
