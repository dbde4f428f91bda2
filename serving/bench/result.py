"""What a bench found: typed, with its statistics, as JSON and back.

Definitions, all in seconds, for one streamed request:

- TTFT, time to first token: from sending the request to the event that shows that there is a first token
  (`stream.py` says which one that is for which server).
- E2E: from sending the request to the last event of its answer.
- TPOT, time per output token: (E2E - TTFT) / (completion tokens - 1), with the server's own count of tokens.
- ITL, inter-token latency: the times between one event with text and the next.

These are the definitions of `vllm bench serve` (vllm/benchmarks/serve.py); docs/serving-bench.md says where ours differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

from m3agent.serving.bench.options import Options

COLD_SHARE = 0.01
COLD_TOKENS = 256
"""Of a cold prompt less than this share, or these two blocks of the cache, may have been cached: before the first message
M3's chat template has a beginning that all prompts share (128 tokens were found on vLLM 0.24)."""
TELLING, LEAST_EVENTS = 32, 0.75
"""Of an answer of so many tokens or more such a share of events at least. Tokens mostly come one by one; where vLLM looks
through a long prompt after the first token (its reasoning parser does), those that come meanwhile are held back: with the
whole model and a million tokens some 30 of them."""
CACHED_SHARE = 0.9
"""Of the tokens that an earlier request left in the cache at least this share is to be found again."""

FORMAT = 1
"""Of the JSON."""

Kind: TypeAlias = Literal["cold", "cached", "first", "sharing", "streams"]
"""A prompt that nobody sent before; the same and a further turn; the first of several agents with one prefix; the
others; streams at a time with prompts of their own."""
KINDS: tuple[Kind, ...] = ("cold", "cached", "first", "sharing", "streams")

Ending: TypeAlias = Literal["running", "finished", "interrupted", "died"]


@dataclass(frozen=True)
class Request:
    """One timed request, None where unknown. `reusable`: tokens of its prompt that an earlier request had; `error`: why
    it failed, in a sentence. What came before the failure is kept but counts for nothing."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft: float | None = None
    e2e: float | None = None
    itl: tuple[float, ...] = ()
    reusable: int = 0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds for each output token after the first."""
        if (
            self.ttft is None
            or self.e2e is None
            or self.completion_tokens is None
            or self.completion_tokens < 2
        ):
            return None
        return (self.e2e - self.ttft) / (self.completion_tokens - 1)

    @property
    def held_back(self) -> bool:
        """Whether many tokens came together, so that `tpot` says less than the time that the engine took for each."""
        tokens = self.completion_tokens or 0
        return tokens >= TELLING and self.events < LEAST_EVENTS * tokens

    @property
    def events(self) -> int:
        """With tokens."""
        return len(self.itl) + 1

    @property
    def cached_share(self) -> float | None:
        """The share of the prompt that the server's cache had."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True)
class Round:
    """Requests that were sent at the same time; `seconds` from the first one's sending to the last one's end."""

    requests: tuple[Request, ...]
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens of all requests a second, their prefill included; None where one failed or was not counted."""
        counts = [request.completion_tokens for request in self.requests if request.error is None]
        known = [count for count in counts if count is not None]
        if len(known) < len(self.requests) or not self.seconds:
            return None
        return sum(known) / self.seconds


@dataclass(frozen=True)
class Statistics:
    """Of `count` values. The percentile lies between two values where it has to (linearly, as numpy's does)."""

    mean: float
    median: float
    p99: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistics | None:
        """None for no values."""
        if not values:
            return None
        p99 = statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]
        return cls(statistics.fmean(values), statistics.median(values), p99, len(values))


