"""Read the events of a stream: parse their bytes, and limit the wait for each."""

import asyncio
import math
import re
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Assemble the data of each event from pieces of any size; ignore names, ids and comments.

    Lines end only where the standard says, because text in JSON may contain other separators at which Python
    splits. An event without data is ignored. See
    https://html.spec.whatwg.org/multipage/server-sent-events.html.
    """

    def __init__(self) -> None:
        self._rest = b""  # the line that has not ended yet
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the data of the events that they complete."""
        text = self._rest + piece if self._rest else piece
        # A carriage return at the end may be half of a line end.
        whole, held = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
        *lines, rest = _LINE_END.split(whole) if b"\r" in whole else whole.split(b"\n")
        self._rest = rest + held
        return self._take(lines)

    @property
    def held(self) -> int:
        """Bytes of the event that is not complete yet."""
        return len(self._rest) + sum(map(len, self._data))

    def close(self) -> list[bytes]:
        """Return the last event if the stream ended without the empty line that should follow it."""
        line, self._rest = self._rest.removesuffix(b"\r"), b""
        return self._take([line, b""])

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data.clear()
                if data.strip():
                    events.append(data)
        return events


class Watch:
    """Limit the waits of one task, one after the other; call `close` at the end.

    One timer checks from time to time whether the current wait has lasted too long. `asyncio.timeout` would
    set and cancel a timer for each wait; for the events of a stream, that costs a sixth of the client's own
    work per turn.

    Args:
        deadline: Time of `time.monotonic()` at which every wait ends; None for no deadline.
    """

    def __init__(self, deadline: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf if deadline is None else deadline
        self._task: asyncio.Task[object] | None = None  # the waiting task, if any
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    async def wait(self, step: Awaitable[T], seconds: float) -> T:
        """Return the result of `step`.

        Raises:
            TimeoutError: No result came within `seconds`, or by the deadline.
        """
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
                if self._expired:  # timer and step ended together: let the pending cancellation arrive
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
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        self.close()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return  # the next wait sets its own timer
        if self._loop.time() < self._until:
            self._look_at(self._until)
        else:
            self._expired = True
            self._task.cancel()
