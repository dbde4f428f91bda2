"""Send a failed request again: when, as a stream or whole, and without which parameter the server refuses."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from m3agent.serving.errors import EndpointRefused, ModelServerError, NoAnswer

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState, Retrying

API_ATTEMPTS = 3

_LONGEST_ANSWER_BACKOFF = 30.0  # all waits are in seconds
_LONGEST_PAGE_WAIT = 10.0
_LONGEST_API_BACKOFF = 4.0
_BROKEN_STREAMS = 2  # in a row, in one turn
_WHOLE_TURNS = 2  # in a row
_NOT_IMPLEMENTED = 501

_REFUSING = frozenset({400, 404, 415, 422, 501})
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "chat_template_kwargs": ("thinking_mode", "extra_body"),
    "top_k": (),
    "top_p": (),
    "min_p": (),
    "temperature": (),
    "seed": (),
    "stream_options": ("include_usage",),
    "parallel_tool_calls": (),
    "tool_choice": (),
    "thinking": (),
    "reasoning": (),
    "reasoning_effort": (),
    "reasoning_split": (),
    "logprobs": (),
    "return_token_ids": (),
    "routed_dp_rank": (),
}
"""Parameters that an answer does not need, each with other names by which servers mean it."""
_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Parameters that some servers know by another name only."""
_MARK = "[\"'`]"
_ECHO = re.compile(rf"{_MARK}(?:input|body|request|messages|prompt|content){_MARK}\s*:")
"""Where a server begins to repeat the request, which may contain any word."""
_NAMED = re.compile(rf"\b(model|function|tool|role) {_MARK}[^\"'`]*{_MARK}", re.IGNORECASE)
"""A name that is not a parameter's."""
_ELSEWHERE = re.compile(
    r"\binvalid (?:\w+ ){0,3}schema|\bschema (?:for|of)\b|\b(?:messages|tools|input)[.\[]\d", re.IGNORECASE
)
"""Words of an error in a tool's schema or in a message."""
_NO_PARAMETERS = frozenset({"messages", "tools", "model", "input"})
_NO_PROVIDER = "No endpoints found that support"
"""OpenRouter's words, with status 404, where no provider takes a parameter."""


def answer_policy(
    *,
    attempts: int,
    backoff: float,
    retry_seconds: float,
    deadline: float | None,
    may_be_back: Callable[[ModelServerError], bool],
    on_retry: Callable[[int, float, ModelServerError], None],
) -> AsyncRetrying:
    """Return the policy for a model's answer.

    It is patient, because an answer is expensive and a server needs minutes to restart.

    Args:
        backoff: The first wait in seconds. Each further wait is twice as long, plus a random part of up to
            `backoff`; at most 30 s. If the server asks for a wait, that wait is used instead. From the
            attempt number `attempts` on, the longer of the two is used.
        retry_seconds: No attempt starts later than this after the first failure.
        deadline: No attempt starts after this time of `time.monotonic()`.
        may_be_back: Returns whether, after this error, only the time limits apply and not the number of
            attempts.
        on_retry: Called before each wait with the attempt (from 1), the wait in seconds and the error.
    """
    from tenacity import AsyncRetrying, retry_if_exception, wait_exponential_jitter

    jittered = wait_exponential_jitter(multiplier=backoff, max=_LONGEST_ANSWER_BACKOFF, jitter=backoff)
    failed_first: float | None = None

    def wait(state: RetryCallState) -> float:
        asked = _failure(state).retry_after
        if asked is None or state.attempt_number >= attempts:
            return max(jittered(state), asked or 0.0)
        return asked

    def stop(state: RetryCallState) -> bool:
        nonlocal failed_first
        now = time.monotonic()
        failed_first = failed_first or now
        resumes = now + state.upcoming_sleep
        tired = state.attempt_number >= attempts and not may_be_back(_failure(state))
        late = deadline is not None and resumes > deadline
        return tired or late or resumes - failed_first > retry_seconds

    return AsyncRetrying(
        retry=retry_if_exception(_is_retriable),
        wait=wait,
        stop=stop,
        before_sleep=lambda state: on_retry(state.attempt_number, state.upcoming_sleep, _failure(state)),
        reraise=True,
    )


