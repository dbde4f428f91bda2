"""Talking to a model server: one streamed answer at a time, retried where that is safe."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from m3agent.serving.accumulator import BROKEN_REASONS, Accumulator
from m3agent.serving.body import RequestBody
from m3agent.serving.chat import Delta, Turn
from m3agent.serving.endpoint import Endpoint
from m3agent.serving.errors import (
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    ServerDied,
    StreamCut,
)
from m3agent.serving.http import open_client, redact, request_headers, translate
from m3agent.serving.wire import ThinkingMode

if TYPE_CHECKING:
    import openai
    from tenacity import AsyncRetrying, RetryCallState

Messages: TypeAlias = Sequence[Mapping[str, Any]]
_T = TypeVar("_T")

_CONNECT_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 30.0
# Once a finish reason came only the usage is awaited, which is not worth a long silence.
_USAGE_SECONDS = 30.0
# Servers that hand `chat_template_kwargs` to M3's template and know `top_k`. Others may refuse both.
_TEMPLATE_FLAVOURS = frozenset({"vllm", "sglang", "trtllm", "embedded"})


@dataclass(frozen=True)
class RetryNote:
    """A request failed and is sent again: which attempt that was (from 1), the wait, and why."""

    attempt: int
    wait_seconds: float
    reason: str


class Client:
    """A conversation's line to one endpoint; use one for each conversation, as an async context manager.

    `idle_timeout` is how many seconds a stream may be silent: M3 thinks, and a server may hold back a whole
    call's arguments, for minutes. A failed request is tried up to `attempts` times in all, and not again
    once `retry_seconds` have passed since the first failure; waits start at `backoff` seconds.
    `on_retry` hears of each.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None,
        on_retry: Callable[[RetryNote], None] | None = None,
        idle_timeout: float = 600,
        attempts: int = 6,
        retry_seconds: float = 300,
        backoff: float = 1,
    ) -> None:
        self.endpoint = endpoint
        self._api_key = api_key
        self._on_retry = on_retry
        self._idle_timeout = idle_timeout
        self._attempts = attempts
        self._retry_seconds = retry_seconds
        self._backoff = backoff
        self._body = RequestBody()
        self._openai: openai.AsyncOpenAI | None = None
        self._answered = False

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
        temperature: float = 1.0,
        top_p: float = 0.95,
        top_k: int = 40,
        deadline: float | None = None,
    ) -> AsyncGenerator[Delta | Turn, None]:
        """Ask for the next message: deltas as they come, then exactly one Turn.

        `messages` and `tools` are OpenAI's. Sampling defaults are MiniMax's for M3. `deadline` is an instant
        of `time.monotonic()`. With `tool_choice` "none" calls the model makes all the same are dropped.

        If an answer breaks off midway its deltas are void: a Delta `reset` says so before the next attempt.
        Nothing is retried once a Turn was handed out, so a call that ran is never asked for twice.
        Raises the errors of `m3agent.serving.errors`.
        """
        parameters = self._parameters(tools, tool_choice, max_tokens)
        parameters |= {"temperature": temperature, "top_p": top_p}
        if self.endpoint.flavour in _TEMPLATE_FLAVOURS:
            parameters |= {"top_k": top_k, "chat_template_kwargs": {"thinking_mode": thinking}}
        body = self._body.encode(messages, parameters)
        turn = sum(message.get("role") == "assistant" for message in messages) + 1
        accumulate = partial(Accumulator, tools, turn, calls_allowed=tool_choice != "none")
        spoke = False
        try:
            async for attempt in self._retrying(deadline):
                with attempt:
                    if spoke:
                        yield Delta("reset", "")
                        spoke = False
                    answer = self._answer(body, accumulate(), max_tokens, deadline)
                    async with aclosing(answer):
                        async for item in answer:
                            spoke = True
                            yield item
                    return
        except EndpointUnreachable as error:
            if self._answered:
                raise ServerDied(self.endpoint.host, error.reason) from error
            raise
        except EndpointRefused as error:
            if error.status >= 500 and "engine" in error.text.lower() and "dead" in error.text.lower():
                raise ServerDied(self.endpoint.host, error.text) from error
            raise

    def _parameters(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str | Mapping[str, Any],
        max_tokens: int | None,
    ) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "model": self.endpoint.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            parameters |= {"tools": tools, "tool_choice": tool_choice}
        if max_tokens is not None:
            parameters["max_tokens"] = max_tokens
        if self.endpoint.reasoning_field == "reasoning_details":  # MiniMax's own API mixes it in otherwise
            parameters["reasoning_split"] = True
        return parameters

    def _retrying(self, deadline: float | None) -> "AsyncRetrying":
        from tenacity import AsyncRetrying, retry_if_exception, wait_exponential_jitter

        backoff = wait_exponential_jitter(
            multiplier=self._backoff, max=_LONGEST_BACKOFF_SECONDS, jitter=self._backoff
        )
        failed_first: float | None = None

        def wait(state: "RetryCallState") -> float:
            asked = _failure(state).retry_after
            return backoff(state) if asked is None else asked

        def stop(state: "RetryCallState") -> bool:
            nonlocal failed_first
            now = time.monotonic()
            failed_first = failed_first or now
            resumes = now + state.upcoming_sleep
            return (
                state.attempt_number >= self._attempts
                or resumes - failed_first > self._retry_seconds
                or (deadline is not None and resumes > deadline)
            )

        def note(state: "RetryCallState") -> None:
            if self._on_retry is not None:
                self._on_retry(RetryNote(state.attempt_number, state.upcoming_sleep, str(_failure(state))))

        return AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ModelServerError) and error.retriable),
            wait=wait,
            stop=stop,
            before_sleep=note,
            reraise=True,
        )

    async def _answer(
        self, body: bytes, answer: Accumulator, max_tokens: int | None, deadline: float | None
    ) -> AsyncGenerator[Delta | Turn, None]:
        """One attempt."""
        started = time.monotonic()
        first_token: float | None = None
        async with aclosing(self._chunks(body, answer, deadline)) as chunks:
            async for chunk in chunks:
                for delta in answer.add(chunk):
                    first_token = first_token or time.monotonic()
                    yield delta
        for delta in answer.close():
            yield delta
        if answer.finish_reason is None:
            raise StreamCut(self.endpoint.host, "the stream ended without a finish reason")
        if answer.finish_reason in BROKEN_REASONS:
            raise StreamCut(self.endpoint.host, f"the server ended it with {answer.finish_reason!r}")
        message, finish = answer.finish(self._limit_reached(answer, max_tokens))
        first_token_seconds = None if first_token is None else first_token - started
        yield Turn(message, answer.usage, finish, time.monotonic() - started, first_token_seconds)

    def _limit_reached(self, answer: Accumulator, max_tokens: int | None) -> bool:
        """Whether the tokens say that the answer was cut, whatever its finish reason says."""
        prompt, completion = answer.usage.prompt, answer.usage.completion
        if completion is None:
            return False
        window = self.endpoint.max_model_len
        full = window is not None and prompt is not None and prompt + completion >= window
        return full or (max_tokens is not None and completion >= max_tokens)

    async def _chunks(
        self, body: bytes, answer: Accumulator, deadline: float | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The JSON of each event of one streamed answer."""
        import openai

        host = self.endpoint.host
        try:
            stream = await self._within(self._post(body), self._idle_timeout, deadline)
        except openai.APIError as error:
            raise translate(error, host, self._api_key) from error
        self._answered = True
        try:
            kind = stream.response.headers.get("content-type", "")
            if "event-stream" not in kind:
                whole = await self._within(stream.response.aread(), self._idle_timeout, deadline)
                yield _whole_answer(whole, kind, host, self._api_key)
                return
            while True:
                patience = self._idle_timeout
                if answer.finish_reason is not None:
                    patience = min(patience, _USAGE_SECONDS)
                chunk = await self._within(anext(stream, None), patience, deadline)
                if chunk is None:
                    return
                if isinstance(chunk, Mapping):
                    if chunk.get("object") == "error":
                        raise StreamCut(
                            host, f"it reported {redact(str(chunk.get('message')), self._api_key)}"
                        )
                    yield chunk
        except (openai.APIError, StreamCut, ValueError) as error:
            if answer.finish_reason is not None and not isinstance(error, openai.APIStatusError):
                return  # the message was whole, only the usage is lost
            if isinstance(error, openai.APIConnectionError):
                raise StreamCut(host, "the connection was lost") from error
            if isinstance(error, openai.APIError):
                raise translate(error, host, self._api_key) from error
            if isinstance(error, ValueError):
                raise StreamCut(host, "an event in the stream is not JSON") from error
            raise
        finally:
            await stream.close()

    async def _post(self, body: bytes) -> "openai.AsyncStream[object]":
        import openai

        if self._openai is None:
            # Silence is timed per event, above: bytes that carry no event are no sign of life.
            self._openai = open_client(self.endpoint.url, self._api_key, connect=_CONNECT_SECONDS, read=None)
        return await self._openai.post(
            "/chat/completions",
            cast_to=object,
            content=body,
            options={"headers": {"Content-Type": "application/json", **request_headers(self._api_key)}},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )

    async def _within(self, step: Awaitable[_T], patience: float, deadline: float | None) -> _T:
        """Await one step; silence longer than `patience` seconds, or past the deadline, is an error."""
        left = patience if deadline is None else min(patience, deadline - time.monotonic())
        try:
            async with asyncio.timeout(left):
                return await step
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceeded(self.endpoint.host) from None
            raise StreamCut(self.endpoint.host, f"nothing came for {patience:g} s") from None


def _failure(state: "RetryCallState") -> ModelServerError:
    """What made the attempt fail; only our errors are retried."""
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, ModelServerError):
        raise TypeError(f"not an error to retry: {error!r}")
    return error


def _whole_answer(body: bytes, kind: str, host: str, api_key: str | None) -> Mapping[str, Any]:
    """The answer of a server that does not stream, as one chunk."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "choices" not in answer:
        said = redact(body.decode(errors="replace"), api_key)
        what = "a web page" if "html" in kind else f"something that is not a chat completion, {said}"
        raise EndpointRefused(200, what, host=host, advice="check the address, it usually ends in /v1")
    return answer
