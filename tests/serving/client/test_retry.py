"""When a failed request is sent again. No test really waits."""

from __future__ import annotations

import time

import pytest

from m3agent.serving.client.retry import API_ATTEMPTS, answer_policy, api_policy, page_policy
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError


def busy(retry_after: float | None = None) -> EndpointRefused:
    return EndpointRefused(503, "busy", host="host", retry_after=retry_after)


class Failing:
    """A request that fails with one of these errors per attempt, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0

    def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def page(request: Failing, attempts: int = 4) -> tuple[str, list[float]]:
    waits: list[float] = []
    return page_policy(attempts).copy(sleep=waits.append)(request), waits


def test_page_is_requested_again_after_growing_waits() -> None:
    assert page(Failing(busy(), busy(), busy())) == ("done", [0.5, 1, 2])
    assert page(Failing(busy(0), busy(3), busy(600))) == ("done", [0, 3, 10]), (
        "what it asks for, ten seconds at most"
    )


def test_a_page_is_given_up() -> None:
    request = Failing(busy(), busy(), EndpointUnreachable("host", "the last"), busy())
    with pytest.raises(EndpointUnreachable, match="the last"):
        page(request, attempts=3)
    assert request.attempts == 3
    refused = Failing(EndpointRefused(401, "no key", host="host"))
    with pytest.raises(EndpointRefused):
        page(refused)
    assert refused.attempts == 1


def test_an_api_is_asked_again_after_passing_errors_only() -> None:
    def ask(request: Failing) -> tuple[list[str], list[float]]:
        told: list[str] = []
        waits: list[float] = []
        policy = api_policy(TimeoutError, lambda error: told.append(str(error)))
        assert policy.copy(sleep=waits.append)(request) == "done"
        return told, waits

    assert ask(Failing(TimeoutError("a"), TimeoutError("b"))) == (["a", "b"], [0.5, 1])
    passing = Failing(*[TimeoutError("late")] * API_ATTEMPTS)
    with pytest.raises(TimeoutError, match="late"):
        ask(passing)
    assert passing.attempts == API_ATTEMPTS
    lasting = Failing(OSError("lasts"))
    with pytest.raises(OSError, match="lasts"):
        ask(lasting)
    assert lasting.attempts == 1


async def answer(
    request: Failing,
    *,
    attempts: int = 3,
    retry_seconds: float = 300,
    deadline: float | None = None,
    may_be_back: bool = False,
) -> list[float]:
    """Return the waits between the attempts, in seconds."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    told: list[tuple[int, float]] = []
    policy = answer_policy(
        attempts=attempts,
        backoff=1,
        retry_seconds=retry_seconds,
        deadline=deadline,
        may_be_back=lambda _: may_be_back,
        on_retry=lambda attempt, wait, _: told.append((attempt, wait)),
    )
    async for attempt in policy.copy(sleep=sleep):
        with attempt:
            request()
    assert told == list(enumerate(waits, 1))
    return waits


async def test_answer_is_requested_again_after_growing_waits() -> None:
    first, second = await answer(Failing(busy(), busy()))
    assert 1 <= first <= 2 <= second <= 3
    assert await answer(Failing(busy(0.25), busy(7))) == [0.25, 7], "as long as the server asks"


@pytest.mark.parametrize("limit", ["attempts", "seconds", "deadline"])
async def test_an_answer_is_given_up(limit: str) -> None:
    request = Failing(*[busy(5)] * 9)
    with pytest.raises(ModelServerError):
        await answer(
            request,
            attempts=3 if limit == "attempts" else 100,
            retry_seconds=4 if limit == "seconds" else 300,
            deadline=time.monotonic() + 4 if limit == "deadline" else None,
        )
    assert request.attempts == (3 if limit == "attempts" else 1)


async def test_a_server_that_may_be_back_is_asked_more_often() -> None:
    assert len(await answer(Failing(*[busy()] * 6), attempts=3, may_be_back=True)) == 6
