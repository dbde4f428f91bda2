"""Ends waits that last too long, cheaply enough for every event of a stream."""

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Watch:
    """Times the waits of one task, one after the other; `close` it at the end.

    One timer looks now and then whether the present wait has lasted too long: `asyncio.timeout` sets and drops one
    for each wait, which for a stream's events costs a sixth of all that a turn costs us. `deadline` is an instant of
    `time.monotonic()`, after which no wait is begun.
    """

    def __init__(self, deadline: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf if deadline is None else deadline
        self._task: asyncio.Task[object] | None = None  # that waits
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    async def wait(self, step: Awaitable[T], seconds: float) -> T:
        """The result of `step`; raises TimeoutError after `seconds` without it, or at the deadline."""
        self._until = min(self._loop.time() + seconds, self._deadline)
        if self._timer is None or self._timer.when() > self._until:
            self._look_at(self._until)
        task = self._task = asyncio.current_task()
        assert task is not None, "a step is awaited by a task"
        asked = task.cancelling()
        try:
            try:
                return await step
            finally:
                self._task = None
                if (
                    self._expired
                ):  # in the very moment in which the step ended: the cancellation is on its way
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._expired and task.uncancel() <= asked:
                raise TimeoutError from None
            raise

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self._loop.time() >= self._deadline

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        self.close()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return  # the next wait sets a timer of its own
        if self._loop.time() < self._until:
            self._look_at(self._until)
        else:
            self._expired = True
            self._task.cancel()
