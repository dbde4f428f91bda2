"""The OpenAI-compatible server of the embedded engine: on loopback, without a key, with one model."""

import asyncio
import contextlib
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from m3agent.serving.client.daemon_thread import in_background
from m3agent.serving.embedded.http_app import served
from m3agent.serving.embedded.policy import respond
from m3agent.serving.embedded.repair import Budget
from m3agent.serving.wire import CallFinished, ReasoningDelta, StreamParser, TextDelta, WireEvent, write

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MODEL = "m3agent-embedded"
MAX_MODEL_LEN = 1_048_576
"""Most tokens of a request: M3's own window.

The engine reads only the issue and the results of its own calls.
"""
CHUNK = 4000
"""Characters of wire text per call of the parser, as a model's output would arrive."""


class BadRequest(Exception):
    """A request that cannot be answered.

    Attributes:
        status: HTTP status.
        param: The field with the error, if any.
        code: OpenAI's error code, if any.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def estimate(value: object) -> int:
    """Estimate the tokens of a JSON value as a quarter of its bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace")) // 4


def check(body: object) -> Mapping[str, Any]:
    """Return `body` if it is a valid request for this model.

    Raises:
        BadRequest: It is not.
    """
    if not isinstance(body, Mapping):
        raise BadRequest(400, "the request body is not a JSON object")
    if body.get("model") != MODEL:
        raise BadRequest(
            404, f"there is no model {body.get('model')!r} here, only {MODEL!r}", "model", "model_not_found"
        )
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(400, "messages is missing or not a list with at least one message", "messages")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in (
            "system",
            "developer",
            "user",
            "assistant",
            "tool",
        ):
            raise BadRequest(
                400, f"messages[{number}] is not an object with a known role", f"messages[{number}]"
            )
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(
            isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls
        ):
            raise BadRequest(
                400, f"messages[{number}].tool_calls is malformed", f"messages[{number}].tool_calls"
            )
    if not isinstance(body.get("tools") or [], list):
        raise BadRequest(400, "tools is not a list", "tools")
    if not isinstance(body.get("seed"), int | None):
        raise BadRequest(400, "seed is not a whole number", "seed")
    prompt = estimate(messages)
    if prompt > MAX_MODEL_LEN:
        raise BadRequest(
            400,
            f"This model's maximum context length is {MAX_MODEL_LEN} tokens, the request has about {prompt}.",
            "messages",
            "context_length_exceeded",
        )
    return body


class RepairService:
    """Answer requests and keep statistics."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.counts: Counter[str] = Counter()
        self.started = time.time()

    async def events(self, body: Mapping[str, Any]) -> tuple[list[WireEvent], str]:
        """Return the parsed output for a request, and the wire text."""
        seed = body.get("seed")
        budget = self.budget if seed is None else replace(self.budget, seed=seed)
        reply = await in_background(partial(respond, body, budget))
        text = write(reply.reasoning, reply.text, list(reply.calls))
        kwargs = body.get("chat_template_kwargs")
        mode = kwargs.get("thinking_mode", "adaptive") if isinstance(kwargs, Mapping) else "adaptive"
        parser = StreamParser(body.get("tools") or [], "disabled" if mode == "disabled" else "adaptive")
        events: list[WireEvent] = []
        for start in range(0, len(text), CHUNK):
            events += parser.feed(text[start : start + CHUNK])
        events += parser.close()
        self.counts["turns"] += 1
        self.counts["tool_calls"] += len(reply.calls)
        self.counts["candidates"] += reply.judged
        self.counts["finished"] += not reply.calls
        return events, text

    def metrics(self) -> str:
        """Return the statistics in Prometheus' text format."""
        names = ("requests", "turns", "tool_calls", "finished", "errors", "candidates")
        lines = []
        for name in names:
            lines += [
                f"# TYPE m3agent_embedded_{name}_total counter",
                f"m3agent_embedded_{name}_total {self.counts[name]}",
            ]
        lines += [
            "# TYPE m3agent_embedded_start_time_seconds gauge",
            f"m3agent_embedded_start_time_seconds {self.started:.3f}",
        ]
        return "\n".join(lines) + "\n"


