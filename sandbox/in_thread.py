"""Blocking work in a thread, run to its end even where the caller is cancelled: half-made things are lost things."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def uninterrupted(work: Callable[[], T]) -> T:
    """Run it; a cancellation is raised when it is done."""
    return await stoppable(lambda _: work())


async def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run it with an event that a cancellation sets: it should end soon then, and leave nothing behind."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        raise
