"""Count the tokens of chunks that are not cached, in threads, while other files are still being read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from m3agent.agent.context.tokenizer.counter import Counter

_BATCH_BYTES = 256 * 1024


class Counting:
    """Receive chunks as they are made and return their counts at the end.

    Tokenizers release the interpreter's lock, so the threads use other cores while the caller reads.
    """

    def __init__(self, open_counter: Callable[[], Counter]) -> None:
        self._open = open_counter
        self._opened = threading.Lock()
        self._counter: Counter | None = None
        self._queue: SimpleQueue[tuple[int, list[bytes]] | None] = SimpleQueue()
        self._counts: dict[int, list[int]] = {}
        self._errors: list[BaseException] = []
        self._batch: list[bytes] = []
        self._size = 0
        self._batches = 0
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(min(4, os.cpu_count() or 1))
        ]
        for thread in self._threads:
            thread.start()

    def add(self, chunk: bytes) -> None:
        """Add a chunk to count."""
        self._batch.append(chunk)
        self._size += len(chunk)
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def result(self) -> tuple[list[int], Counter]:
        """Return the token count of each chunk in the order of `add`, and the counter.

        Raises any error that occurred while opening the tokenizer or counting.
        """
        self._hand_over()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        counts = [count for number in range(self._batches) for count in self._counts[number]]
        assert self._counter is not None, "a thread that could not open it has left an error"
        return counts, self._counter

    def _hand_over(self) -> None:
        if self._batch:
            self._queue.put((self._batches, self._batch))
            self._batches += 1
            self._batch, self._size = [], 0

    def _work(self) -> None:
        try:
            with self._opened:
                if self._counter is None and not self._errors:
                    self._counter = self._open()
            while (work := self._queue.get()) is not None:
                number, chunks = work
                if self._counter is not None:
                    self._counts[number] = self._counter.count_many([chunk.decode() for chunk in chunks], 1)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._errors.append(error)
