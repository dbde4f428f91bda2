"""Time one streamed request.

While the stream runs, the module notes only when each event arrives. It parses the events afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m3agent.serving.bench.result import BenchRequest
from m3agent.serving.client.endpoint import Endpoint, Flavour
from m3agent.serving.client.http import post_chat
from m3agent.serving.client.messages import Usage
from m3agent.serving.client.server_errors import raise_if_error, translate, whole_answer
from m3agent.serving.client.stream.chunk import (
    call_pieces,
    content_of,
    first_choice,
    read_usage,
    reasoning_pieces,
)
from m3agent.serving.client.stream.events import EventReader
from m3agent.serving.errors import DeadlineExceeded, EndpointRefused, StreamCut

if TYPE_CHECKING:
    import openai

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

    Args:
        client: Client of the server.
        endpoint: The server.
        body: The encoded request.
        api_key: Key of the server.
        timeout: Time limit in seconds.

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
        endpoint: The server.
        api_key: Key of the server, which error messages must not show.

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
