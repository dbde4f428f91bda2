"""Result of a bench: typed, with statistics, to JSON and back.

Definitions for one streamed request, all in seconds:

- TTFT, time to first token: from sending the request to the event that shows that a first token exists (`stream.py`
  says which event that is for which server).
- E2E: from sending the request to the last event of its answer.
- TPOT, time per output token: (E2E - TTFT) / (completion tokens - 1), with the server's own token count.
- ITL, inter-token latency: the times between one event with text and the next.

These are the definitions of `vllm bench serve` (vllm/benchmarks/serve.py). docs/serving-bench.md lists the differences.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, TypeVar

from m3agent.serving.bench.options import Options

COLD_SHARE = 0.01
COLD_TOKENS = 256
"""A prompt counts as cold if the cache had less than `COLD_SHARE` of it, or less than this number of tokens.

The number is two blocks of the cache. M3's chat template begins every prompt with the same text (vLLM 0.24
had 128 such tokens in its cache).
"""
TELLING, LEAST_EVENTS = 32, 0.75
"""An answer of at least `TELLING` tokens must have at least this share of events, or its tokens were held back.

Tokens mostly come one by one. On long prompts vLLM's reasoning parser scans the prompt after the first token, and vLLM
holds back the tokens of that time. With the whole model and a million tokens these are about 30.
"""
CACHED_SHARE = 0.9
"""Share of the tokens of an earlier request that the cache must find again."""

FORMAT = 1
"""Version of the JSON format."""

Kind: TypeAlias = Literal["cold", "cached", "first", "sharing", "streams"]
"""Kinds of rows.

- `cold`: a prompt that nobody sent before.
- `cached`: the same prompt with a further turn.
- `first`: the first of several agents with one prefix.
- `sharing`: the other agents.
- `streams`: simultaneous streams with their own prompts.
"""
KINDS: tuple[Kind, ...] = ("cold", "cached", "first", "sharing", "streams")

Ending: TypeAlias = Literal["running", "finished", "interrupted", "died"]


@dataclass(frozen=True)
class BenchRequest:
    """One timed request; None means unknown. Values from before a failure are kept, but they do not count."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft: float | None = None
    """Time to first token in seconds."""
    e2e: float | None = None
    """Time to the last event in seconds."""
    itl: tuple[float, ...] = ()
    """Times between events with text, in seconds."""
    reusable: int = 0
    """Tokens of the prompt that an earlier request also had."""
    error: str | None = None
    """Why the request failed, in a sentence; None if it did not."""

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds."""
        tokens = self.completion_tokens or 0
        if self.ttft is None or self.e2e is None or tokens < 2:
            return None
        return (self.e2e - self.ttft) / (tokens - 1)

    @property
    def held_back(self) -> bool:
        """True if many tokens came together; then `tpot` does not show the engine's real pace."""
        tokens = self.completion_tokens or 0
        return tokens >= TELLING and self.events < LEAST_EVENTS * tokens

    @property
    def events(self) -> int:
        """Number of events with tokens."""
        return len(self.itl) + 1

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt that came from the server's cache."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def cache_marks(self) -> Iterator[str]:
        """Yield what is wrong if the cache had more or fewer tokens of the prompt than an earlier request left there."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return
        share = f"{self.cached_tokens:,} of {self.prompt_tokens:,} tokens came from the cache"
        if not self.reusable and self.cached_tokens > max(COLD_TOKENS, COLD_SHARE * self.prompt_tokens):
            yield f"not cold: {share}"
        if self.cached_tokens < CACHED_SHARE * self.reusable:
            yield f"not cached: {share}"


@dataclass(frozen=True)
class Round:
    """Requests that were sent at the same time."""

    requests: tuple[BenchRequest, ...]
    seconds: float
    """Time from the first request's start to the last one's end."""

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens of all requests a second, prefill included; None if one failed or was not counted."""
        counts = _known(request.completion_tokens for request in self.requests if request.error is None)
        if len(counts) < len(self.requests) or not self.seconds:
            return None
        return sum(counts) / self.seconds


@dataclass(frozen=True)
class Statistics:
    """Statistics of `count` values. The percentile is interpolated linearly, as numpy does."""

    mean: float
    median: float
    p99: float
    count: int

    @classmethod
    def of(cls, measured: Iterable[float | None]) -> Statistics | None:
        """Compute the statistics of the known values; None without any."""
        values = _known(measured)
        if not values:
            return None
        p99 = statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]
        return cls(statistics.fmean(values), statistics.median(values), p99, len(values))


_Value = TypeVar("_Value")


