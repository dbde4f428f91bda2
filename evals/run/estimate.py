"""Estimate the remaining time of many pieces of work from the durations of past phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Estimate:
    """Collect the durations of finished phases and estimate the rest.

    Args:
        phases: The phases of each piece of work, in order.
    """

    def __init__(self, phases: Sequence[str]) -> None:
        self._phases = tuple(phases)
        self._seconds: dict[str, list[float]] = {phase: [] for phase in phases}

    def add(self, phase: str, seconds: float) -> None:
        """Record that a phase took this many seconds."""
        self._seconds[phase].append(seconds)

    def left(self, waiting: int, running: Iterable[tuple[str, float]], workers: int) -> float | None:
        """Return the estimated seconds until all pieces are done.

        Args:
            waiting: Number of pieces that have not started.
            running: For each running piece, its phase and the seconds since the phase began.
            workers: Number of pieces at a time.

        Returns:
            None while a phase that is still to come has never finished.
        """
        rest = [(self._phases.index(phase), elapsed) for phase, elapsed in running]
        first = 0 if waiting else min((place for place, _ in rest), default=len(self._phases))
        known = {phase: sum(s) / len(s) for phase, s in self._seconds.items() if s}
        if any(phase not in known for phase in self._phases[first:]):
            return None
        own = [
            max(0.0, known[self._phases[place]] - elapsed)
            + sum(known[phase] for phase in self._phases[place + 1 :])
            for place, elapsed in rest
        ]
        whole = sum(known.values()) if waiting else 0.0
        # two workers never share a piece
        return max((waiting * whole + sum(own)) / workers, *own, 0.0)
