"""A proxy between another agent and its model server, which counts what the server says about tokens.

It passes requests and answers on as they are, to the one server, and listens on loopback only. It keeps nothing of them but
the counts. Only compression is refused on the agent's behalf, because counts in compressed answers could not be read.

A `Guard` adds two things. The agent gets a stand-in for the server's key, so it never has the key; the key is sent only to paths
below the server's own address. A request beyond the budget of the attempt is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from m3agent.agent.session.usage import Totals
from m3agent.evals.data.results import AttemptUsage
from m3agent.evals.run.traffic import THOUGHT, Exchange, Traffic, TrafficCounter
from m3agent.serving.client.http import certificates_for, is_local
from m3agent.serving.client.messages import AssistantMessage, Turn, Usage
from m3agent.serving.client.prices import Prices
from m3agent.serving.client.stream.chunk import read_usage
from m3agent.serving.client.stream.events import EventReader
from m3agent.serving.embedded.http_app import served
from m3agent.util.json_value import json_object, mapping

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ANSWERING = ("/completions", "/responses", "/messages")
"""Ends of the paths at which models answer: OpenAI's interfaces, the old one too, and Anthropic's. A slash may follow."""
COUNTS_TOKENS = re.compile(rb"(?:/[\w.-]+)*/(?:count_tokens|input_tokens|tokenize|detokenize)/?")
"""Paths at which servers count tokens, which costs nothing."""
READS = frozenset(["GET", "HEAD", "OPTIONS"])
TOKEN_BYTES = 4
"""Bytes for each token, where the server does not say how many tokens there are."""
MOST_HELD = 64 << 20
"""Most bytes of a whole answer, or of one event, that are searched for counts."""
MOST_DOLLARS = 1e6
"""Largest price of one answer that is believed."""
CONNECT_SECONDS = 30.0
LAST_SECONDS = 2.0
"""How long the end waits for answers whose reader is gone."""
LAST_EVENT = re.compile(rb"^data: ?\[DONE\]|^event: ?(?:message_stop|response\.completed)", re.MULTILINE)
"""The last event of an answer of OpenAI's, Anthropic's or the Responses interface. No line of a JSON text begins so."""
OWN_HEADERS = frozenset(
    b"host accept-encoding connection keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
"""Headers that belong to one connection, and that of compression."""
KEY_HEADERS = frozenset([b"authorization", b"x-api-key", b"api-key"])
"""Headers that carry a key."""
ANTHROPIC_BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's counts of prompt tokens that `input_tokens` leaves out."""


Headers = list[tuple[bytes, bytes]]
"""Names in small letters, and values."""


@dataclass(frozen=True)
class Guard:
    """What an attempt may use of a model server. None means no limit."""

    key: str | None = None
    """The server's key; None if it wants none."""
    tokens: int | None = None
    dollars: float | None = None
    stand_in: str = field(default_factory=lambda: f"m3agent-{secrets.token_hex(16)}")
    """The key that the agent gets. It is worth something at this proxy only."""

    def spent(self, tokens: int, dollars: float) -> str:
        """Return which budget is spent, such as `200,000 tokens`; empty if none is."""
        if self.tokens is not None and tokens >= self.tokens:
            return f"{self.tokens:,} tokens"
        if self.dollars is not None and dollars >= self.dollars:
            return f"${self.dollars:g}"
        return ""

    def with_key(self, headers: Headers) -> Headers | None:
        """Return the headers with the server's key for the stand-in; None if the stand-in is in none of them."""
        stand_in, key = self.stand_in.encode(), (self.key or "").encode()
        own = [(name, value) for name, value in headers if name in KEY_HEADERS and stand_in in value]
        if not own:
            return None
        others = [(name, value) for name, value in headers if name not in KEY_HEADERS]
        return others + ([(name, value.replace(stand_in, key)) for name, value in own] if key else [])


