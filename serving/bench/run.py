"""Run a bench: warm the server up, do the steps one after the other, and report each."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from m3agent.serving.bench.options import BenchStep, Options, steps, unmeasured
from m3agent.serving.bench.prompts import BenchPrompt, Corpus, Messages, PromptMaker, agents_task, next_turn
from m3agent.serving.bench.result import KINDS, BenchRequest, BenchResult, BenchRow, Kind, Round
from m3agent.serving.check.draft_check import accepted_length
from m3agent.serving.check.engine_state import EngineState, engine_state
from m3agent.serving.client.endpoint import Endpoint, Flavour, get
from m3agent.serving.client.http import open_client, post_chat
from m3agent.serving.client.messages import Usage
from m3agent.serving.client.parameters import Sampling, request_parameters
from m3agent.serving.client.request_body import RequestBody
from m3agent.serving.client.server_errors import raise_if_error, translate, whole_answer
from m3agent.serving.client.stream.chunk import (
    call_pieces,
    content_of,
    first_choice,
    read_usage,
    reasoning_pieces,
)
from m3agent.serving.client.stream.events import EventReader
from m3agent.serving.client.tokenize import count_tokens
from m3agent.serving.errors import (
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    StreamCut,
)

if TYPE_CHECKING:
    import openai

WARM_UP_TOKENS = 4096
"""Tokens of the warm-up prompt, which is not timed."""

_CONNECT_SECONDS = 10.0
_ALIVE_SECONDS = 10.0  # timeout of the check whether the server is alive

_FORCED: frozenset[Flavour] = frozenset({"vllm", "sglang"})
"""Servers that accept an exact length of the answer."""


@dataclass(frozen=True)
class BenchProgress:
    """State of the bench before each step and after the last."""

    doing: str
    elapsed: float
    to_come: float | None
    """Rough estimate of the remaining seconds; None before the first measurement."""
    result: BenchResult


async def bench(
    endpoint: Endpoint, *, api_key: str | None, options: Options, listen: Callable[[BenchProgress], None]
) -> BenchResult:
    """Measure a server.

    A failed request is marked in its row, and the bench continues. If the server dies, the bench ends, and
    the result says so. If this coroutine is cancelled, the last result that `listen` received remains valid.

    Raises:
        ModelServerError: The warm-up failed, so nothing can be measured.
    """
    async with open_client(endpoint.url, api_key, connect=_CONNECT_SECONDS, read=None) as client:
        return await _Bench(client, endpoint, api_key, options, listen).run()


@dataclass
class _Bench:
    _client: openai.AsyncOpenAI
    _endpoint: Endpoint
    _api_key: str | None
    _options: Options
    _listen: Callable[[BenchProgress], None]

    def __post_init__(self) -> None:
        endpoint = self._endpoint
        self._began = time.perf_counter()
        self._prompts = PromptMaker(Corpus(self._options.seed), self._count, secrets.token_hex(8))
        self._before = EngineState()
        self._rows: dict[tuple[Kind, int, int], BenchRow] = {}
        self._result = BenchResult(
            url=endpoint.url,
            model=endpoint.model,
            flavour=endpoint.flavour,
            version=endpoint.version,
            max_model_len=endpoint.max_model_len,
            kv_tokens=None,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=0.0,
            options=self._options,
        )

    async def run(self) -> BenchResult:
        planned, left_out = steps(self._options, self._endpoint.max_model_len)
        state = await engine_state(self._endpoint, api_key=self._api_key)
        self._result = replace(
            self._result, left_out=tuple(left_out), kv_tokens=min(state.kv_tokens, default=None)
        )
        self._before = state
        self._tell("warming up", None)
        await self._warm_up(planned)
        work_began, done = time.perf_counter(), 0.0
        for number, step in enumerate(planned):
            rest = planned[number:]
            if self._options.max_seconds is not None and self._elapsed >= self._options.max_seconds:
                limit = f"for lack of time ({self._options.max_seconds:g} s)"
                return self._end(rest, limit)
            spent = time.perf_counter() - work_began
            to_come = spent / done * sum(step.work for step in rest) if done else None
            self._tell(f"{step}, round {step.round} of {self._options.rounds}", to_come)
            trouble = await self._take(step)
            done += step.work
            await self._count_accepted()
            if trouble is not None and (why := await self._death()):
                return self._end(planned[number + 1 :], "because the server had died", why)
        return self._end([], "")

    async def _count_accepted(self) -> None:
        """Store how many tokens a step has had since the start, if the server has a draft."""
        before = self._before
        if before.drafts is None or before.accepted is None:
            return
        now = await engine_state(self._endpoint, api_key=self._api_key)
        if now.drafts is not None and now.accepted is not None:
            length = accepted_length(now.drafts - before.drafts, now.accepted - before.accepted)
            self._result = replace(self._result, accepted_length=length)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _tell(self, doing: str, to_come: float | None) -> None:
        rows = sorted(self._rows.values(), key=lambda row: (KINDS.index(row.kind), row.tokens, row.streams))
        self._result = replace(self._result, seconds=round(self._elapsed, 3), rows=tuple(rows))
        self._listen(BenchProgress(doing, self._elapsed, to_come, self._result))

    def _end(self, rest: list[BenchStep], why: str, error: str | None = None) -> BenchResult:
        left_out = [f"{part}: left out {why}" for part in unmeasured(rest, self._options.rounds)]
        self._result = replace(
            self._result,
            left_out=(*self._result.left_out, *left_out),
            ended="finished" if error is None else "died",
            error=error,
        )
        self._tell("done", 0.0)
        return self._result

    async def _warm_up(self, planned: Sequence[BenchStep]) -> None:
        """Let the server compile what it compiles at first use, and learn how many tokens its template adds.

        The warm-up sends a prompt cold, then with a further turn. Then it sends short streams for each number
        of streams in the plan, because kernels and graphs exist for each batch size. A longer prompt may
        still need a kernel for the first time; the median of three rounds is not affected by that.
        """
        shortest = min((step.tokens for step in planned), default=WARM_UP_TOKENS)
        tokens = min(WARM_UP_TOKENS, shortest)
        body = RequestBody()
        prompt = await self._prompts.make(tokens)
        request = await self._timed(self._encode(body, prompt.messages, self._options.output_tokens))
        self._prompts.learn(prompt, request.prompt_tokens)
        await self._timed(self._encode(body, next_turn(prompt), self._options.output_tokens))
        for streams in sorted({step.streams for step in planned if step.kind == "streams"} - {1}):
            await self._at_once(await self._own_prompts(streams, tokens, self._options.stream_output))

    async def _take(self, step: BenchStep) -> str | None:
        """Measure one step and store it; return what failed, or None."""
        if step.kind == "streams":
            bodies = await self._own_prompts(step.streams, step.tokens, self._options.stream_output)
            return self._enter(
                "streams", step.tokens, await self._at_once(bodies), self._options.stream_output
            )
        agents = step.streams if step.kind == "agents" else 1
        kinds: tuple[Kind, Kind] = ("first", "sharing") if step.kind == "agents" else ("cold", "cached")
        output = self._options.output_tokens
        task = agents_task(1) if step.kind == "agents" else "Fix the bug."
        prompt = await self._prompts.make(step.tokens, task)
        conversation = RequestBody()
        round_ = await self._at_once([self._encode(conversation, prompt.messages, output)])
        trouble = self._enter(kinds[0], step.tokens, round_, output)
        before = round_.requests[0].prompt_tokens
        self._prompts.learn(prompt, before)
        if trouble is not None:
            return trouble  # the cache has nothing that the other requests could find
        if step.kind == "length":
            bodies = [self._encode(conversation, next_turn(prompt), output)]
        else:
            ends = [agents_task(number) for number in range(2, agents + 1)]
            others = [BenchPrompt(prompt.system, prompt.user.removesuffix(task) + end) for end in ends]
            bodies = [self._encode(RequestBody(), other.messages, output) for other in others]
        return self._enter(kinds[1], step.tokens, await self._at_once(bodies, reusable=before or 0), output)

    def _enter(self, kind: Kind, tokens: int, round_: Round, output: int) -> str | None:
        streams = len(round_.requests)
        wanted = output if self._endpoint.flavour in _FORCED else None
        row = self._rows.get((kind, tokens, streams)) or BenchRow(kind, tokens, streams, wanted)
        self._rows[row.key] = replace(row, rounds=(*row.rounds, round_))
        return next((request.error for request in round_.requests if request.error is not None), None)

    async def _own_prompts(self, streams: int, tokens: int, output: int) -> list[bytes]:
        """Return requests that share nothing, not even their first words."""
        prompts = [await self._prompts.make(tokens) for _ in range(streams)]
        return [self._encode(RequestBody(), prompt.messages, output) for prompt in prompts]

    async def _at_once(self, bodies: Sequence[bytes], reusable: int = 0) -> Round:
        """Send requests at the same time and wait for all."""

        async def one(body: bytes) -> BenchRequest:
            try:
                return replace(await self._timed(body), reusable=reusable)
            except ModelServerError as error:
                return BenchRequest(reusable=reusable, error=str(error))

        started = time.perf_counter()
        requests = await asyncio.gather(*(one(body) for body in bodies))
        return Round(tuple(requests), round(time.perf_counter() - started, 9))

    async def _timed(self, body: bytes) -> BenchRequest:
        return await timed(self._client, self._endpoint, body, self._api_key, timeout=self._options.timeout)

    def _encode(self, body: RequestBody, messages: Messages, output: int) -> bytes:
        parameters: Mapping[str, Any] = request_parameters(
            self._endpoint,
            (),
            tool_choice="none",
            max_tokens=output,
            thinking="adaptive",
            sampling=Sampling(temperature=0.0),
        )
        if self._endpoint.flavour in _FORCED:
            parameters = {**parameters, "ignore_eos": True, "min_tokens": output}
        return body.encode(messages, parameters)

    async def _count(self, text: str) -> int | None:
        if self._endpoint.flavour not in _FORCED:
            return None  # other servers have no such page, or would count each call as a request
        try:
            async with asyncio.timeout(self._options.timeout):
                return await count_tokens(self._client, self._endpoint, text, self._api_key)
        except TimeoutError:
            return None

    async def _death(self) -> str | None:
        """Return a sentence if the server is gone, else None; a request may fail while the server lives."""
        try:
            async with asyncio.timeout(_ALIVE_SECONDS):
                await get(self._client, f"{self._endpoint.url}/models", self._api_key)
        except TimeoutError:
            return str(EndpointUnreachable(self._endpoint.host, f"it sent nothing for {_ALIVE_SECONDS:g} s"))
        except EndpointRefused:
            return None
        except ModelServerError as error:
            return str(error)
        return None


ROLE_WITH_FIRST_TOKEN: frozenset[Flavour] = frozenset({"vllm", "sglang"})
"""Servers that send their first event, which has only the role, when the first token exists.

