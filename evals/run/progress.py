"""Show a run's progress: a line for each finished attempt, and what the running ones do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration, price
from m3agent.agent.ui.layout import beside
from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.data.results import AttemptRecord, Verdict
from m3agent.evals.run.work_view import WorkView

STYLES = {
    Verdict.RESOLVED: "bold green",
    Verdict.UNRESOLVED: "red",
    Verdict.INFRA: "bold magenta",
    Verdict.INVALID: "magenta",
}
OTHER_STYLE = "yellow"
WIDEST = max(len(verdict) for verdict in Verdict)
DOING = {"environment": "checkout and image", "agent": "agent running", "grade": "grading"}
"""What an attempt does in each phase; each phase is a field of `evals.data.results.Seconds`."""


class RunProgress:
    """Display the progress. Within its context, rows are drawn if standard error is a terminal.

    Args:
        total: Number of attempts of the whole run.
        done: Results that already exist.
        workers: Number of attempts at a time.
        clock: Returns the time on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        total: int,
        done: Sequence[AttemptRecord],
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = WorkView(DOING, workers, self._head, clock)
        self._clock = clock
        self._total = total
        self._attempts = f"{total} {'attempt' if total == 1 else 'attempts'}"
        self._workers = workers
        self._verdicts = Counter(result.verdict for result in done)
        for result in done:
            self._learn(result)

    def __enter__(self) -> Self:
        self.view.__enter__()
        done = self._verdicts.total()
        at_once = f", {self._workers} at a time" if self._workers > 1 else ""
        again = f"; {done} {'has a result' if done == 1 else 'have results'} already" if done else ""
        if done < self._total:
            self.view.print(Text(f"{self._attempts}{at_once}{again}", "bold"))
        return self

    def __exit__(self, *_: object) -> None:
        self.view.__exit__()

    def say(self, what: str) -> None:
        """Print a note for the user."""
        self.view.say(what)

    def phase(self, instance_id: str, number: int, name: str) -> None:
        """Record that an attempt begins a phase."""
        self.view.phase(_name(instance_id, number), name)

    def finished(self, result: AttemptRecord) -> None:
        """Record and print a finished attempt."""
        name = _name(result.instance_id, result.attempt)
        self.view.ended(name)
        self._verdicts[result.verdict] += 1
        self._learn(result)
        spent = sum(result.seconds.model_dump().values())
        cost = f", {price(result.usage.cost)}" if result.usage.cost else ""
        head = Text.assemble(
            (f"{self._verdicts.total():>{len(str(self._total))}} of {self._total}  ", "dim"),
            (f"{result.verdict:<{WIDEST}}  ", STYLES.get(result.verdict, OTHER_STYLE)),
        )
        body = Text.assemble(
            (name, "bold"),
            f"  {printable_line(result.reason, 300)}" if result.reason else "",
            (f"  ({duration(spent)}{cost})", "dim"),
        )
        so_far = Text(f"; {self._so_far(self._clock())}", "dim")
        # a terminal has this in its row
        self.view.print(lambda width: beside(head, body if width else body + so_far)(width))

    def _learn(self, result: AttemptRecord) -> None:
        for phase in DOING:
            if (seconds := getattr(result.seconds, phase)) > 0:
                self.view.learn(phase, seconds)

    def _head(self, now: float) -> Text:
        return Text.assemble(
            (f"{self._verdicts.total()} of {self._attempts}", "bold cyan"), f": {self._so_far(now)}"
        )

    def _so_far(self, now: float) -> str:
        """Return the numbers of verdicts, and the estimated time until the end."""
        others = (verdict for verdict in Verdict if verdict is not Verdict.RESOLVED)
        counts = [f"{self._verdicts[Verdict.RESOLVED]} resolved so far"]
        counts += [f"{count} {verdict}" for verdict in others if (count := self._verdicts[verdict])]
        return ", ".join(counts) + self.view.left(self._total - self._verdicts.total(), now)


def _name(instance_id: str, number: int) -> str:
    return instance_id if number == 1 else f"{instance_id} attempt {number}"
