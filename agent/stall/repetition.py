"""Detect a stream that repeats itself over and over, so that the generation can be aborted."""

from __future__ import annotations

from m3agent.agent.stall.thresholds import Thresholds

FENCE = "```"
CODE = 4
"""Factor for the limits of repeats and characters inside a block of code, where tables and data repeat themselves."""


class RepetitionDetector:
    """Searches the end of a stream for repetition every `chant_step` characters, regardless of how its pieces are cut."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.reset()

    def reset(self) -> None:
        """Start with a new stream."""
        self._pieces: list[str] = []
        self._waiting = 0
        self._tail = ""
        self._fences = 0

    def hear(self, text: str) -> int:
        """Take a piece of the stream.

        Returns:
            How often the end of the stream occurs before it if the stream repeats itself; else 0.
        """
        step = self._thresholds.chant_step
        self._pieces.append(text)
        self._waiting += len(text)
        if self._waiting < step:
            return 0
        waiting = "".join(self._pieces)
        most = 0
        for start in range(0, len(waiting) - step + 1, step):
            # the first search that finds a repetition counts, even if the same piece contains more text
            most = most or self._look(waiting[start : start + step])
        rest = waiting[len(waiting) // step * step :]
        self._pieces, self._waiting = [rest], len(rest)
        return most

    def _look(self, block: str) -> int:
        limits = self._thresholds
        self._fences += (self._tail[-2:] + block).count(FENCE)
        self._tail = (self._tail + block)[-limits.chant_window * CODE :]
        factor = CODE if self._fences % 2 else 1
        text = self._tail[-limits.chant_window * factor :]
        needle = text[-limits.chant_needle :]
        if not needle.strip():
            return 0
        between = text.split(needle)[1:-1]
        found = len(between) + 1
        if found < limits.chant_repeats * factor or len(set(between)) > limits.chant_variants:
            return 0
        stretch = text.rfind(needle) - text.find(needle)
        return found if stretch >= limits.chant_shortest * factor else 0
