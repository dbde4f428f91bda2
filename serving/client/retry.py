"""Policies for sending a failed request again: one for each kind of request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState, Retrying

API_ATTEMPTS = 3

_LONGEST_ANSWER_BACKOFF = 30.0  # all waits are in seconds
_LONGEST_PAGE_WAIT = 10.0
_LONGEST_API_BACKOFF = 4.0


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