@dataclass
class AnswerCounts:
    """The counts in one answer, which may be a stream of events."""

    streams: bool
    size: int = 0
    """Bytes so far."""
    _reported: dict[str, Any] = field(default_factory=dict)
    _events: EventReader = field(default_factory=EventReader)
    _whole: bytearray = field(default_factory=bytearray)
    _lost: bool = False

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.size += len(piece)
        if self._lost:
            return
        if self.streams:
            for event in self._events.feed(piece):
                self._see(event)
        else:
            self._whole += piece
        self._lost = self._events.held + len(self._whole) > MOST_HELD

    def close(self) -> tuple[Usage, float | None]:
        """Return the counts, and the price in dollars if the server says it."""
        if not self._lost:
            for event in self._events.close() if self.streams else [bytes(self._whole)]:
                self._see(event)
        usage = read_usage(self._reported)
        if "prompt_tokens" not in self._reported and usage.prompt is not None:
            beside = [
                read_usage({"prompt_tokens": self._reported.get(name)}).prompt for name in ANTHROPIC_BESIDE
            ]
            usage = Usage(
                usage.prompt + sum(filter(None, beside)), usage.cached, usage.completion, usage.reasoning
            )
        price = self._reported.get("cost")
        if isinstance(price, int | float) and not isinstance(price, bool) and 0 <= price < MOST_DOLLARS:
            return usage, float(price)
        return usage, None

    def _see(self, event: bytes) -> None:
        if b'"usage"' not in event:
            return
        value = json_object(event)
        # the Responses interface and Anthropic's wrap the object in their events
        for path in ((), ("response",), ("message",)):
            usage = mapping(value, *path, "usage")
            self._reported |= {name: count for name, count in usage.items() if count is not None}


