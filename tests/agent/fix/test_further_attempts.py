"""Test attempts after the first: what each has of its own, and how the end of one affects the others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from m3agent.agent.fix import orchestrate as flow
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.fix.orchestrate import PreparedFix
from m3agent.agent.loop.limits import Variation, variations
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.session import events
from m3agent.agent.session.usage import Totals
from m3agent.agent.verify.baseline import KeptBaselines
from m3agent.sandbox.backends.factory import SandboxSpec
from m3agent.sandbox.errors import SandboxDied
from tests.agent.core import DONE, FIX, TEST
from tests.agent.fix.attempt_parts import RUN_CONTEXT, World

SPEC = SandboxSpec(image="an-image")
PACKED = events.ContextPacked(1, 2, True, {}, [], "digest", 0.1)


def started(variation: Variation) -> events.Event:
    return events.Error("started", str(variation.number), 0)


def prepared(world: World) -> PreparedFix:
    return PreparedFix(RUN_CONTEXT, "bwrap", SPEC, started, [PACKED], KeptBaselines(world.folder))


def test_each_further_attempt_has_its_own_session_and_limits(world: World) -> None:
    first = world.attempt(attempts=3)
    first.limits.together = Totals()
    with contextlib.ExitStack() as sessions:
        further = list(flow._further_attempts(first, prepared(world), sessions, lambda _: lambda _: None))
        assert [attempt.session.id for attempt in further] == ["session-2", "session-3"]
        assert {attempt.group for attempt in further} == {first.session.id}
        assert [attempt.variation for attempt in further] == variations(3, None)[1:]
        assert first.variation.sampling == variations(3, 7)[0].sampling, (
            "the first is as in a fix with one attempt"
        )
        for attempt in further:
            assert attempt.limits.used is not first.limits.used
            assert attempt.limits.together is first.limits.together
            assert (attempt.limits.started, attempt.started) == (first.limits.started, first.started)
    assert [(line["session"], line["seq"], line["type"]) for line in world.lines] == [
        (session, seq, kind)
        for session in ("session-2", "session-3")
        for seq, kind in ((1, "error"), (2, "context.packed"))
    ]
    assert [line["text"] for line in world.log("error")] == ["2", "3"]


def test_resumed_session_has_no_further_attempts(world: World) -> None:
    first = world.attempt(attempts=3, resume=ResumePoint({"tree": "t"}, "t"))
    with contextlib.ExitStack() as sessions:
        assert list(flow._further_attempts(first, prepared(world), sessions, lambda _: lambda _: None)) == []
    assert world.lines == []


async def test_an_attempt_whose_sandbox_does_not_start_ends_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sandbox(*_: object) -> None:
        raise SandboxDied("no room")

    monkeypatch.setattr(flow, "_set_up", no_sandbox)
    first, second = (
        world.attempt(FIX, TEST, DONE, variation=Variation(number, 2), name=f"attempt-{number}")
        for number in (1, 2)
    )
    await first.start_sandbox(SPEC, "bwrap")
    await flow._work([first, second], prepared(world))
    assert (first.is_verified, first.failure) == (True, None)
    assert isinstance(second.failure, SandboxDied)


async def test_an_attempt_that_is_verified_too_ends_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are verified while their models wait for the verdict; the one that ends later must not be interrupted."""

    async def set_up(attempt: Attempt, *_: object) -> None:
        await attempt.start_sandbox(SPEC, "bwrap")

    async def ends_late() -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(flow, "_set_up", set_up)
    first, second = (
        world.attempt(
            FIX, TEST, DONE, variation=Variation(number, 2), name=f"attempt-{number}", verify_rounds=2
        )
        for number in (1, 2)
    )
    second.workspace = first.workspace
    await first.start_sandbox(SPEC, "bwrap")
    first.stack.push_async_callback(ends_late)
    await flow._work([first, second], prepared(world))
    for attempt in (first, second):
        assert attempt.is_verified
        assert attempt.overtaken_by is None
        assert attempt.outcome is not None
