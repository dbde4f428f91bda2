"""Talk to a model server: stream one answer at a time, and retry where that is safe."""

import json
import math
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.http import open_client, post_chat
from m3agent.serving.client.messages import Delta, ReasoningField, Turn
from m3agent.serving.client.parameters import Affinity, Sampling, request_parameters
from m3agent.serving.client.request_body import RequestBody
from m3agent.serving.client.retry import StreamChoice, answer_policy, refused_parameter, without
from m3agent.serving.client.server_errors import raise_if_error, translate, whole_answer
from m3agent.serving.client.stream.accumulator import BROKEN_REASONS, Accumulator
from m3agent.serving.client.stream.events import EventReader, Watch
from m3agent.serving.errors import (
    BUSY,
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    NoAnswer,
    ParameterRefused,
    ServerDied,
    StreamCut,
)
from m3agent.serving.wire import ThinkingMode

if TYPE_CHECKING:
    import httpx2
    import openai

Messages: TypeAlias = Sequence[Mapping[str, Any]]
_T = TypeVar("_T")

_CONNECT_SECONDS = 10.0
# After the finish reason only the usage is missing, which is not worth a long wait.
_USAGE_SECONDS = 30.0
# A stream normally ends right after its last event. If not, a new connection is cheaper than waiting.
_END_SECONDS = 0.2
_END_PIECES = 8


@dataclass(frozen=True)
class RetryNote:
    """A request failed and is about to be retried."""

    attempt: int
    """Number of the failed attempt, from 1."""
    wait_seconds: float
    """Seconds until the next attempt."""
    reason: str
    """Why the attempt failed, and what the next one does differently."""


