"""A real HTTP server on loopback that answers chat completions from a script, including faults."""

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, get_args

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from m3agent.serving.client.messages import ReasoningField

MODEL = "minimax-m3"
VLLM_MODELS = {"object": "list", "data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 1048576}]}


@dataclass(frozen=True)
class Reply:
    """A plain answer: status, body, headers."""

    status: int
    body: Any = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Silence:
    """Accept the request and never answer."""


@dataclass(frozen=True)
class Stall:
    """In a stream: send nothing more, and keep the connection open."""


@dataclass(frozen=True)
class Cut:
    """In a stream: drop the connection here."""


@dataclass(frozen=True)
class Pause:
    """In a stream: send nothing for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Stream:
    """A streamed answer: each event is a JSON value, or text or bytes that are sent unchanged.

    `[DONE]` follows unless `done` is False.
    """

    events: list[Any]
    done: bool = True


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    port: int = 0
    """The client's port; each connection has another one."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class QuietServer(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the test run keeps its own handlers


class MisbehavingServer:
    """Gives `answers` to chat requests in turn, the last one for ever, in its own thread.

    An answer may be a function of the request. If `accepts` is set, chat requests with any other parameter are refused.
    """

    def __init__(self, port: int = 0) -> None:
        self.reset()
        self._arrival = threading.Condition()
        app = Starlette(routes=[Route("/{path:path}", self._handle, methods=["GET", "POST"])])
        config = uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=1)
        self._server = QuietServer(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._ready = threading.Event()
        started = self._server.startup

        async def startup(*args: Any, **kwargs: Any) -> None:
            await started(*args, **kwargs)
            self._ready.set()

        self._server.startup = startup  # type: ignore[method-assign]

    def reset(self) -> None:
        """Forget the script and the requests."""
        self.answers: list[Any] = []
        self.accepts: frozenset[str] | None = None
        self.pages: dict[str, Any] = {"/v1/models": VLLM_MODELS, "/version": {"version": "0.24.0"}}
        self.requests: list[Received] = []

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the test server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    @property
    def chats(self) -> list[Received]:
        return [request for request in self.requests if request.path == "/v1/chat/completions"]

    def wait_for_chats(self, count: int) -> None:
        """Block until `count` chat requests have arrived."""
        with self._arrival:
            assert self._arrival.wait_for(lambda: len(self.chats) >= count, timeout=60)

    async def _handle(self, request: Request) -> Response:
        path = request.url.path
        received = Received(
            path, dict(request.headers), await request.body(), request.client.port if request.client else 0
        )
        with self._arrival:
            self.requests.append(received)
            self._arrival.notify_all()
        if path != "/v1/chat/completions":
            return await self._respond(request, self.pages.get(path, Reply(404, {"detail": "Not Found"})))
        if self.accepts is not None and (unknown := sorted(received.json.keys() - self.accepts)):
            return await self._respond(request, Reply(400, {"error": {"message": f"unknown: {unknown}"}}))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(received)
        return await self._respond(request, answer)

    async def _respond(self, request: Request, answer: Any) -> Response:
        if isinstance(answer, Silence):
            while (await request.receive())["type"] != "http.disconnect":
                pass
            return Response()
        if isinstance(answer, Stream):
            return StreamingResponse(self._stream(answer), media_type="text/event-stream")
        if not isinstance(answer, Reply):
            answer = Reply(200, answer)
        if isinstance(answer.body, str):
            return Response(answer.body, answer.status, answer.headers, media_type="text/html")
        return Response(json.dumps(answer.body), answer.status, answer.headers, media_type="application/json")

    async def _stream(self, answer: Stream) -> AsyncIterator[str | bytes]:
        for event in answer.events:
            if isinstance(event, Cut):
                raise ConnectionAbortedError
            if isinstance(event, Stall):
                await asyncio.Event().wait()
            if isinstance(event, Pause):
                await asyncio.sleep(event.seconds)
                continue
            yield event if isinstance(event, (str, bytes)) else f"data: {json.dumps(event)}\n\n"
            await asyncio.sleep(0)  # else nobody notices that the client has gone
        if answer.done:
            yield "data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """Return an event of a stream with this delta."""
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": None}],
    }


def call(
    index: int, name: str | None = None, arguments: str = "", identity: str | None = None
) -> dict[str, Any]:
    """Return an event with a call, or with a piece of one."""
    function: dict[str, Any] = {"arguments": arguments} | ({"name": name} if name else {})
    piece = {"index": index, "type": "function", "function": function} | (
        {"id": identity} if identity else {}
    )
    return delta(tool_calls=[piece])


def finish(reason: str) -> dict[str, Any]:
    """Return the event that ends a message."""
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
    }


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """Return the event with token counts, which vLLM sends last."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"object": "chat.completion.chunk", "choices": [], "usage": counts | details}


def leaked(text: str, size: int = 7, reason: str = "stop") -> Stream:
    """Return a stream whose server failed to parse `text`: all of it arrives as content."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return Stream([*(delta(content=piece) for piece in pieces), finish(reason), usage(10, 20)])


def messages_bytes(body: bytes) -> bytes:
    """Return the bytes of the messages in a request, from `[` up to but without `]`."""
    opening = b'{"messages":'
    assert body.startswith(opening), "messages come first in a request"
    text = body[len(opening) :].decode()
    _, end = json.JSONDecoder().raw_decode(text)
    return text[: end - 1].encode()


def history_faults(bodies: list[bytes]) -> list[str]:
    """Return what a strict server would find wrong in consecutive requests of one conversation."""
    faults: list[str] = []
    for earlier, later in itertools.pairwise(bodies):
        if not messages_bytes(later).startswith(messages_bytes(earlier)):
            faults.append("a later request rewrote an earlier message")
    for body in bodies:
        waiting: list[str] = []
        for message in json.loads(body)["messages"]:
            if message["role"] == "tool":
                if not waiting or message["tool_call_id"] not in waiting:
                    faults.append("a tool result without its call")
                else:
                    waiting.remove(message["tool_call_id"])
                continue
            if waiting:
                faults.append("a call without its result right behind it")
            waiting = [made["id"] for made in message.get("tool_calls", [])]
            for made in message.get("tool_calls", []):
                if not isinstance(json.loads(made["function"]["arguments"]), dict):
                    faults.append("arguments that are no object")
            keys = set(get_args(ReasoningField)) & message.keys()
            if len(keys) > 1:
                faults.append("reasoning under two names")
    return faults