vLLM: entrypoints/openai/chat_completion/serving.py, in the loop over the engine's output. SGLang: the same in
entrypoints/openai/serving_chat.py. For these servers the first event with a choice counts, because a first
token may show no text (half a character, a control token, most tokens of random weights). For any other
server the first event with text counts, because it may send the role before it computes anything.
"""

_NANOSECONDS = 9  # decimal places of a second


async def timed(
    client: openai.AsyncOpenAI, endpoint: Endpoint, body: bytes, api_key: str | None, *, timeout: float
) -> BenchRequest:
    """Send an encoded chat request and time its answer.

    Raises:
        ModelServerError: There was no complete answer.
    """
    import httpx2
    import openai

    host = endpoint.host
    arrivals: list[tuple[float, bytes]] = []
    reader = EventReader()
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout):
            response = await post_chat(client, body, api_key)
            try:
                kind = response.headers.get("content-type", "")
                if "event-stream" not in kind:
                    whole_answer(await response.aread(), kind, host, api_key)
                    raise EndpointRefused(
                        200, "a whole answer", host=host, advice="only a streaming server can be measured"
                    )
                async for piece in response.aiter_bytes():
                    now = time.perf_counter()
                    arrivals += [(now, event) for event in reader.feed(piece)]
            finally:
                await response.aclose()
    except TimeoutError:
        raise DeadlineExceeded(host) from None
    except openai.APIError as error:
        raise translate(error, host, api_key) from error
    except httpx2.HTTPError as error:
        raise StreamCut(host, "the connection was lost") from error
    return read_stream([(at - started, event) for at, event in arrivals], endpoint, api_key)


def read_stream(
    arrivals: Sequence[tuple[float, bytes]], endpoint: Endpoint, api_key: str | None
) -> BenchRequest:
    """Parse the events of a complete stream.

    Args:
        arrivals: Events with their times in seconds since the request was sent.

    Raises:
        ModelServerError: The answer is incomplete, or reports an error.
    """
    usage, finished = Usage(), False
    first: float | None = None
    last = 0.0
    with_text: list[float] = []
    for at, event in arrivals:
        if event.startswith(b"[DONE]"):
            break
        chunk = _json(event, endpoint.host)
        raise_if_error(chunk, endpoint.host, api_key)
        last = at
        if isinstance(reported := chunk.get("usage"), Mapping):
            usage = read_usage(reported, usage)
        choice = first_choice(chunk.get("choices"))
        if choice is None:
            continue
        finished = finished or choice.get("finish_reason") is not None
        delta = choice.get("delta")
        if isinstance(delta, Mapping) and _has_text(delta):
            with_text.append(at)
        elif endpoint.flavour not in ROLE_WITH_FIRST_TOKEN:
            continue
        first = at if first is None else first
    if not finished:
        raise StreamCut(endpoint.host, "the stream ended without a finish reason")
    if first is None:
        raise StreamCut(endpoint.host, "it ended without a token")
    return BenchRequest(
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        completion_tokens=usage.completion,
        ttft=round(first, _NANOSECONDS),
        e2e=round(last, _NANOSECONDS),
        itl=tuple(round(later - at, _NANOSECONDS) for at, later in itertools.pairwise(with_text)),
    )


def _json(event: bytes, host: str) -> Mapping[str, Any]:
    try:
        chunk = json.loads(event)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise StreamCut(host, "an event in the stream is not a JSON object")
    return chunk


def _has_text(delta: Mapping[str, Any]) -> bool:
    """Return whether a delta shows a token: text, reasoning, or a piece of a call."""
    return (
        bool(content_of(delta))
        or any(True for _ in reasoning_pieces(delta))
        or any(True for _ in call_pieces(delta))
    )
