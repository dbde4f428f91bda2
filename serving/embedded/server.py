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
from typing import TYPE_CHECKING, Any

from m3agent.serving.embedded.http_app import served
from m3agent.serving.embedded.policy import respond
from m3agent.serving.embedded.repair import Budget
from m3agent.serving.wire import CallFinished, ReasoningDelta, StreamParser, TextDelta, WireEvent, write
from m3agent.util.daemon_thread import in_background

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MODEL = "m3agent-embedded"
MAX_MODEL_LEN = 1_048_576
"""Most tokens of a request: M3's own window.

The engine reads only the issue and the results of its own calls.
"""
ROLES = ("system", "developer", "user", "assistant", "tool")
CHUNK = 4000
"""Characters of wire text per call of the parser, as a model's output would arrive."""


class BadRequest(Exception):
    """A request that cannot be answered."""

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        """The field with the error, if any."""
        self.code = code
        """OpenAI's error code, if any."""
        self.status = status
        """HTTP status."""


def estimate(value: object) -> int:
    """Estimate the tokens of a JSON value as a quarter of its bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace")) // 4


def check(body: object) -> Mapping[str, Any]:
    """Return `body` if it is a valid request for this model.

    Raises:
        BadRequest: It is not.
    """
    if not isinstance(body, Mapping):
        raise BadRequest("the request body is not a JSON object")
    if body.get("model") != MODEL:
        reason = f"there is no model {body.get('model')!r} here, only {MODEL!r}"
        raise BadRequest(reason, "model", "model_not_found", 404)
    messages = _checked_messages(body.get("messages"))
    if not isinstance(body.get("tools") or [], list):
        raise BadRequest("tools is not a list", "tools")
    if not isinstance(body.get("seed"), int | None):
        raise BadRequest("seed is not a whole number", "seed")
    prompt = estimate(messages)
    if prompt > MAX_MODEL_LEN:
        reason = (
            f"This model's maximum context length is {MAX_MODEL_LEN} tokens, the request has about {prompt}."
        )
        raise BadRequest(reason, "messages", "context_length_exceeded")
    return body


def _checked_messages(messages: object) -> list[Any]:
    """Return a request's messages. Raises BadRequest: They are malformed."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages is missing or not a list with at least one message", "messages")
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise BadRequest(f"{place} is not an object with a known role", place)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(map(_is_call, calls)):
            raise BadRequest(f"{place}.tool_calls is malformed", f"{place}.tool_calls")
    return messages


def _is_call(call: object) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)


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
        lines = []
        for name in ("requests", "turns", "tool_calls", "finished", "errors", "candidates"):
            metric = f"m3agent_embedded_{name}_total"
            lines += [f"# TYPE {metric} counter", f"{metric} {self.counts[name]}"]
        metric = "m3agent_embedded_start_time_seconds"
        lines += [f"# TYPE {metric} gauge", f"{metric} {self.started:.3f}"]
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
                ident = f"call_{uuid.uuid4().hex[:24]}"
                entry = {"index": next(number), "id": ident, "type": "function", "function": function}
                found.append({"tool_calls": [entry]})
    return found


def message_of(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine deltas into the message of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for piece in pieces:
        for key, value in piece.items():
            if key == "tool_calls":
                calls = message.setdefault(key, [])
                calls += [{name: part for name, part in call.items() if name != "index"} for call in value]
            else:
                message[key] = message.get(key, "") + value
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
        code = error.code or error.status
        content = {"message": str(error), "type": kind, "param": error.param, "code": code}
        return JSONResponse({"error": content}, status_code=error.status)

    def fixed(path: str, **content: object) -> Route:
        async def answer(request: "Request") -> "Response":
            return JSONResponse(content)

        return Route(path, answer)

    async def metrics(request: "Request") -> "Response":
        return PlainTextResponse(engine.metrics(), media_type="text/plain; version=0.0.4")

    async def completions(request: "Request") -> "Response":
        engine.counts["requests"] += 1
        try:
            try:
                body = check(json.loads(await request.body()))
            except ValueError:
                raise BadRequest("the request body is not valid JSON") from None
            events, text = await engine.events(body)
        except BadRequest as error:
            return refused(error)
        except asyncio.CancelledError:  # the server is shutting down, so no client waits for the answer
            return PlainTextResponse("shutting down", status_code=503)
        pieces = deltas(events)
        finish = "tool_calls" if any("tool_calls" in piece for piece in pieces) else "stop"
        base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": MODEL}
        prompt, completion = estimate(body["messages"]), max(1, len(text.encode()) // 4)
        total = prompt + completion
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
        if not body.get("stream"):
            choice = {"index": 0, "message": message_of(pieces), "finish_reason": finish, "logprobs": None}
            return JSONResponse({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        options = body.get("stream_options")
        counted = isinstance(options, Mapping) and bool(options.get("include_usage"))
        lines = stream(base, pieces, finish, usage if counted else None)
        return StreamingResponse(lines, media_type="text/event-stream")

    model = {"id": MODEL, "object": "model", "created": int(engine.started), "owned_by": "m3agent"}
    routes = [
        fixed("/health", status="ok"),
        fixed("/version", version=__version__),
        fixed("/v1/models", object="list", data=[{**model, "max_model_len": MAX_MODEL_LEN}]),
        Route("/metrics", metrics),
        Route("/v1/chat/completions", completions, methods=["POST"]),
    ]
    return Starlette(routes=routes)


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


@contextlib.asynccontextmanager
async def embedded_server(
    *, host: str = "127.0.0.1", port: int = 0, candidates: int | None = None, seed: int = 0
) -> AsyncIterator[str]:
    """Run the engine while the context is open, and yield its address, which ends in ``/v1``.

    The policy works in a thread, so the caller's event loop stays free.
    Port 0 is a free one; for `candidates` see `Budget.chosen`. Raises OSError if the address is not available.
    """
    engine = RepairService(Budget.chosen(candidates, seed))
    async with served(application(engine), host, port) as url:
        yield f"{url}/v1"
