"""Test limits: what counts as used, and which limit is reached."""

from __future__ import annotations

import time

import pytest

from m3agent.agent.loop.limits import RunLimits
from m3agent.serving.client.messages import AssistantMessage, Turn, Usage


def used(
    limits: RunLimits, turns: int, completion: int | None = None, price: float | None = None
) -> RunLimits:
    for _ in range(turns):
        usage = Usage(prompt=1, cached=None, completion=completion, reasoning=None)
        limits.used.add(Turn(AssistantMessage(), usage, "stop", 1.0, None), price)
    return limits


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (used(RunLimits(turns=3, minutes=10_000), 2), None),
        (used(RunLimits(turns=3, minutes=10_000), 3), "3 turns"),
        (used(RunLimits(turns=1, minutes=10_000), 1), "1 turn"),
        (RunLimits(turns=3, minutes=0.5, started=time.monotonic() - 31), "0.5 minutes"),
        (RunLimits(turns=3, minutes=1, started=time.monotonic() - 61), "1 minute"),
        (RunLimits(turns=3, minutes=10_000, started=time.monotonic() - 1700), None),
        (used(RunLimits(turns=9, minutes=10_000, tokens=2000), 3, completion=700), "2,000 completion tokens"),
        (used(RunLimits(turns=9, minutes=10_000, tokens=2000), 2, completion=700), None),
        (used(RunLimits(turns=9, minutes=10_000, tokens=2000), 5), None),
        (used(RunLimits(turns=9, minutes=10_000, cost=1.0), 2, price=0.6), "$1.00"),
        (used(RunLimits(turns=9, minutes=10_000, cost=1.0), 1, price=0.6), None),
        (used(RunLimits(turns=9, minutes=10_000, cost=1.0), 5), None),
    ],
)
def test_a_limit_that_is_reached_is_named(limits: RunLimits, said: str | None) -> None:
    assert limits.reached() == said


def test_one_answer_cannot_exceed_the_limit_of_tokens() -> None:
    limits = RunLimits(turns=9, minutes=9, tokens=2000)
    assert limits.left_tokens == 2000
    assert used(limits, 2, completion=700).left_tokens == 600
    assert used(limits, 2, completion=700).left_tokens == 1, "a request needs at least one"
    assert RunLimits(turns=9, minutes=9).left_tokens is None


def test_the_clock() -> None:
    limits = RunLimits(turns=1, minutes=2, started=time.monotonic() - 60)
    assert limits.deadline - time.monotonic() == pytest.approx(60, abs=5)
    assert limits.seconds == pytest.approx(60, abs=5)