def deltas(events: list[WireEvent]) -> list[dict[str, Any]]:
    """Convert parsed events to the deltas of a chat completion; each call is one delta, as in vLLM."""
    found: list[dict[str, Any]] = []
    number = itertools.count()
    for event in events:
        match event:
            case ReasoningDelta(text):
                found.append({"reasoning": text})
            case TextDelta(text):
                found.append({"content": text})
            case CallFinished(call):
                function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
                entry = {
                    "index": next(number),
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "type": "function",
                    "function": function,
                }
                found.append({"tool_calls": [entry]})
            case _:
                pass
    return found


def message_of(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine deltas into the message of an answer that is not streamed."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(piece.get("content", "") for piece in pieces),
    }
    reasoning = "".join(piece.get("reasoning", "") for piece in pieces)
    if reasoning:
        message["reasoning"] = reasoning
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for piece in pieces
        for call in piece.get("tool_calls", ())
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def application(engine: RepairService) -> "Starlette":
    """Build the HTTP application of `engine`."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    from m3agent import __version__

    def refused(error: BadRequest) -> JSONResponse:
        engine.counts["errors"] += 1
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        content = {
            "message": str(error),
            "type": kind,
            "param": error.param,
            "code": error.code or error.status,
        }
        return JSONResponse({"error": content}, status_code=error.status)

    async def health(request: "Request") -> "Response":
        return JSONResponse({"status": "ok"})

    async def version(request: "Request") -> "Response":
        return JSONResponse({"version": __version__})

    async def models(request: "Request") -> "Response":
        entry = {
            "id": MODEL,
            "object": "model",
            "created": int(engine.started),
            "owned_by": "m3agent",
            "max_model_len": MAX_MODEL_LEN,
        }
        return JSONResponse({"object": "list", "data": [entry]})

    async def metrics(request: "Request") -> "Response":
        return PlainTextResponse(engine.metrics(), media_type="text/plain; version=0.0.4")

    async def completions(request: "Request") -> "Response":
        engine.counts["requests"] += 1
        try:
            try:
                body = check(json.loads(await request.body()))
            except ValueError:
                raise BadRequest(400, "the request body is not valid JSON") from None
            events, text = await engine.events(body)
        except BadRequest as error:
            return refused(error)
        except asyncio.CancelledError:  # the server is shutting down, so no client waits for the answer
            return PlainTextResponse("shutting down", status_code=503)
        pieces = deltas(events)
        finish = "tool_calls" if any("tool_calls" in piece for piece in pieces) else "stop"
        base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": MODEL}
        prompt, completion = estimate(body["messages"]), max(1, len(text.encode()) // 4)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if not body.get("stream"):
            choice = {"index": 0, "message": message_of(pieces), "finish_reason": finish, "logprobs": None}
            return JSONResponse({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        options = body.get("stream_options")
        counted = isinstance(options, Mapping) and bool(options.get("include_usage"))
        lines = stream(base, pieces, finish, usage if counted else None)
        return StreamingResponse(lines, media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/chat/completions", completions, methods=["POST"]),
        ]
    )


async def stream(
    base: Mapping[str, Any], pieces: list[dict[str, Any]], finish: str, usage: Mapping[str, int] | None
) -> AsyncIterator[str]:
    """Yield the server-sent events of one answer."""

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        chunk = {**base, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for piece in pieces:
        yield event([{"index": 0, "delta": piece, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": finish}])
    if usage is not None:
        yield event([], usage=dict(usage))
    yield "data: [DONE]\n\n"


class EmbeddedServer:
    """The engine as a server that runs while the context is open.

    The policy works in a thread, so the caller's event loop stays free. `url` ends in ``/v1``. Entering
    raises OSError if the address is not available.

    Args:
        host: Address to listen on; loopback by default.
        port: Port to listen on; 0 for a free one.
        budget: Limits of the search; None for the defaults.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, budget: Budget | None = None) -> None:
        self._host = host
        self._port = port
        self.engine = RepairService(budget or Budget())
        self.url = ""
        self._serving: contextlib.AbstractAsyncContextManager[str] | None = None

    async def __aenter__(self) -> Self:
        self._serving = served(application(self.engine), self._host, self._port)
        self.url = f"{await self._serving.__aenter__()}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._serving is not None
        await self._serving.__aexit__(kind, error, trace)
