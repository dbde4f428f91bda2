"""Estimate the remaining time of a run from the durations of past phases."""

from __future__ import annotations

from collections.abc import Iterable

PHASES = ("environment", "agent", "grade")
"""The phases of an attempt, in order; each is a field of `evals.data.results.Seconds`."""


class Estimate:
    """Collect the durations of finished phases and estimate the rest."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def add(self, phase: str, seconds: float) -> None:
        """Record that a phase took this many seconds."""
        self._seconds[phase].append(seconds)

    def left(self, waiting: int, running: Iterable[tuple[str, float]], workers: int) -> float | None:
        """Return the estimated seconds until all attempts are done.

        Args:
            waiting: Number of attempts that have not started.
            running: For each running attempt, its phase and the seconds since the phase began.
            workers: Number of attempts at a time.

        Returns:
            None while a phase that is still to come has never finished.
        """
        rest = [(PHASES.index(phase), elapsed) for phase, elapsed in running]
        first = 0 if waiting else min((place for place, _ in rest), default=len(PHASES))
        known = {phase: sum(s) / len(s) for phase, s in self._seconds.items() if s}
        if any(phase not in known for phase in PHASES[first:]):
            return None
        own = [
            max(0.0, known[PHASES[place]] - elapsed) + sum(known[phase] for phase in PHASES[place + 1 :])
            for place, elapsed in rest
        ]
        whole = sum(known.values()) if waiting else 0.0
        # two workers never share an attempt
        return max((waiting * whole + sum(own)) / workers, *own, 0.0)
