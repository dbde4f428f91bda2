"""Work in a thread beside the event loop."""

import asyncio
import sys
import threading

import pytest

from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import UsageError


async def test_its_result_and_its_failure() -> None:
    assert await in_background(lambda: threading.current_thread().daemon) is True

    def fails() -> None:
        raise UsageError("No.")

    with pytest.raises(UsageError, match="No"):
        await in_background(fails)


def test_the_end_of_the_program_does_not_wait_for_it() -> None:
    forever, started = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        forever.wait(60)

    async def main() -> None:
        task = asyncio.ensure_future(in_background(work))
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())  # it would wait for a thread of `asyncio.to_thread`
    assert not forever.is_set()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "m3agent-background"]
    forever.set()
    thread.join(10)
    assert sys.exc_info() == (None, None, None)
