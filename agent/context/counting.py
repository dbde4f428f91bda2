"""Counts the chunks that no earlier pack has counted, while the files behind them are still being read."""

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
    """Chunks go in as they are made; their counts come out at the end.

    Tokenizers work outside of the interpreter's lock, so two threads keep two cores busy while this one reads.
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
        """Count one more."""
        self._batch.append(chunk)
        self._size += len(chunk)
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def result(self) -> tuple[list[int], Counter]:
        """The tokens of each chunk in the order they were added, and the counter that counted them.

        Raises what opening the tokenizer or counting raised.
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
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the counts
            self._errors.append(error)