def page_policy(attempts: int) -> Retrying:
    """Return the policy for a small page of a model server.

    The first wait is 0.5 s, each further one is twice as long. If the server asks for a wait, that wait is
    used instead. No wait is longer than ten seconds.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    exponential = wait_exponential(multiplier=0.5)

    def wait(state: RetryCallState) -> float:
        asked = _failure(state).retry_after
        return min(exponential(state) if asked is None else asked, _LONGEST_PAGE_WAIT)

    return Retrying(
        retry=retry_if_exception(_is_retriable), wait=wait, stop=stop_after_attempt(attempts), reraise=True
    )


def api_policy(transient: type[Exception], on_retry: Callable[[BaseException], None]) -> Retrying:
    """Return the policy for a web service's API: three attempts, with waits of 0.5 s and 1 s."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

    def note(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            on_retry(error)

    return Retrying(
        retry=retry_if_exception_type(transient),
        wait=wait_exponential(multiplier=0.5, max=_LONGEST_API_BACKOFF),
        stop=stop_after_attempt(API_ATTEMPTS),
        before_sleep=note,
        reraise=True,
    )


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ModelServerError) and error.retriable


def _failure(state: RetryCallState) -> ModelServerError:
    """Return the error of a failed attempt. Only a ModelServerError is retried."""
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, ModelServerError):
        raise TypeError(f"not an error to retry: {error!r}")
    return error


class StreamChoice:
    """Decides for each attempt of one conversation: request a stream, or the whole answer at once.

    - A turn that broke two streams in a row is requested whole. If the whole answer fails as well, streams
      get another chance: a proxy may also limit how long a request without data may take.
    - After two such turns in a row, later turns are requested whole at once.
    - If the server refuses to answer whole, it is only asked for streams.
    """

    def __init__(self) -> None:
        self._broken = 0  # streams in a row
        self._whole_turns = 0
        self._refused = False

    @property
    def streams(self) -> bool:
        """Whether the next attempt asks for a stream."""
        return self._refused or self._broken < _BROKEN_STREAMS

    @property
    def explanation(self) -> str:
        """What the next attempt does differently, as a sentence; empty if it is an ordinary one."""
        if self._refused:
            return "The server refuses to answer without streaming, so m3agent asks for a stream again."
        return "" if self.streams else "m3agent now asks for the same answer without streaming."

    def begin_turn(self) -> None:
        """Begin the first attempt of a turn."""
        self._broken = _BROKEN_STREAMS if self._whole_turns >= _WHOLE_TURNS else 0

    def succeeded(self) -> None:
        """Note that the attempt brought the answer."""
        self._whole_turns = 0 if self.streams else self._whole_turns + 1

    def stream_broke(self) -> None:
        """Note that the stream of the attempt broke."""
        self._broken += 1

    def whole_failed(self, error: ModelServerError) -> bool:
        """Note that the whole answer failed.

        Returns:
            Whether the server can stream only, or sent something that is no answer.
        """
        self._broken = _BROKEN_STREAMS - 1
        if isinstance(error, NoAnswer):
            return True
        if not isinstance(error, EndpointRefused) or (error.retriable and error.status != _NOT_IMPLEMENTED):
            return False
        self._refused = True
        return True


def refused_parameter(error: EndpointRefused, sent: Mapping[str, Any]) -> str | None:
    """Return the parameter that an error is about; None if it is about something else."""
    text = _NAMED.sub(r"\1", _ECHO.split(error.text)[0])
    place = re.split(r"[.\[]", error.parameter)[0]
    is_elsewhere = place in _NO_PARAMETERS or _ELSEWHERE.search(text)
    is_missing = error.status == 404 and not place and not text.startswith(_NO_PROVIDER)
    if error.status not in _REFUSING or is_elsewhere or is_missing:
        return None

    def is_meant(word: str) -> bool:
        return place == word or _names(text, word)

    for name in sent:
        if name in _OPTIONAL and any(map(is_meant, (name, *_OPTIONAL[name]))):
            return name
        if name in _OTHER_NAME and _OTHER_NAME[name] in text and is_meant(name):
            return name
    return None


def without(parameters: Mapping[str, Any], refused: set[str]) -> dict[str, Any]:
    """Return the parameters without those that the server refused; what has another name gets that one."""
    kept = {name: value for name, value in parameters.items() if name not in refused}
    renamed = [name for name in _OTHER_NAME if name in refused and name in parameters]
    return kept | {
        _OTHER_NAME[name]: parameters[name] for name in renamed if _OTHER_NAME[name] not in refused
    }


def _names(text: str, word: str) -> bool:
    """Return whether an error's words name a parameter. A plain word such as `thinking` must be marked as a name."""
    if "_" in word:
        return re.search(rf"(?<!\w){word}(?!\w)", text) is not None
    marked = (
        rf"{_MARK}(?:body\.)?{word}(?:\.\w+)*{_MARK}|(?i:param(?:eter)?s?|arguments?|fields?|property|supplied|inputs?)[:,]? {word}\b"
        rf"|^{word}\b|\b{word}(?: parameter|: )"
    )
    return re.search(marked, text) is not None