def _known(values: Iterable[_Value | None]) -> list[_Value]:
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class BenchRow:
    """One kind of measurement with its rounds."""

    kind: Kind
    tokens: int
    """Wanted tokens of the prompt, or of the shared prefix."""
    streams: int
    output_tokens: int | None
    """Tokens that each answer must have; None if the server's answers end by themselves."""
    rounds: tuple[Round, ...] = ()

    @property
    def key(self) -> tuple[Kind, int, int]:
        """Identity of the row within a result."""
        return self.kind, self.tokens, self.streams

    @property
    def requests(self) -> list[BenchRequest]:
        """Requests that succeeded."""
        return [request for round_ in self.rounds for request in round_.requests if request.error is None]

    @property
    def ttft(self) -> Statistics | None:
        """Statistics of TTFT over the requests of all rounds; None without values."""
        return Statistics.of(request.ttft for request in self.requests)

    @property
    def e2e(self) -> Statistics | None:
        """Statistics of E2E over the requests of all rounds; None without values."""
        return Statistics.of(request.e2e for request in self.requests)

    @property
    def tpot(self) -> Statistics | None:
        """Statistics of TPOT with one value a request, so a short answer counts as much as a long one."""
        return Statistics.of(request.tpot for request in self.requests)

    @property
    def itl(self) -> Statistics | None:
        """Statistics of ITL with one value a gap, so each token counts the same."""
        return Statistics.of(gap for request in self.requests for gap in request.itl)

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens a second of all streams together, prefill included: the median of the rounds."""
        speeds = _known(round_.tokens_per_second for round_ in self.rounds)
        return statistics.median(speeds) if speeds else None

    @property
    def prompt_tokens(self) -> int | None:
        """Median of the prompt tokens that the server counted."""
        counts = _known(request.prompt_tokens for request in self.requests)
        return round(statistics.median(counts)) if counts else None

    @property
    def cached_share(self) -> float | None:
        """Median of the cached share."""
        shares = _known(request.cached_share for request in self.requests)
        return statistics.median(shares) if shares else None

    @property
    def marks(self) -> tuple[str, ...]:
        """Anomalies of the row.

        They are failures, more or fewer cached tokens than expected, tokens that were held back, and answers
        with another length than wanted.
        """
        return tuple(dict.fromkeys(self._marks()))

    def _marks(self) -> Iterator[str]:
        yield from _known(request.error for round_ in self.rounds for request in round_.requests)
        cached = [request for request in self.requests if request.cached_tokens is not None]
        if self.requests and not cached:
            yield "the server does not report cached tokens"
        for request in cached:
            yield from request.cache_marks()
        held_back = next((request for request in self.requests if request.held_back), None)
        if held_back is not None:
            yield (
                f"{held_back.completion_tokens} tokens came in {held_back.events} events: the server held "
                "them back or made several at a time; ITL shows the engine's speed"
            )
        lengths = _known(request.completion_tokens for request in self.requests)
        if self.output_tokens is not None:
            for length in lengths:
                if length != self.output_tokens:
                    yield f"an answer had {length} tokens instead of {self.output_tokens}"


@dataclass(frozen=True)
class BenchResult:
    """Result of a bench, finished or not."""

    url: str
    model: str
    flavour: str
    version: str | None
    max_model_len: int | None
    kv_tokens: int | None
    """KV cache capacity of a rank in tokens, as the server reports it."""
    started: str
    seconds: float
    options: Options
    rows: tuple[BenchRow, ...] = ()
    left_out: tuple[str, ...] = ()
    ended: Ending = "running"
    error: str | None = None
    accepted_length: float | None = None
    """Mean tokens a step with a draft, during the bench; None without a draft."""

    def row(self, kind: Kind, tokens: int, streams: int = 1) -> BenchRow | None:
        """Return the row of exactly this kind and size, or None."""
        return next((row for row in self.rows if row.key == (kind, tokens, streams)), None)

    def speed_up(self, row: BenchRow) -> float | None:
        """Return how many times faster the first token came than for the prompt that nobody had sent before.

        Returns:
            The ratio of the median TTFTs, or None if there is nothing to compare.
        """
        pairs: dict[Kind, Kind] = {"cached": "cold", "sharing": "first"}
        before = self.row(pairs[row.kind], row.tokens) if row.kind in pairs else None
        if before is None or before.ttft is None or row.ttft is None or not row.ttft.median:
            return None
        return before.ttft.median / row.ttft.median


def to_json(result: BenchResult) -> str:
    """Return the result as JSON with the statistics of each row (docs/serving-bench.md lists the fields)."""
    import json

    value = {"format": FORMAT, **asdict(result)}
    value["rows"] = [asdict(row) | _derived(result, row) for row in result.rows]
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def from_json(text: str | bytes) -> BenchResult:
    """Parse a result that `to_json` wrote; statistics are computed again.

    Raises:
        ValueError: The text is not such JSON.
    """
    import json

    from pydantic import TypeAdapter, ValidationError

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"this is not a bench result in format {FORMAT}")
    known = {field.name for field in fields(BenchResult)}
    try:
        return TypeAdapter(BenchResult).validate_python({name: value[name] for name in known & value.keys()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "result"
        raise ValueError(f"this is not a bench result: {where}: {first['msg'].lower()}") from None


def _derived(result: BenchResult, row: BenchRow) -> dict[str, Any]:
    statistic = {
        name: None if value is None else asdict(value)
        for name, value in (("ttft", row.ttft), ("tpot", row.tpot), ("itl", row.itl), ("e2e", row.e2e))
    }
    return {
        **statistic,
        "tokens_per_second": row.tokens_per_second,
        "prompt_tokens": row.prompt_tokens,
        "cached_share": row.cached_share,
        "speed_up": result.speed_up(row),
        "marks": row.marks,
    }
