"""Runs blocking work beside the event loop without the end of the program waiting for it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """The result of `work()`, run in a daemon thread.

    Unlike `asyncio.to_thread`: cancelled, it returns at once and the thread is left to itself, so that Ctrl-C ends a
    program that reads from a terminal or a slow server. Only for work that leaves nothing half done.
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
        except BaseException as error:  # noqa: BLE001  # carried to whoever awaits, whatever it is
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True, name="m3agent-background").start()
    return await done
