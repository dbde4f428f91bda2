"""Run coroutines concurrently; re-raise the first failure unwrapped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@overload
async def all_of(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B], /) -> tuple[A, B]: ...
@overload
async def all_of(
    first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B], third: Coroutine[Any, Any, C], /
) -> tuple[A, B, C]: ...
@overload
async def all_of(*work: Coroutine[Any, Any, A]) -> tuple[A, ...]: ...
async def all_of(*work: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Run coroutines concurrently and return their results in order.

    The first failure cancels the others, waits for their end, and is then raised unwrapped. A task group would raise it
    inside an exception group, which handlers of the error itself do not catch.
    """
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return tuple(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def some_at_a_time(most: int, work: Callable[[A], Awaitable[B]], items: Iterable[A]) -> list[B]:
    """Run `work` for each item, at most `most` at the same time.

    Returns:
        The results, in the order of the items. The first failure is handled as in `all_of`.
    """
    room = asyncio.Semaphore(most)

    async def one(item: A) -> B:
        async with room:
            return await work(item)

    return list(await all_of(*map(one, items)))
