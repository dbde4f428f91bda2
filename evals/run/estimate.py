"""How long the rest of a run will take, from how long the phases of attempts took so far."""

from __future__ import annotations

from collections.abc import Iterable

PHASES = ("environment", "agent", "grade")
"""What an attempt goes through, in this order; each is a field of `evals.results.Seconds`."""


class Estimate:
    """Keeps the seconds of each phase that came to an end."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def add(self, phase: str, seconds: float) -> None:
        """A phase took so long."""
        self._seconds[phase].append(seconds)

    def left(self, waiting: int, running: Iterable[tuple[str, float]], workers: int) -> float | None:
        """Seconds until all is done; None while a phase that is still to come has never ended.

        waiting: attempts that have not begun. running: the phase of each that has, and the seconds since it began.
        workers: attempts at a time.
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
        # one attempt is never made by two workers
        return max((waiting * whole + sum(own)) / workers, *own, 0.0)
