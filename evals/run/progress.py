"""Show a run's progress: a line for each finished attempt, and on a terminal a row for each running one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration, price
from m3agent.agent.ui.display import LiveView
from m3agent.agent.ui.layout import beside
from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.data.results import AttemptRecord, Verdict
from m3agent.evals.run.estimate import PHASES, Estimate

STYLES = {
    Verdict.RESOLVED: "bold green",
    Verdict.UNRESOLVED: "red",
    Verdict.INFRA: "bold magenta",
    Verdict.INVALID: "magenta",
}
OTHER_STYLE = "yellow"
MOST_ROWS = 20
MOST_NAMED = 3
"""Most running attempts that a line in a pipe names."""
WIDEST = max(len(verdict) for verdict in Verdict)
DOING = {"environment": "checkout and image", "agent": "agent running", "grade": "grading"}


class RunProgress:
    """Display the progress. Within its context, rows are drawn if standard error is a terminal.

    Args:
        total: Number of attempts of the whole run.
        done: Results that already exist.
        workers: Number of attempts at a time.
    """

    def __init__(self, total: int, done: Sequence[AttemptRecord], workers: int) -> None:
        self._live = LiveView(self._rows, self._still)
        self._total = total
        self._attempts = f"{total} {'attempt' if total == 1 else 'attempts'}"
        self._workers = workers
        self._verdicts = Counter(result.verdict for result in done)
        self._estimate = Estimate()
        self._running: dict[tuple[str, int], tuple[str, float, float]] = {}  # phase, its begin, the attempt's
        for result in done:
            self._learn(result)

    def __enter__(self) -> Self:
        self._live.start(rows=True)
        done = self._verdicts.total()
        at_once = f", {self._workers} at a time" if self._workers > 1 else ""
        again = f"; {done} {'has a result' if done == 1 else 'have results'} already" if done else ""
        if done < self._total:
            self._live.print(Text(f"{self._attempts}{at_once}{again}", "bold"))
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, what: str) -> None:
        """Print a note for the user."""
        self._live.print(beside(Text("note: ", "dim"), Text(printable_line(what, 500), "dim")))

    def phase(self, instance_id: str, number: int, name: str) -> None:
        """Record that an attempt begins a phase."""
        now = time.monotonic()
        _, _, began = self._running.get((instance_id, number), ("", now, now))
        self._running[instance_id, number] = (name, now, began)

    def finished(self, result: AttemptRecord) -> None:
        """Record and print a finished attempt."""
        self._running.pop((result.instance_id, result.attempt), None)
        self._verdicts[result.verdict] += 1
        self._learn(result)
        spent = sum(result.seconds.model_dump().values())
        cost = f", {price(result.usage.cost)}" if result.usage.cost else ""
        head = Text.assemble(
            (f"{self._verdicts.total():>{len(str(self._total))}} of {self._total}  ", "dim"),
            (f"{result.verdict:<{WIDEST}}  ", STYLES.get(result.verdict, OTHER_STYLE)),
        )
        body = Text.assemble(
            (_name(result.instance_id, result.attempt), "bold"),
            f"  {printable_line(result.reason, 300)}" if result.reason else "",
            (f"  ({duration(spent)}{cost})", "dim"),
        )
        so_far = Text(f"; {self._so_far(list(self._running.items()), time.monotonic())}", "dim")
        # a terminal has this in its row
        self._live.print(lambda width: beside(head, body if width else body + so_far)(width))

    def _learn(self, result: AttemptRecord) -> None:
        for phase in PHASES:
            if (seconds := getattr(result.seconds, phase)) > 0:
                self._estimate.add(phase, seconds)

    def _rows(self, width: int, height: int, now: float) -> Sequence[Text]:
        """Return the rows to draw. The drawing thread calls this, so each value is read only once."""
        running = list(self._running.items())
        room = max(1, min(MOST_ROWS, height - 3))
        rows = [self._head(running, now)]
        for (instance_id, number), (phase, since, began) in running[:room]:
            rows.append(
                Text.assemble(
                    (f"  {duration(now - began):>12}  ", "cyan"),
                    (_name(instance_id, number), "bold"),
                    f"  {DOING[phase]}, {duration(now - since)}",
                )
            )
        if len(running) > room:
            rows.append(Text(f"  {len(running) - room} more running", "dim"))
        for row in rows:
            row.truncate(max(1, width - 1), overflow="ellipsis")  # some terminals wrap at the last column
        return rows

    def _still(self, now: float) -> Sequence[Text]:
        """Return what is running, for output without rows."""
        running = list(self._running.items())
        names = [
            f"{_name(instance_id, number)} ({DOING[phase]}, {duration(now - since)})"
            for (instance_id, number), (phase, since, _) in running[:MOST_NAMED]
        ]
        if len(running) > MOST_NAMED:
            names.append(f"{len(running) - MOST_NAMED} more")
        doing = f"; running: {', '.join(names)}" if names else ""
        return [Text(f"… {self._head(running, now).plain}{doing}", "dim")]

    def _head(self, running: Sequence[tuple[tuple[str, int], tuple[str, float, float]]], now: float) -> Text:
        return Text.assemble(
            (f"{self._verdicts.total()} of {self._attempts}", "bold cyan"),
            f": {self._so_far(running, now)}",
        )

    def _so_far(self, running: Sequence[tuple[tuple[str, int], tuple[str, float, float]]], now: float) -> str:
        """Return the numbers of verdicts, and the estimated time until the end."""
        waiting = max(0, self._total - self._verdicts.total() - len(running))
        left = self._estimate.left(
            waiting, [(phase, now - since) for _, (phase, since, _) in running], self._workers
        )
        others = (verdict for verdict in Verdict if verdict is not Verdict.RESOLVED)
        counts = [f"{self._verdicts[Verdict.RESOLVED]} resolved so far"]
        counts += [f"{count} {verdict}" for verdict in others if (count := self._verdicts[verdict])]
        return ", ".join(counts) + (f"; about {duration(left)} left" if left else "")


def _name(instance_id: str, number: int) -> str:
    return instance_id if number == 1 else f"{instance_id} attempt {number}"
