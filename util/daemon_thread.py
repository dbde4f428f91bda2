"""Run blocking work beside the event loop, without delaying the end of the program."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """Run `work()` in a daemon thread and return its result.

    If the caller is cancelled, this returns at once and leaves the thread running, unlike
    `asyncio.to_thread`. Ctrl-C therefore ends a program that reads from a terminal or from a slow server. Use
    it only for work that may stop at any point.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only if T is

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # the awaiting task gets every error
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True, name="m3agent-background").start()
    return await done