@dataclass(frozen=True)
class Row:
    """One kind of measurement with its rounds. `tokens`: of the prompt as it was asked for, or of the shared prefix;
    `streams`: requests at a time; `output_tokens`: that each answer must have, None for a server that stops by itself."""

    kind: Kind
    tokens: int
    streams: int
    output_tokens: int | None
    rounds: tuple[Round, ...] = ()

    @property
    def key(self) -> tuple[Kind, int, int]:
        """What tells rows of one result apart."""
        return self.kind, self.tokens, self.streams

    @property
    def requests(self) -> list[Request]:
        """Those that succeeded."""
        return [request for round_ in self.rounds for request in round_.requests if request.error is None]

    @property
    def ttft(self) -> Statistics | None:
        """Over the requests of all rounds, as the other three are."""
        return Statistics.of([request.ttft for request in self.requests if request.ttft is not None])

    @property
    def e2e(self) -> Statistics | None:
        """See `ttft`."""
        return Statistics.of([request.e2e for request in self.requests if request.e2e is not None])

    @property
    def tpot(self) -> Statistics | None:
        """One value a request, so that a short answer weighs as much as a long one."""
        return Statistics.of([request.tpot for request in self.requests if request.tpot is not None])

    @property
    def itl(self) -> Statistics | None:
        """One value a gap, so that each token weighs the same."""
        return Statistics.of([gap for request in self.requests for gap in request.itl])

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens a second of all streams together, prefill included; the median of the rounds."""
        speeds = [speed for round_ in self.rounds if (speed := round_.tokens_per_second) is not None]
        return statistics.median(speeds) if speeds else None

    @property
    def prompt_tokens(self) -> int | None:
        """The median of what the server counted."""
        counts = [request.prompt_tokens for request in self.requests if request.prompt_tokens is not None]
        return round(statistics.median(counts)) if counts else None

    @property
    def cached_share(self) -> float | None:
        """The median."""
        shares = [share for request in self.requests if (share := request.cached_share) is not None]
        return statistics.median(shares) if shares else None

    @property
    def marks(self) -> tuple[str, ...]:
        """What is not as it should be: failures, a cache that had too much or too little, short answers."""
        return tuple(dict.fromkeys(self._marks()))

    def _marks(self) -> Iterator[str]:
        for round_ in self.rounds:
            for request in round_.requests:
                if request.error is not None:
                    yield request.error
        cached = [request for request in self.requests if request.cached_tokens is not None]
        if self.requests and not cached:
            yield "cached tokens are unknown: the server does not report them"
        for request in cached:
            if request.prompt_tokens is None or request.cached_tokens is None:
                continue
            share = f"{request.cached_tokens:,} of {request.prompt_tokens:,} tokens came from the cache"
            if not request.reusable and request.cached_tokens > max(
                COLD_TOKENS, COLD_SHARE * request.prompt_tokens
            ):
                yield f"not cold: {share}"
            if request.cached_tokens < CACHED_SHARE * request.reusable:
                yield f"not cached: {share}"
        for request in self.requests:
            if request.held_back:
                yield (
                    f"{request.completion_tokens} tokens came in {request.events} events, held back by the server "
                    "or made several at a time: see ITL for the engine's pace"
                )
                break
        if self.output_tokens is not None:
            for request in self.requests:
                if request.completion_tokens is not None and request.completion_tokens != self.output_tokens:
                    yield f"an answer had {request.completion_tokens} tokens instead of {self.output_tokens}"


@dataclass(frozen=True)
class Result:
    """A bench, finished or not. `started`: UTC, ISO 8601. `kv_tokens`: that the cache of each rank has room for, by the
    server's own account. `left_out`: what was not measured, and why. `error`: what ended it early."""

    url: str
    model: str
    flavour: str
    version: str | None
    max_model_len: int | None
    kv_tokens: int | None
    started: str
    seconds: float
    options: Options
    rows: tuple[Row, ...] = ()
    left_out: tuple[str, ...] = ()
    ended: Ending = "running"
    error: str | None = None

    def row(self, kind: Kind, tokens: int, streams: int = 1) -> Row | None:
        """The row of exactly that kind and size."""
        return next((row for row in self.rows if row.key == (kind, tokens, streams)), None)

    def speed_up(self, row: Row) -> float | None:
        """How many times faster the first token came than for the prompt that nobody had sent before."""
        pairs: dict[Kind, Kind] = {"cached": "cold", "sharing": "first"}
        before = self.row(pairs[row.kind], row.tokens) if row.kind in pairs else None
        if before is None or before.ttft is None or row.ttft is None or not row.ttft.median:
            return None
        return before.ttft.median / row.ttft.median


def to_json(result: Result) -> str:
    """The result with the statistics of each row, as JSON (docs/serving-bench.md has its fields)."""
    import json

    value = {"format": FORMAT, **asdict(result)}
    value["rows"] = [asdict(row) | _derived(result, row) for row in result.rows]
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def from_json(text: str | bytes) -> Result:
    """The result that `to_json` wrote; what is derived is derived again.

    Raises:
        ValueError: it is no such JSON.
    """
    import json

    from pydantic import TypeAdapter, ValidationError

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"this is no result of a bench in format {FORMAT}")
    known = {field.name for field in fields(Result)}
    try:
        return TypeAdapter(Result).validate_python({name: value[name] for name in known & value.keys()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "result"
        raise ValueError(f"this is no result of a bench: {where}: {first['msg'].lower()}") from None


def _derived(result: Result, row: Row) -> dict[str, Any]:
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