def _passed_headers(headers: Headers) -> Headers:
    """Return the headers of a request or an answer that are passed on, their names in small letters."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in OWN_HEADERS]


class CountingProxy:
    """Passes an agent's requests on to a model server, while its context is open, and counts tokens.

    Args:
        guard: The key and the budget; None if the agent has a key of its own and no budget.
    """

    def __init__(self, endpoint: str, prices: Prices | None, guard: Guard | None = None) -> None:
        parts = urlsplit(endpoint)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/")
        self._prices = prices
        self._guard = guard
        self._traffic = TrafficCounter()
        self._reader = ThreadPoolExecutor(1)
        self._totals = Totals()
        self._estimated_tokens, self._estimated_dollars = 0, 0.0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.lost = ""
        """Why the model server did not answer the last request to the model; empty if it did."""

    @property
    def usage(self) -> AttemptUsage:
        """What the answers so far have used."""
        total = self._totals
        return AttemptUsage(
            turns=total.turns,
            prompt_tokens=total.prompt,
            cached_tokens=total.cached,
            completion_tokens=total.completion,
            reasoning_tokens=total.reasoning,
            cost=total.price,
        )

    @property
    def traffic(self) -> Traffic:
        """How the agent has used the server; complete when the proxy has closed."""
        return self._traffic.result()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Yield the address that the agent gets.

        Raises:
            OSError: No port is free.
        """
        import httpx2
        from starlette.applications import Starlette
        from starlette.routing import Route

        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            timeout=timeout,
            limits=limits,
            trust_env=not is_local(self._origin),
            follow_redirects=False,
            verify=certificates_for(self._origin),
        ) as http:

            async def answer(request: Request) -> Response:
                return await self._answer(http, request)

            methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
            app = Starlette(routes=[Route("/{path:path}", answer, methods=methods)])
            async with served(app) as origin:
                yield origin + self._path
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_SECONDS):
                        await self._idle.wait()
            await asyncio.to_thread(self._reader.shutdown)

    async def _answer(self, http: Any, request: Request) -> Response:
        import httpx2
        from starlette.responses import JSONResponse, StreamingResponse

        path = request.scope["raw_path"]
        if not path.startswith(b"/"):  # it could name another host
            return JSONResponse({"error": {"message": "the path does not begin with a slash"}}, 400)
        asks = request.method == "POST" and request.url.path.rstrip("/").endswith(ANSWERING)
        headers = _passed_headers(request.headers.raw)
        if self._guard is not None:
            admitted = self._admitted(self._guard, request, headers)
            if isinstance(admitted, tuple):
                return JSONResponse({"error": admitted[0]}, admitted[1])
            headers = admitted
        headers.append((b"accept-encoding", b"identity"))
        body = await request.body()
        query = request.scope["query_string"]
        target = self._origin + (path + (b"?" + query if query else b"")).decode("latin-1")
        sent = http.build_request(request.method, target, headers=headers, content=body)
        exchange = _Timed(body, time.monotonic()) if asks else None
        try:
            response = await http.send(sent, stream=True)
            if exchange is not None:
                self.lost = ""
            is_stream = "event-stream" in response.headers.get("content-type", "")
            counts = AnswerCounts(is_stream) if exchange is not None and response.is_success else None
            pieces = self._passed_on(response, counts, exchange)
            # read whole before it is passed on: an agent may leave, or ask again, as soon as it has the first byte
            answer = pieces if is_stream or exchange is None else _again([piece async for piece in pieces])
        except httpx2.HTTPError as error:
            message = _no_answer(error)
            if exchange is not None:
                self.lost = message
                self._count(None, exchange, is_good=False)
            return JSONResponse({"error": {"message": message}}, 502)
        reply = StreamingResponse(answer, response.status_code)
        reply.raw_headers = _passed_headers(response.headers.raw)
        return reply

    def _admitted(
        self, guard: Guard, request: Request, headers: Headers
    ) -> Headers | tuple[dict[str, str], int]:
        """Return the headers with the server's key, or the error and the status with which the request is refused."""
        path = request.scope["raw_path"]
        if not _is_below(path, self._path):
            return {"message": f"only paths below {self._path}/ are passed on to the model server"}, 403
        with_key = guard.with_key(headers)
        if with_key is None:
            return {"message": "the key is not this attempt's"}, 401
        if request.method in READS or COUNTS_TOKENS.fullmatch(path):
            return with_key
        totals = self._totals
        tokens = (totals.prompt or 0) + (totals.completion or 0) + self._estimated_tokens
        budget = guard.spent(tokens, (totals.price or 0.0) + self._estimated_dollars)
        if not budget:
            return with_key
        self._read(budget)
        return {"message": f"the attempt's budget of {budget} is spent: end now", "code": "budget_spent"}, 403

    async def _passed_on(
        self, response: Any, counts: AnswerCounts | None, exchange: _Timed | None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of an answer. Its counts are added before its last bytes, also if its reader leaves early."""
        import httpx2

        self._open += 1
        self._idle.clear()
        try:
            async for piece in response.aiter_raw():
                if counts is not None:
                    counts.feed(piece)
                if exchange is not None:
                    exchange.see(piece)
                    if LAST_EVENT.search(piece):
                        self._count(counts, exchange, is_good=response.is_success)
                yield piece
        except httpx2.HTTPError as error:
            self.lost = _no_answer(error)
            raise
        finally:
            if exchange is not None:
                self._count(counts, exchange, is_good=response.is_success)
            self._open -= 1
            if self._open == 0:
                self._idle.set()
            await response.aclose()

    def _count(self, counts: AnswerCounts | None, exchange: _Timed, *, is_good: bool) -> None:
        """Count an exchange, once."""
        if exchange.is_counted:
            return
        exchange.is_counted = True
        ended = exchange.ended(is_good=is_good)
        if counts is not None:
            self._add(counts, ended)
        self._read(ended)

    def _read(self, request: Exchange | str) -> None:
        """Count a request, or the budget for which it was refused.

        A thread does it: reading a long request takes tens of milliseconds, for which its answer shall not wait.
        """
        with contextlib.suppress(RuntimeError):  # the proxy has closed
            if isinstance(request, str):
                self._reader.submit(self._traffic.refuse, request)
            else:
                self._reader.submit(self._traffic.add, request)

    def _add(self, counts: AnswerCounts, ended: Exchange) -> None:
        """Add the counts of an answer. What the server does not say is estimated, for the budget only."""
        usage, price = counts.close()
        if price is None and self._prices is not None:
            price = self._prices.of(usage, ended.seconds)
        self._totals.add(Turn(AssistantMessage(), usage, "stop", ended.seconds, None), price)
        prompt = len(ended.body) // TOKEN_BYTES if usage.prompt is None else usage.prompt
        completion = counts.size // TOKEN_BYTES if usage.completion is None else usage.completion
        self._estimated_tokens += prompt + completion - (usage.prompt or 0) - (usage.completion or 0)
        if price is None and self._prices is not None:
            estimate = Usage(prompt, usage.cached, completion)
            self._estimated_dollars += self._prices.of(estimate, ended.seconds) or 0.0


def _no_answer(error: Exception) -> str:
    return f"the model server does not answer: {type(error).__name__}"


async def _again(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer that was read whole."""
    for piece in pieces:
        yield piece


def _is_below(path: bytes, root: str) -> bool:
    """Return whether a path stays below `root`, however a server reads it."""
    decoded = unquote(path.decode("latin-1"))
    parts = [part.partition(";")[0] for part in re.split(r"[/\\]", decoded)]
    is_plain = ".." not in parts and "%" not in decoded  # a server may decode it again
    return is_plain and f"{decoded}/".startswith(f"{unquote(root)}/")


@dataclass
class _Timed:
    """A request to the model, while its answer comes."""

    body: bytes
    started: float
    """When the request was sent, on the monotonic clock."""
    first: float | None = None
    """When the answer began."""
    has_thinking: bool = False
    is_counted: bool = False

    def see(self, piece: bytes) -> None:
        if self.first is None:
            self.first = time.monotonic()
        self.has_thinking = self.has_thinking or THOUGHT.search(piece) is not None

    def ended(self, *, is_good: bool) -> Exchange:
        now = time.monotonic()
        first = now if self.first is None else self.first
        return Exchange(self.body, is_good, self.has_thinking, first - self.started, now - self.started)
