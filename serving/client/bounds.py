"""Limit the size of what a model server sends. Otherwise its responses could fill this machine's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

MOST_PAGE = 64 << 20
"""Most bytes of a response that is not a stream: several times an answer as long as M3's window."""
MOST_STREAM = 512 << 20
"""Most bytes of a stream: an event for each token of M3's window."""
MOST_EVENT = 32 << 20
"""Most bytes of one event of a stream. MiniMax's server repeats the whole message in its last event."""
PLAIN = {"Accept-Encoding": "identity"}
"""Header of each request: a compressed body of kilobytes could unpack to gigabytes."""


class TooLarge(httpx2.ReadError):
    """A response has more bytes than its limit, or may have them after unpacking."""


def bound(response: httpx2.Response) -> None:
    """Limit the body of a response; a hook for a blocking client.

    Raises:
        TooLarge: The body is compressed.
    """
    response.stream = _Bounded(response.stream, _limit_of(response))


async def bound_async(response: httpx2.Response) -> None:
    """Limit the body of a response; a hook for an asynchronous client.

    Raises:
        TooLarge: The body is compressed.
    """
    response.stream = _Bounded(response.stream, _limit_of(response))


def _limit_of(response: httpx2.Response) -> int:
    if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise TooLarge("it compressed a response, which m3agent asked it not to do")
    return MOST_STREAM if "event-stream" in response.headers.get("content-type", "") else MOST_PAGE


class _Bounded(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a response; its client reads it in one of the two ways."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._size = 0

    def _counted(self, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLarge(f"it sent more than {self._limit >> 20} MiB in one response")
        return piece

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            yield self._counted(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._counted(piece)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()
