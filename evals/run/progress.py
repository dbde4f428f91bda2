"""Show the progress of a run and of a validation: a line for each result, and what the running pieces do.

On a terminal, a run is a table of instances and agents, and each running piece of a validation has a row. In pipes and
logs, a line now and then names what is running.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration, price
from m3agent.agent.ui.display import Display
from m3agent.agent.ui.layout import beside
from m3agent.evals.data.results import AttemptRecord, Verdict
from m3agent.evals.grade.validate import PHASES, Validation
from m3agent.util.sanitize import printable_line

VERDICTS: Mapping[str, str] = {
    **dict.fromkeys(map(str, Verdict), "yellow"),
    Verdict.RESOLVED: "bold green",
    Verdict.UNRESOLVED: "red",
    Verdict.INFRA: "bold magenta",
    Verdict.INVALID: "magenta",
}
VALIDITIES = {"valid": "bold green", "invalid": "magenta", "unknown": "bold magenta"}
"""The outcomes of pieces of work and their styles, each time with the good outcome first."""
DOING = {"environment": "checkout and image", "agent": "agent running", "grade": "grading"}
"""What an attempt does in each phase; each phase is a field of `evals.data.results.Seconds`."""
MOST_ROWS = 20
LEAST = 10.0
"""Seconds: an estimate of less is not shown, because it changes as much from piece to piece."""
MOST_NAMED = 3
"""Most running pieces that a line in a pipe names."""


class WorkProgress(Display):
    """Displays many pieces of work. Within its context, rows are drawn if standard error is a terminal.

    Args:
        doing: What a piece does in each phase, by the phase's name, in the order of the phases.
    """

    def __init__(
        self,
        total: int,
        noun: str,
        outcomes: Mapping[str, str],
        doing: Mapping[str, str],
        workers: int,
        clock: Callable[[], float],
    ) -> None:
        self._total = total
        self._pieces = f"{total} {noun if total == 1 else f'{noun}s'}"
        self._outcomes = outcomes
        self._doing = doing
        self._workers = workers
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._estimate = Estimate(tuple(doing))
        self._running: dict[str, tuple[str, float, float]] = {}  # phase, its begin, the piece's
        super().__init__(self._rows, self.still)

    def say(self, text: str) -> None:
        """Print a note for the user."""
        self._live.print(beside(Text("note: ", "dim"), Text(printable_line(text, 500), "dim")))

    def _begin(self, piece: str, phase: str) -> None:
        """Record that a piece of work begins a phase."""
        now = self._clock()
        _, _, began = self._running.get(piece, ("", now, now))
        self._running[piece] = (phase, now, began)

    def _end(self, piece: str, outcome: str, reason: str, detail: str, spent: Mapping[str, float]) -> None:
        """Record and print the end of a piece of work; `spent` has the seconds of its phases, for the estimate."""
        self._running.pop(piece, None)
        self._counts[outcome] += 1
        self._learn(spent)
        widest = max(map(len, self._outcomes))
        head = Text.assemble(
            (f"{self._counts.total():>{len(str(self._total))}} of {self._total}  ", "dim"),
            (f"{outcome:<{widest}}  ", self._outcomes[outcome]),
        )
        body = Text.assemble(
            (piece, "bold"), f"  {printable_line(reason, 300)}" if reason else "", (f"  ({detail})", "dim")
        )
        so_far = Text(f"; {self._so_far(self._clock())}", "dim")
        # a terminal has this in its row
        self._live.print(lambda width: beside(head, body if width else body + so_far)(width))

    def _learn(self, spent: Mapping[str, float]) -> None:
        for phase, seconds in spent.items():
            if phase in self._doing and seconds > 0:
                self._estimate.add(phase, seconds)

    def _head(self, now: float) -> Text:
        done = f"{self._counts.total()} of {self._pieces}"
        return Text.assemble((done, "bold cyan"), f": {self._so_far(now)}")

    def _so_far(self, now: float) -> str:
        """Return the numbers of outcomes, and the estimated time until the end, such as `; about 5 min left`."""
        good, *others = self._outcomes
        counts = [f"{self._counts[good]} {good} so far"]
        counts += [f"{count} {outcome}" for outcome in others if (count := self._counts[outcome])]
        running = [(phase, now - since) for phase, since, _ in list(self._running.values())]
        waiting = max(0, self._total - self._counts.total() - len(running))
        seconds = self._estimate.left(waiting, running, self._workers)
        left = f"; about {duration(seconds)} left" if seconds is not None and seconds >= LEAST else ""
        return ", ".join(counts) + left

    def _rows(self, width: int, height: int, now: float) -> Sequence[Text]:
        """Return the rows to draw. The drawing thread calls this, so each value is read only once."""
        running = list(self._running.items())
        room = max(1, min(MOST_ROWS, height - 3))
        rows = [self._head(now)]
        for piece, (phase, since, began) in running[:room]:
            doing = f"  {self._doing[phase]}, {duration(now - since)}"
            rows.append(Text.assemble((f"  {duration(now - began):>12}  ", "cyan"), (piece, "bold"), doing))
        if len(running) > room:
            rows.append(Text(f"  {len(running) - room} more running", "dim"))
        return [fitted(row, width) for row in rows]

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


class RunProgress(WorkProgress):
    """Displays the progress of the runs of one or more agents.

    Args:
        done: For each agent, the results that it has already.
    """

    def __init__(
        self,
        total: int,
        done: Mapping[str, Sequence[AttemptRecord]],
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(total, "attempt", VERDICTS, DOING, workers, clock)
        self._agents = tuple(done)
        self._ends: dict[str, dict[str, str]] = {}
        """By instance and attempt, the verdict of each agent; what changed last is last."""
        for agent, results in done.items():
            for result in results:
                self._counts[result.verdict] += 1
                self._learn(result.seconds.model_dump())
                row = self._ends.setdefault(_name(result.instance_id, result.attempt), {})
                row[agent] = result.verdict

    def __enter__(self) -> Self:
        super().__enter__()
        done = self._counts.total()
        at_once = f", {self._workers} at a time" if self._workers > 1 else ""
        again = f"; {done} {'has a result' if done == 1 else 'have results'} already" if done else ""
        if done < self._total:
            self._live.print(Text(f"{self._pieces}{at_once}{again}", "bold"))
        return self

    def phase(self, agent: str, instance_id: str, number: int, name: str) -> None:
        """Record that an attempt of an agent begins a phase."""
        row = _name(instance_id, number)
        self._ends[row] = self._ends.pop(row, {})
        self._begin(self._piece(agent, row), name)

    def finished(self, agent: str, result: AttemptRecord) -> None:
        """Record and print a finished attempt of an agent."""
        spent = result.seconds.model_dump()
        cost = f", {price(result.usage.cost)}" if result.usage.cost else ""
        detail = f"{duration(sum(spent.values()))}{cost}"
        row = _name(result.instance_id, result.attempt)
        self._ends[row] = {**self._ends.pop(row, {}), agent: result.verdict}
        self._end(self._piece(agent, row), result.verdict, result.reason, detail, spent)

    def _piece(self, agent: str, row: str) -> str:
        return f"{agent}: {row}" if len(self._agents) > 1 else row

    def _rows(self, width: int, height: int, now: float) -> Sequence[Text]:
        """Return a table of the instances that changed last, with a column for each agent."""
        running = dict(self._running)
        room = max(1, min(MOST_ROWS, height - 4))
        names = list(self._ends)[-room:]
        cells = [[self._cell(agent, name, running, now) for agent in self._agents] for name in names]
        table = columns([[Text(), *(Text(agent, "dim") for agent in self._agents)]] + [
            [Text(name, "bold"), *row] for name, row in zip(names, cells, strict=True)
        ])  # fmt: skip
        return [fitted(row, width) for row in (self._head(now), *(table if names else ()))]

    def _cell(
        self, agent: str, name: str, running: Mapping[str, tuple[str, float, float]], now: float
    ) -> Text:
        """Return what an agent does at an instance, or the verdict of its attempt."""
        if (piece := running.get(self._piece(agent, name))) is not None:
            return Text(f"{self._doing[piece[0]]}, {duration(now - piece[2])}", "cyan")
        verdict = self._ends.get(name, {}).get(agent)
        return Text("waiting", "dim") if verdict is None else Text(verdict, VERDICTS[verdict])


class ValidationProgress(WorkProgress):
    """Displays the progress of `eval validate`."""

    def __init__(self, total: int, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(total, "instance", VALIDITIES, PHASES, workers, clock)

    def phase(self, instance_id: str, name: str) -> None:
        """Record that the validation of an instance begins a phase."""
        self._begin(instance_id, name)

    def finished(self, found: Validation, *, known: bool) -> None:
        """Record and print a finding; `known` says whether it is an earlier one."""
        outcome = "unknown" if found.machine_failed else "valid" if found.valid else "invalid"
        detail = "known already" if known else duration(found.seconds)
        self._end(found.instance_id, outcome, found.reason, detail, {} if known else found.spent)


def columns(rows: Sequence[Sequence[Text]]) -> list[Text]:
    """Return the lines of a table whose columns begin below one another."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    padded = [
        [cell + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True)]
        for row in rows
    ]
    return [Text("  ") + Text("  ").join(row) for row in padded]


def fitted(row: Text, width: int) -> Text:
    """Return a row that fits into a terminal; some terminals wrap at the last column."""
    row.truncate(max(1, width - 1), overflow="ellipsis")
    return row


def _name(instance_id: str, number: int) -> str:
    return instance_id if number == 1 else f"{instance_id} attempt {number}"


class Estimate:
    """Collects the durations of finished phases, and estimates the remaining time of many pieces of work."""

    def __init__(self, phases: Sequence[str]) -> None:
        self._phases = tuple(phases)
        self._seconds: dict[str, list[float]] = {phase: [] for phase in phases}

    def add(self, phase: str, seconds: float) -> None:
        """Record that a phase took this many seconds."""
        self._seconds[phase].append(seconds)

    def left(self, waiting: int, running: Iterable[tuple[str, float]], workers: int) -> float | None:
        """Return the estimated seconds until all pieces are done.

        Args:
            running: For each running piece, its phase and the seconds since the phase began.

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
