"""Run blocking work in a thread to its end, even if the caller is cancelled.

Work that stops in the middle would leave half-made things behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def uninterrupted(work: Callable[[], T]) -> T:
    """Run `work`; raise a cancellation only after it is done."""
    return await stoppable(lambda _: work())


async def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run `work` with an event that a cancellation sets.

    After the event is set, the work should end soon and clean up. The cancellation is raised after that.
    """
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        raise


class Threads(ThreadPoolExecutor):
    """The threads of an event loop. The end of the loop waits for them, unless `abandoned` is set."""

    abandoned = False
    """Whether nobody needs the results any more: Ctrl-C must not wait until a thread has read 100,000 files."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after their present work; with `abandoned`, return at once and begin no further work."""
        super().shutdown(wait and not self.abandoned, cancel_futures=cancel_futures or self.abandoned)
