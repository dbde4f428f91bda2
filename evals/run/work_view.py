"""Show which of many pieces of work run: on a terminal a row for each, in pipes and logs a line now and then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration
from m3agent.agent.ui.display import LiveView
from m3agent.agent.ui.layout import Block, beside
from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.run.estimate import Estimate

MOST_ROWS = 20
LEAST = 10.0
"""Seconds: an estimate of less is not shown, because it changes as much from piece to piece."""
MOST_NAMED = 3
"""Most running pieces that a line in a pipe names."""


class WorkView:
    """The pieces of work that run. Within its context, rows are drawn if standard error is a terminal.

    Args:
        doing: What a piece does in each phase, by the phase's name, in the order of the phases.
        workers: Number of pieces at a time.
        head: Returns the line above the pieces.
        clock: Returns the time on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        doing: Mapping[str, str],
        workers: int,
        head: Callable[[float], Text],
        clock: Callable[[], float],
    ) -> None:
        self._live = LiveView(self._rows, self.still)
        self._doing = doing
        self._workers = workers
        self._head = head
        self._clock = clock
        self._estimate = Estimate(tuple(doing))
        self._running: dict[str, tuple[str, float, float]] = {}  # phase, its begin, the piece's

    def __enter__(self) -> Self:
        self._live.start(rows=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def print(self, what: Text | Block) -> None:
        """Print a line or a block of lines that stays."""
        self._live.print(what)

    def say(self, what: str) -> None:
        """Print a note for the user."""
        self._live.print(beside(Text("note: ", "dim"), Text(printable_line(what, 500), "dim")))

    def phase(self, piece: str, name: str) -> None:
        """Record that a piece of work begins a phase."""
        now = self._clock()
        _, _, began = self._running.get(piece, ("", now, now))
        self._running[piece] = (name, now, began)

    def ended(self, piece: str) -> None:
        """Record that a piece of work ended."""
        self._running.pop(piece, None)

    def learn(self, phase: str, seconds: float) -> None:
        """Record for the estimate how long a phase took."""
        self._estimate.add(phase, seconds)

    def left(self, to_do: int, now: float) -> str:
        """Return the estimated time until the end, such as `; about 5 min left`; empty if it is not known.

        Args:
            to_do: Number of pieces that have not ended.
            now: The time.
        """
        running = [(phase, now - since) for phase, since, _ in list(self._running.values())]
        seconds = self._estimate.left(max(0, to_do - len(running)), running, self._workers)
        return f"; about {duration(seconds)} left" if seconds is not None and seconds >= LEAST else ""

    def _rows(self, width: int, height: int, now: float) -> Sequence[Text]:
        """Return the rows to draw. The drawing thread calls this, so each value is read only once."""
        running = list(self._running.items())
        room = max(1, min(MOST_ROWS, height - 3))
        rows = [self._head(now)]
        for piece, (phase, since, began) in running[:room]:
            rows.append(
                Text.assemble(
                    (f"  {duration(now - began):>12}  ", "cyan"),
                    (piece, "bold"),
                    f"  {self._doing[phase]}, {duration(now - since)}",
                )
            )
        if len(running) > room:
            rows.append(Text(f"  {len(running) - room} more running", "dim"))
        for row in rows:
            row.truncate(max(1, width - 1), overflow="ellipsis")  # some terminals wrap at the last column
        return rows

    def still(self, now: float) -> Sequence[Text]:
        """Return what is running, for output without rows."""
        running = list(self._running.items())
        names = [
            f"{piece} ({self._doing[phase]}, {duration(now - since)})"
            for piece, (phase, since, _) in running[:MOST_NAMED]
        ]
        if len(running) > MOST_NAMED:
            names.append(f"{len(running) - MOST_NAMED} more")
        doing = f"; running: {', '.join(names)}" if names else ""
        return [Text(f"… {self._head(now).plain}{doing}", "dim")]