@dataclass(eq=False, repr=False)
class Client:
    """A connection to one endpoint for one conversation; use it as an async context manager."""

    endpoint: Endpoint
    _: KW_ONLY
    api_key: str | None
    on_retry: Callable[[RetryNote], None] | None = None
    """Receives a note before each retry."""
    idle_timeout: float = 600
    """Seconds that a stream may be silent. M3 may think for minutes, and a server may hold back the arguments of a whole
    call for minutes. An answer that is requested without streaming may take until the deadline."""
    attempts: int = 6
    """How often a failed request is sent in all. This limit does not apply to a server that answered earlier and is now
    gone, or limits requests (unless it is 1); then only `retry_seconds` counts."""
    retry_seconds: float = 300
    """Seconds after the first failure, after which no new attempt begins."""
    backoff: float = 1
    """Seconds of the first wait."""
    recorded: bool = False
    """Whether a program records the conversation to train a model with it. Then each request for the same answer has the
    same `Idempotency-Key`, by which a server recognises a request that is sent again, and the answer's tokens are
    requested."""
    affinity: Affinity | None = None
    """The session of the requests; None for requests that belong together in no way."""
    _key: str | None = field(init=False, default=None)
    _body: RequestBody = field(init=False, default_factory=RequestBody)
    _choice: StreamChoice = field(init=False, default_factory=StreamChoice)
    _openai: "openai.AsyncOpenAI | None" = field(init=False, default=None)
    _answered: bool = field(init=False, default=False)
    _heard_under: ReasoningField | None = field(init=False, default=None)

    @property
    def reasoning_field(self) -> ReasoningField:
        """The key under which reasoning is sent back.

        For a server of unknown type, this is the key that the server itself uses.
        """
        if self.endpoint.flavour == "unknown" and self._heard_under is not None:
            return self._heard_under
        return self.endpoint.reasoning_field

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._openai is not None:
            await self._openai.close()
            self._openai = None

    async def complete(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]],
        *,
        tool_choice: str | Mapping[str, Any] = "auto",
        max_tokens: int | None = None,
        thinking: ThinkingMode = "adaptive",
        sampling: Sampling = Sampling(),  # noqa: B008  # it is frozen
        deadline: float | None = None,
    ) -> AsyncGenerator[Delta | Turn, None]:
        """Request the next message: yield deltas as they arrive, then exactly one Turn.

        If an answer breaks off, its deltas are void: a Delta `reset` announces that before the next attempt.
        If streams break again and again, the answer is requested without streaming (see `StreamChoice`).
        After a Turn was yielded nothing is retried, so a call that was executed is never requested twice.

        Args:
            tool_choice: OpenAI's parameter. With "none", calls that the model makes in spite of it are
                dropped.
            deadline: Latest end of the answer, as a time of `time.monotonic()`.

        Raises:
            ModelServerError: One of the errors of `m3agent.serving.errors`.
        """
        parameters = partial(
            request_parameters,
            self.endpoint,
            tools,
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            thinking=thinking,
            sampling=sampling,
            tokens=self.recorded,
            affinity=self.affinity,
        )
        self._key = uuid.uuid4().hex if self.recorded else None
        turn = sum(message.get("role") == "assistant" for message in messages) + 1
        accumulate = partial(
            Accumulator, tools, turn, calls_allowed=tool_choice != "none", tokens=self.recorded
        )
        retrying = answer_policy(
            attempts=self.attempts,
            backoff=self.backoff,
            retry_seconds=self.retry_seconds,
            deadline=deadline,
            may_be_back=self._may_be_back,
            on_retry=self._note_retry,
        )
        spoke = False
        broken: ModelServerError | None = None  # why the last stream broke
        self._choice.begin_turn()
        try:
            async for attempt in retrying:
                with attempt:
                    if spoke:
                        yield Delta("reset", "")
                        spoke = False
                    streams = self._choice.streams
                    sent = without(parameters(stream=streams), self.endpoint.refused)
                    body = self._body.encode(messages, sent)
                    answer = self._answer(body, accumulate(), max_tokens, deadline, streams=streams)
                    try:
                        async with aclosing(answer):
                            async for item in answer:
                                spoke = True
                                yield item
                    except ModelServerError as error:
                        self._leave_out(error, sent)
                        broken = self._broken(error, broken, streams=streams, spoke=spoke)
                        raise
                    self._choice.succeeded()
                    return
        except (EndpointUnreachable, EndpointRefused) as error:
            if self._is_death(error):
                reason = error.text if isinstance(error, EndpointRefused) else error.reason
                raise ServerDied(self.endpoint.host, reason) from error
            raise

    def _leave_out(self, error: ModelServerError, sent: Mapping[str, Any]) -> None:
        """Note which optional parameter the server refused, if that was the error.

        Raises:
            ParameterRefused: It was; the next attempt is made at once.
        """
        if isinstance(error, EndpointRefused) and (name := refused_parameter(error, sent)) is not None:
            self.endpoint.refused.add(name)
            raise ParameterRefused(error, name) from error

    def _broken(
        self, error: ModelServerError, earlier: ModelServerError | None, *, streams: bool, spoke: bool
    ) -> ModelServerError | None:
        """Note what a failed attempt says about streams, and return why the last one broke.

        Raises:
            ModelServerError: A stream broke earlier, and the server cannot answer whole either.
        """
        if not streams:
            if self._choice.whole_failed(error) and earlier is not None:
                raise earlier from error
        elif error.retriable and (spoke or isinstance(error, StreamCut | NoAnswer)):
            self._choice.stream_broke()
            return error
        return earlier

    def _note_retry(self, attempt: int, wait_seconds: float, error: ModelServerError) -> None:
        if self.on_retry is not None:
            reason = f"{error} {self._choice.explanation}".rstrip()
            self.on_retry(RetryNote(attempt, wait_seconds, reason))

    def _is_death(self, error: Exception) -> bool:
        """Return whether the server vanished after it had answered, or reports that its engine is dead."""
        if isinstance(error, EndpointUnreachable):
            return self._answered
        if not isinstance(error, EndpointRefused) or error.status < 500:
            return False
        words = error.text.lower()
        return "engine" in words and "dead" in words

    def _may_be_back(self, error: ModelServerError) -> bool:
        """Return whether a server is busy, or one that answered earlier is gone, loading, or behind a proxy's page."""
        if isinstance(error, ParameterRefused):
            return True
        if isinstance(error, EndpointRefused) and error.status in BUSY:
            return self.attempts > 1
        loading = isinstance(error, NoAnswer) or (isinstance(error, EndpointRefused) and error.status == 503)
        return (loading and self._answered) or self._is_death(error)

    async def _answer(
        self,
        body: bytes,
        answer: Accumulator,
        max_tokens: int | None,
        deadline: float | None,
        *,
        streams: bool,
    ) -> AsyncGenerator[Delta | Turn, None]:
        """Send one request; `streams` tells what the request in `body` asks for."""
        started = time.monotonic()
        first_token: float | None = None
        # A whole answer brings no sign of life before its end, so only the deadline limits it.
        silence = self.idle_timeout if streams or deadline is None else math.inf
        async with aclosing(self.chunks(body, answer, deadline, silence)) as chunks:
            async for chunk in chunks:
                # The server sends the first event with the first token, even if a whole call follows minutes
                # later. A whole answer does not show when its first token came.
                if streams:
                    first_token = first_token or time.monotonic()
                for delta in answer.add(chunk):
                    yield delta
        for delta in answer.close():
            yield delta
        if answer.finish_reason is None:
            raise StreamCut(self.endpoint.host, "the stream ended without a finish reason")
        if answer.finish_reason in BROKEN_REASONS:
            raise StreamCut(self.endpoint.host, f"the server ended it with {answer.finish_reason!r}")
        self._heard_under = self._heard_under or answer.reasoning_field
        message, finish = answer.finish(self._limit_reached(answer, max_tokens))
        first_token_seconds = None if first_token is None else first_token - started
        seconds = time.monotonic() - started
        yield Turn(message, answer.usage, finish, seconds, first_token_seconds, answer.tokens)

    def _limit_reached(self, answer: Accumulator, max_tokens: int | None) -> bool:
        """Return whether the token counts show that the answer was cut, whatever its finish reason is."""
        prompt, completion = answer.usage.prompt, answer.usage.completion
        if completion is None:
            return False
        window = self.endpoint.max_model_len
        full = window is not None and prompt is not None and prompt + completion >= window
        return full or (max_tokens is not None and completion >= max_tokens)

    async def chunks(
        self, body: bytes, answer: Accumulator, deadline: float | None, silence: float | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the JSON of each event of one answer, as the server sent it; do not retry.

        The caller adds each chunk to `answer`. Once that has a finish reason, a broken stream is no error:
        only the usage is missing.

        Args:
            deadline: Latest end of the answer, as a time of `time.monotonic()`; None for no limit.
            silence: Seconds without data after which an answer that does not stream is given up; None for the
                idle timeout.

        Raises:
            ModelServerError: One of the errors of `m3agent.serving.errors`.
        """
        import httpx2
        import openai

        from m3agent.serving.client.bounds import TooLarge

        host = self.endpoint.host
        silence = self.idle_timeout if silence is None else silence
        with closing(Watch(deadline)) as watch:
            try:
                response = await self._within(watch, self._post(body), silence)
            except openai.APIError as error:
                raise translate(error, host, self.api_key) from error
            try:
                kind = response.headers.get("content-type", "")
                if "event-stream" not in kind:
                    whole = await self._within(watch, response.aread(), silence)
                    chunk = whole_answer(whole, kind, host, self.api_key)
                    self._answered = True
                    yield chunk
                    return
                self._answered = True
                async with aclosing(self._events(response, watch, answer)) as events:
                    async for event in events:
                        chunk = json.loads(event.decode())
                        if isinstance(chunk, dict):
                            raise_if_error(chunk, host, self.api_key)
                            yield chunk
            except (httpx2.HTTPError, StreamCut, EndpointRefused, ValueError, RecursionError) as error:
                if answer.finish_reason is not None:
                    return  # the message was complete, only the usage is lost
                if isinstance(error, httpx2.HTTPError):
                    lost = str(error) if isinstance(error, TooLarge) else "the connection was lost"
                    raise StreamCut(host, lost) from error
                if isinstance(error, ValueError | RecursionError):
                    raise StreamCut(host, "an event in the stream is not JSON") from error
                raise
            finally:
                await response.aclose()

    async def _events(
        self, response: "httpx2.Response", watch: Watch, answer: Accumulator
    ) -> AsyncGenerator[bytes, None]:
        """Yield the data of each event, up to `[DONE]`.

        Bytes that complete no event do not reset the idle timer.
        """
        from m3agent.serving.client.bounds import MOST_EVENT

        reader = EventReader()
        async with aclosing(response.aiter_bytes()) as pieces:
            heard = time.monotonic()
            while True:
                patience = (
                    self.idle_timeout
                    if answer.finish_reason is None
                    else min(self.idle_timeout, _USAGE_SECONDS)
                )
                try:  # not `_within`, whose further coroutine would cost time for each token
                    piece = await watch.wait(anext(pieces, None), patience - (time.monotonic() - heard))
                except TimeoutError:
                    raise self._too_late(watch, patience) from None
                events = reader.close() if piece is None else reader.feed(piece)
                if not events and reader.held > MOST_EVENT:
                    raise StreamCut(
                        self.endpoint.host, f"it sent an event of more than {MOST_EVENT >> 20} MiB"
                    )
                for event in events:
                    if event.startswith(b"[DONE]"):
                        if piece is not None:
                            await _read_to_end(pieces, watch)
                        return
                    yield event
                if piece is None:
                    return
                if events:
                    heard = time.monotonic()

    async def _post(self, body: bytes) -> "httpx2.Response":
        """Send a request; return its response once the headers have arrived."""
        if self._openai is None:
            # No read timeout here: `_events` measures silence between events, and bytes that complete no
            # event do not count.
            self._openai = open_client(self.endpoint.url, self.api_key, connect=_CONNECT_SECONDS, read=None)
        headers = {} if self.affinity is None else self.affinity.headers(self.endpoint)
        if self._key is not None:
            headers["Idempotency-Key"] = self._key
        return await post_chat(self._openai, body, self.api_key, headers)

    async def _within(self, watch: Watch, step: Awaitable[_T], patience: float) -> _T:
        """Await one step for at most `patience` seconds.

        Raises:
            DeadlineExceeded: The deadline passed.
            StreamCut: The step did not end in time.
        """
        try:
            return await watch.wait(step, patience)
        except TimeoutError:
            raise self._too_late(watch, patience) from None

    def _too_late(self, watch: Watch, patience: float) -> ModelServerError:
        """Return the error for a step that did not end in time."""
        if watch.over:
            return DeadlineExceeded(self.endpoint.host)
        return StreamCut(self.endpoint.host, f"no data for {patience:g} s")


async def _read_to_end(pieces: AsyncGenerator[bytes, None], watch: Watch) -> None:
    """Read the few bytes after the last event, so that the connection can be reused for the next turn."""
    import httpx2

    with suppress(TimeoutError, httpx2.HTTPError):
        for _ in range(_END_PIECES):
            if await watch.wait(anext(pieces, None), _END_SECONDS) is None:
                return
