"""Show the progress of `eval validate`: a line for each finding, and what is built and tested."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Self

from rich.text import Text

from m3agent.agent.report.text import duration
from m3agent.agent.ui.layout import beside
from m3agent.agent.util.sanitize import printable_line
from m3agent.evals.grade.validate import PHASES, Validation
from m3agent.evals.run.work_view import WorkView

STYLES = {"valid": "bold green", "invalid": "magenta", "unknown": "bold magenta"}
WIDEST = max(map(len, STYLES))


class ValidationProgress:
    """Display the progress. Within its context, rows are drawn if standard error is a terminal.

    Args:
        total: Number of instances.
        workers: Number of instances at a time.
        clock: Returns the time on the monotonic clock, in seconds.
    """

    def __init__(self, total: int, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.view = WorkView(PHASES, workers, self._head, clock)
        self._clock = clock
        self._total = total
        self._found: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.view.__exit__()

    def say(self, what: str) -> None:
        """Print a note for the user."""
        self.view.say(what)

    def phase(self, instance_id: str, name: str) -> None:
        """Record that the validation of an instance begins a phase."""
        self.view.phase(instance_id, name)

    def finished(self, found: Validation, *, known: bool) -> None:
        """Record and print a finding.

        Args:
            found: The finding.
            known: Whether it is an earlier one.
        """
        self.view.ended(found.instance_id)
        validity = validity_of(found)
        self._found[validity] += 1
        if not known:
            for phase, seconds in found.spent.items():
                self.view.learn(phase, seconds)
        head = Text.assemble(
            (f"{self._found.total():>{len(str(self._total))}} of {self._total}  ", "dim"),
            (f"{validity:<{WIDEST}}  ", STYLES[validity]),
        )
        body = Text.assemble(
            (found.instance_id, "bold"),
            f"  {printable_line(found.reason, 300)}" if found.reason else "",
            ("  (known already)" if known else f"  ({duration(found.seconds)})", "dim"),
        )
        so_far = Text(f"; {self._so_far(self._clock())}", "dim")
        # a terminal has this in its row
        self.view.print(lambda width: beside(head, body if width else body + so_far)(width))

    def _head(self, now: float) -> Text:
        instances = f"{self._total} {'instance' if self._total == 1 else 'instances'}"
        return Text.assemble((f"{self._found.total()} of {instances}", "bold cyan"), f": {self._so_far(now)}")

    def _so_far(self, now: float) -> str:
        counts = [f"{self._found['valid']} valid so far"]
        counts += [f"{count} {name}" for name in ("invalid", "unknown") if (count := self._found[name])]
        return ", ".join(counts) + self.view.left(self._total - self._found.total(), now)


def validity_of(found: Validation) -> str:
    """Return a finding in one word: `valid`, `invalid`, or `unknown` if this machine failed."""
    if found.machine_failed:
        return "unknown"
    return "valid" if found.valid else "invalid"
