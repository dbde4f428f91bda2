"""Waits that end after silence or at a deadline, and not by mistake."""

from __future__ import annotations

import asyncio
import time

import pytest

from m3agent.serving.client.stream.events import Watch


async def after(seconds: float, result: str = "done") -> str:
    await asyncio.sleep(seconds)
    return result


async def test_a_step_in_time() -> None:
    watch = Watch(None)
    for _ in range(3):
        assert await watch.wait(after(0.01), 5) == "done"
    watch.close()


async def test_silence() -> None:
    watch = Watch(None)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await watch.wait(after(60), 0.05)
    assert time.monotonic() - started < 30
    assert not watch.over
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    await asyncio.sleep(0)  # no cancellation of the task is pending


async def test_each_wait_has_its_own_limit() -> None:
    watch = Watch(None)
    for _ in range(6):  # together longer than the limit of one wait
        await watch.wait(after(0.05), 0.2)
    with pytest.raises(TimeoutError):
        await watch.wait(after(60), 0.05)


async def test_patience_may_shrink_and_grow() -> None:
    watch = Watch(None)
    await watch.wait(after(0), 60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.wait(after(60), 0.05), 5)
    watch = Watch(None)
    await watch.wait(after(0), 0.01)
    await asyncio.sleep(0.05)  # the caller may take longer between steps
    assert await watch.wait(after(0.1), 5) == "done"


async def test_the_deadline() -> None:
    watch = Watch(time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        await watch.wait(after(60), 60)
    assert watch.over
    watch = Watch(time.monotonic() - 1)
    with pytest.raises(TimeoutError):
        await watch.wait(after(60), 60)


async def test_a_cancellation_from_outside_stays_one() -> None:
    watch = Watch(None)
    task = asyncio.ensure_future(watch.wait(after(60), 60))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_step_passes() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Watch(None).wait(fail(), 5)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_that_ends_in_the_moment_in_which_time_is_up(fails: bool) -> None:
    """The watch's cancellation must not reach the code that runs next."""
    loop = asyncio.get_running_loop()
    watch = Watch(None)

    async def step() -> str:
        future: asyncio.Future[str] = loop.create_future()
        end = loop.time() + 0.25

        def settle() -> None:  # in one turn of the loop with the timeout, but before it
            if fails:
                future.set_exception(KeyError("x"))
            else:
                future.set_result("done")

        loop.call_at(end - 0.001, settle)
        loop.call_soon(time.sleep, 0.3)  # sleep until both are due
        return await future

    with pytest.raises((TimeoutError, KeyError)):
        await watch.wait(step(), 0.25)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    assert await after(0.01) == "done"
